"""Train a Linear InfViT with a convolutional stem on a folder of images too large for an ordinary backward pass.

    python examples/train_on_slides.py slides --out runs/slides --memory 4GiB

The folder holds the images (TIFF, whole slides, PNG, ...) and labels.csv: a column ``file`` and a column for every
question, with one answer in every row. A column whose name ends in ``*`` may have several answers, with ``;`` between.

    file,diagnosis,found*
    a.tif,benign,fat;muscle
    b.tif,malignant,

Every step takes the exact gradients of whole images, tile by tile: what autograd would give if they fitted. A share of
the images is held out; the model that does best on them is kept in OUT, for ``infsa stream`` and ``infsa evaluate``.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import infsa
from infsa.data import Task, Tasks, keyed_generator
from infsa.models import InfViT, describe_data, save_weights
from infsa.streaming import stream_backward


def read_labels(folder: Path) -> tuple[list[Path], Tensor, Tasks]:
    """The images, rows of zeros and ones for their answers (n, C), and the tasks."""
    with open(folder / "labels.csv", newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    columns = [name for name in rows[0] if name != "file"] if rows else []
    if not columns or "file" not in rows[0]:
        raise ValueError(f"{folder / 'labels.csv'} must have a column 'file', a column for a question, and rows")
    answers = {name: [list(filter(None, (row[name] or "").split(";"))) for row in rows] for name in columns}
    tasks = []
    for name in columns:
        classes = tuple(sorted({answer for own in answers[name] for answer in own}))
        wrong = next((i for i, own in enumerate(answers[name]) if len(own) != 1), None)
        if not name.endswith("*") and wrong is not None:
            raise ValueError(f"{rows[wrong]['file']} must have one answer for {name!r}, got {rows[wrong][name]!r}")
        tasks.append(Task(name.rstrip("*"), classes, name.endswith("*")))
    hits = [
        [float(label in answers[name][i]) for name, task in zip(columns, tasks, strict=True) for label in task.classes]
        for i in range(len(rows))
    ]
    files = [folder / row["file"] for row in rows]
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"labels.csv names {file.name}, which is not in {folder}")
    return files, torch.tensor(hits), Tasks(tasks)


def build(tasks: Tasks, side: int, width: int, depth: int) -> InfViT:
    """A small model: the stem sees objects whole, the attention finds and pools them."""
    model: InfViT = infsa.create_model(
        "infvit_linear_4l64h_patch16_224", img_size=side, stem="conv", embed_dim=width, depth=depth, num_heads=8,
        mlp_ratio=2.0, num_classes=tasks.outputs, global_pool="avg", pos_embed="sincos", dynamic_img_pad=True,
    )  # fmt: skip
    describe_data(model, label_names=tasks.names, **({"tasks": tasks.as_list()} if len(tasks) > 1 else {}))
    return model.eval()  # no dropout: the gradient of a tile must not depend on chance


def mean_loss(tasks: Tasks, wanted: Tensor, count: int) -> Callable[[Tensor], Tensor]:
    """The part that one image has in the mean loss of ``count``, as a function of its logits."""
    return lambda logits: tasks.loss(logits, wanted) / count


def train(folder: Path, out: Path, options: argparse.Namespace) -> float:
    """Train and return the best mean share of right answers on the images held out."""
    files, answers, tasks = read_labels(folder)
    order = keyed_generator("held out", options.seed).permutation(len(files)).tolist()
    held = max(1, round(options.held_out * len(files)))
    test, rest = order[:held], order[held:]
    if not rest:
        raise ValueError(f"two images or more are needed, got {len(files)}")
    torch.manual_seed(options.seed)
    model = build(tasks, options.side, options.width, options.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, epochs=options.epochs, steps_per_epoch=-(-len(rest) // options.batch)
    )
    limits = {"tile": options.tile, "memory": options.memory}
    best = -1.0
    for epoch in range(options.epochs):
        total, turn = 0.0, keyed_generator("order", options.seed, epoch).permutation(rest).tolist()
        for start in range(0, len(turn), options.batch):
            some = turn[start : start + options.batch]
            for index in some:
                loss = mean_loss(tasks, answers[index : index + 1], len(some))
                total += len(some) * float(stream_backward(model, files[index], loss, **limits).loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        logits = torch.cat([infsa.stream(model, files[index], **limits).logits for index in test])
        shares = tasks.hits(logits, answers[test]).mean(0).tolist()
        told = ", ".join(f"{task.name} {share:.0%}" for task, share in zip(tasks, shares, strict=True))
        print(f"epoch {epoch + 1}: loss {total / len(rest):.3f}; on {len(test)} held out: {told}", flush=True)
        if sum(shares) / len(shares) > best:
            best = sum(shares) / len(shares)
            save_weights(model, out)
    return best


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/slides"))
    parser.add_argument("--memory", help="all that the process may hold, such as 4GiB")
    parser.add_argument("--tile", type=int, default=512, help="side of the tiles in pixels")
    parser.add_argument("--side", type=int, default=4096, help="usual side of the images, for the positions")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="images per optimiser step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=float, default=0.2, help="share of the images")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    best = train(options.folder, options.out, options)
    print(f"best mean share of right answers {best:.0%}; model in {options.out}")


if __name__ == "__main__":
    main()
