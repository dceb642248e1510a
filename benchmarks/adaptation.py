"""What conversion costs a trained timm ViT and what adaptation wins back, on a Tiny-ImageNet shard.

    python benchmarks/adaptation.py run tiny-imagenet-a.npz runs/adaptation      # about 3 minutes on one H200
    python benchmarks/adaptation.py run tiny-imagenet-b.npz runs/adaptation --start shipped --images 2000 \\
        --layer-epochs 1 --logit-epochs 2 --label-epochs 1                       # sized for two CPU cores
    python benchmarks/adaptation.py collect runs/adaptation benchmarks/results/adaptation.json
    python benchmarks/adaptation.py document                                     # writes the table into the document

`run` trains timm's ViT (64 px, patch 8, width 192, 6 layers, 3 heads) with softmax, converts it three ways and adapts
each; with `--start shipped` it takes the weights that the package ships for that shape, which were trained on shard b,
instead of training any. A run that was cut off goes on where it stopped. The softmax model trained on for as many
epochs stands beside them, so that more training is not mistaken for adaptation.
"""

import copy
import math
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import timm
import torch
import typer
from pages.marks import write_tables
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from torch import nn
from torch.nn import functional as F

import infsa
from infsa.conversion import save_converted
from infsa.data.mixing import mix_pairs
from infsa.data.order import Order
from infsa.evaluate.accuracy import measure_accuracy
from infsa.files import read_json, write_atomically, write_json
from infsa.provenance import provenance
from infsa.train.adapt import adapt
from infsa.train.adaptation import Adaptation
from infsa.train.feed import Feed, open_splits
from infsa.train.module import smoothed
from infsa.train.recipe import Recipe

SHAPE = {"img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3, "class_token": True}
WAYS = {
    "pure": {"variant": "pure"},
    "linear": {"variant": "linear"},
    "linear, surgery": {"variant": "linear", "level": "surgery"},
}
app = typer.Typer(add_completion=False)


def base_recipe(data: str, epochs: int, device: torch.device, options: dict[str, Any]) -> Recipe:
    """How the softmax model is trained: the recipe of the Tiny-ImageNet comparison, shorter."""
    cuda = device.type == "cuda"
    return Recipe(
        data=data, data_options=options, epochs=epochs, batch_size=256 if cuda else 32,
        optimizer="nmuon", lr=2e-3, warmup_epochs=min(3.0, epochs / 4), weight_decay=0.2, beta2=0.95, clip_norm=1.0,
        label_smoothing=0.1, mixup=0.4, cutmix=1.0, mix_prob=0.8, image_size=64, val_resize=64, crop_min=0.25,
        jitter=(0.4, 0.4, 0.4), interpolation="bilinear", loader="resident", compile="on" if cuda else "off",
        precision="bf16-mixed" if cuda else "32-true",
    )  # fmt: skip


def train_softmax(model: nn.Module, recipe: Recipe, feed: Feed, order: Order, classes: int) -> float:
    """Train with mixed labels; return the seconds."""
    began = time.perf_counter()
    optimizer = create_optimizer_v2(
        model, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay, betas=(0.9, recipe.beta2)
    )
    run: Any = torch.compile(model) if recipe.compile == "on" else model
    model.train()
    for step, (images, labels) in enumerate(feed.training(0, recipe.epochs * order.steps_per_epoch)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step, order.steps_per_epoch)
        targets = smoothed(labels, classes, recipe.label_smoothing)
        images, targets = mix_pairs(
            images, targets, mixup=recipe.mixup, cutmix=recipe.cutmix, prob=recipe.mix_prob, key=(recipe.seed, step)
        )
        with torch.autocast(feed.device.type, torch.bfloat16, enabled=recipe.precision == "bf16-mixed"):
            loss = F.cross_entropy(run(images).float(), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
    if feed.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def smaller_shard(shard: Path, images: int, out: Path) -> Path:
    """A shard of the first images of every class: so many for training, half as many for validation."""
    with np.load(shard, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive}
    classes, rows = len(arrays["name"]), []
    if images < 2 * classes:
        raise typer.BadParameter(f"--images must be at least {2 * classes}, two per class, got {images}")
    for label in range(classes):
        for is_val, count in ((False, images // classes), (True, images // (2 * classes))):
            rows.append(np.flatnonzero((arrays["label"] == label) & (arrays["is_val"] == is_val))[:count])
    chosen, offset = np.sort(np.concatenate(rows)), arrays["offset"]
    parts = [arrays["jpeg"][offset[row] : offset[row + 1]] for row in chosen]
    ends = np.cumsum([0, *map(len, parts)])
    kept = {name: arrays[name][chosen] for name in ("label", "box", "is_val")}
    kept |= {"jpeg": np.concatenate(parts), "offset": ends, "wnid": arrays["wnid"], "name": arrays["name"]}
    path = out / f"{shard.stem}-{images}.npz"
    write_atomically(path, lambda aside: np.savez(aside.open("wb"), **kept))
    return path


def load_shipped(model: VisionTransformer, classes: list[str]) -> None:
    """Fill timm's model with the weights that the package ships for vit_tiny: its names and shapes are timm's."""
    shipped = infsa.create_model("vit_tiny", pretrained=True)
    if shipped.pretrained_cfg["label_names"] != classes:  # type: ignore[index]
        raise typer.BadParameter(
            f"--start shipped needs the shard that vit_tiny was trained on, got {classes[0]!r}, ..."
        )
    model.load_state_dict(shipped.state_dict())


@app.command()
def run(
    shard: Annotated[str, typer.Argument(help="An npz shard, or the word shapes for a trial without data.")],
    out: Path,
    start: Annotated[
        str, typer.Option(help="train: a base with softmax first; shipped: the weights of vit_tiny.")
    ] = "train",
    epochs: Annotated[int | None, typer.Option(help="Of training with softmax; 40 unless told.")] = None,
    layer_epochs: int = 4,
    logit_epochs: int = 12,
    label_epochs: int = 4,
    images: Annotated[
        int | None, typer.Option(help="Of training, half as many of validation; all unless told.")
    ] = None,
    only: Annotated[str, typer.Option(help="Ways of conversion, with semicolons.")] = ";".join(WAYS),
    seed: int = 0,
) -> None:
    """Train or load a softmax model, convert it, adapt it."""
    if start not in ("train", "shipped"):
        raise typer.BadParameter(f"--start is train or shipped, got {start!r}")
    if start == "shipped" and epochs is not None:
        raise typer.BadParameter(f"--epochs is for --start train: the shipped weights are trained, got {epochs}")
    if unknown := set(only.split(";")) - WAYS.keys():
        raise typer.BadParameter(f"--only knows {'; '.join(WAYS)}, got {min(unknown)!r}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    out.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"length": images or 256} if shard == "shapes" else {}
    path = smaller_shard(Path(shard), images, out) if images and shard != "shapes" else shard
    data = shard if shard == "shapes" else f"npz:{path}"
    recipe = base_recipe(data, epochs or 40, device, options).override({"seed": seed})
    train_set, val_set = open_splits(recipe)
    classes = len(train_set.classes)
    torch.manual_seed(seed)
    model = VisionTransformer(**SHAPE, num_classes=classes, drop_path_rate=0.1).to(device)
    weights = out / "softmax.safetensors"
    if not weights.exists():
        seconds = 0.0
        if start == "shipped":
            load_shipped(model, train_set.classes)
        else:
            order = Order(len(train_set), recipe.batch_size, seed)
            feed = Feed(recipe, train_set, val_set, model, order, device)
            seconds = train_softmax(model, recipe, feed, order, classes)
        facts = {"start": start, "seconds": seconds, "shape": SHAPE, "images": len(train_set)}
        facts |= {"recipe": {**recipe.as_dict(), "data": Path(data).name}} if start == "train" else {}
        write_json({**facts, "timm": timm.__version__, "made_with": provenance(device)}, out / "softmax.json")
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        write_atomically(weights, lambda aside: save_file(state, aside))
    elif (begun := read_json(out / "softmax.json")["start"]) != start:
        raise typer.BadParameter(f"{out} was begun with --start {begun}, got {start}")
    model.load_state_dict(load_file(weights))
    rate = math.sqrt(recipe.batch_size / 256)  # what small batches take off the rates
    if not (out / "control.json").exists():
        total = layer_epochs + logit_epochs + label_epochs
        longer = recipe.override({"epochs": total, "lr": 2e-4 * rate, "optimizer": "adamw", "warmup_epochs": 1})
        control, order = copy.deepcopy(model), Order(len(train_set), recipe.batch_size, seed)
        feed = Feed(longer, train_set, val_set, control, order, device)
        seconds = train_softmax(control, longer, feed, order, classes)
        found = measure_accuracy(control.eval(), feed.val, train_set.classes, device)
        write_json({"top1": found.top1, "seconds": seconds, "epochs": longer.epochs}, out / "control.json")
    for way in only.split(";"):
        torch.manual_seed(seed)
        folder = out / way.replace(", ", "-")
        converted = infsa.convert(model, learn_gamma=True, **WAYS[way]).to(device)  # type: ignore[arg-type]
        plan = Adaptation(
            data=data, data_options=options, seed=seed, layer_epochs=layer_epochs,
            logit_epochs=logit_epochs, label_epochs=label_epochs, layer_lr=1e-3 * rate, logit_lr=1e-3 * rate,
            label_lr=2e-4 * rate,
            mixup=0.4, cutmix=1.0, image_size=64, crop_min=0.25, interpolation="bilinear", loader="resident", workers=2,
            batch_size=recipe.batch_size, precision=recipe.precision, weight_decay=0.05,
        )  # fmt: skip
        result = adapt(model, converted, plan, folder, resume=True)
        save_converted(converted, folder / "model.safetensors")
        print(way, *(f"{row['stage']} {row['top1']:.2%}" for row in result["history"]), sep="  ", flush=True)


@app.command()
def collect(out: Path, to: Path) -> None:
    """Join the results of all ways into one file."""
    rows = {name: read_json(out / f"{name}.json") for name in ("softmax", "control")}
    for way in WAYS:
        path = out / way.replace(", ", "-") / "result.json"
        if path.exists():
            rows[way] = read_json(path)
            rows[way]["plan"]["data"] = Path(rows[way]["plan"]["data"]).name
    write_json(rows, to)
    print(table(rows))


def table(rows: dict[str, Any]) -> str:
    """Top-1 after every stage and the seconds of adaptation, in Markdown, with what they were measured on."""
    stages = ("original", "converted", "layers", "logits", "labels")
    first, made = next(rows[way] for way in WAYS if way in rows), rows["softmax"]["made_with"]
    plan, start = first["plan"], first["history"][0]
    error = 100 * math.sqrt(start["top1"] * (1 - start["top1"]) / start["images"])
    epochs = ", ".join(f"{stage} {plan[f'{stage[:-1]}_epochs']}" for stage in stages[2:])
    machine = made.get("gpu") or f"{made['cpu']}, {made['threads']} threads"
    lines = [
        f"{rows['softmax']['images']} training images; epochs: {epochs}; {start['images']} held-out images, standard "
        f"error {error:.1f}; {machine}.",
        "",
        "| conversion | " + " | ".join(stages) + " | seconds |",
        "| --- |" + " --- |" * (len(stages) + 1),
    ]
    for way in (name for name in WAYS if name in rows):
        found = {row["stage"]: row for row in rows[way]["history"]}
        cells = [f"{100 * found[stage]['top1']:.1f}" if stage in found else "" for stage in stages]
        lines.append(f"| {way} | " + " | ".join(cells) + f" | {rows[way]['seconds']:.0f} |")
    control = rows["control"]
    lines.append("")
    lines.append(f"Control: softmax trained {control['epochs']} more epochs, {100 * control['top1']:.1f}.")
    return "\n".join(lines) + "\n"


@app.command()
def document() -> None:
    """Fill in the table of docs/conversion.md from results/adaptation.json."""
    root = Path(__file__).parents[1]
    rows = read_json(root / "benchmarks" / "results" / "adaptation.json")
    write_tables(root / "docs" / "conversion.md", {"adaptation": table(rows)})


if __name__ == "__main__":
    app()
