"""Images per second of the loader and of training on this machine: does loading keep up?

    python benchmarks/feeding.py --npz shard.npz      measure, write results/feeding.json and the table in docs/data.md
    python benchmarks/feeding.py --seconds 1 --out /tmp/feeding.json --document ""                       a quick trial

Each figure is the median of several windows of time. "loader" draws batches and drops them; "step" is forward,
backward and AdamW on a batch that stays in memory; "fed" is that step on batches from the loader, which shares the
cores with it. The step is measured again after every loader. Where windows of one figure differ by more than a fifth,
other work had the cores and nothing is written: two threads that wait for each other lose far more than a fair share to
a third, so the comparison would mean nothing.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import infsa
from infsa.data import ImageDataset, NpzShard, Shapes, TrainTransform, Views, collate

ROOT = Path(__file__).parents[1]
MODEL, SIZE, BATCH = "infvit_linear_tiny", 64, 128
STEADY = 0.8  # lowest over highest figure of the same thing
MARKS = "<!-- feeding: drawn by benchmarks/feeding.py -->\n", "<!-- /feeding -->\n"


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    result = measure(options)
    print(table(result))
    if wavering := unsteady(result):
        raise SystemExit(f"the machine was busy, measure again: {'; '.join(wavering)}")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    if options.document:
        update(Path(options.document), table(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npz", help="a shard of 64 px JPEGs; drawn from shapes if not given")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "feeding.json"))
    parser.add_argument("--document", default=str(ROOT / "docs" / "data.md"), help='"" leaves the document alone')
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every rate, and what it was measured on."""

    def rates(step: Callable[[], int]) -> list[int]:
        return windows(step, options.seconds, options.windows)

    train = training_step(classes=1000)
    fixed = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(10, (BATCH,))
    steps, rows = rates(lambda: train(*fixed)), []
    with tempfile.TemporaryDirectory() as folder:
        shard = NpzShard(options.npz or write_shard(Path(folder) / "shapes.npz"))
        for name, dataset in (("shapes, drawn on the fly", Shapes(SIZE)), ("npz shard of JPEGs", shard)):
            for workers in options.workers:
                batches = endless(dataset, workers)
                row = {"data": name, "workers": workers}
                row["loader"] = rates(lambda batches=batches: len(next(batches).labels))
                row["fed"] = rates(lambda batches=batches: train(*next(batches)[:2]))
                rows.append(row)
                del batches  # ends its workers
                steps += rates(lambda: train(*fixed))
    config = {"model": MODEL, "size": SIZE, "batch": BATCH, "seconds": options.seconds, "windows": options.windows}
    config |= {"transform": "TrainTransform: crop, mirror image, jitter 0.4", "precision": "float32", "seed": 0}
    config |= {"shard": "given" if options.npz else "drawn from shapes", "bytes_per_jpeg": round(jpeg_size(shard))}
    return {"config": config, "machine": machine(), "versions": versions(), "step": steps, "rows": rows}


def windows(step: Callable[[], int], seconds: float, count: int) -> list[int]:
    """Images per second in each of several windows of time, after two steps that do not count."""
    step(), step()
    rates = []
    for _ in range(count):
        images, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            images += step()
        rates.append(round(images / spent))
    return rates


def unsteady(result: dict[str, Any]) -> list[str]:
    """The figures whose windows differ too much."""
    named = {"step": result["step"]}
    for row in result["rows"]:
        named |= {f"{kind}, {row['data']}, {row['workers']} workers": row[kind] for kind in ("loader", "fed")}
    return [f"{name}: {rates} images/s" for name, rates in named.items() if min(rates) < STEADY * max(rates)]


def training_step(classes: int) -> Callable[..., int]:
    """One optimiser step of the model on a batch; returns the number of images."""
    model = infsa.create_model(MODEL, num_classes=classes).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

    def step(images: torch.Tensor, labels: torch.Tensor) -> int:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return len(labels)

    return step


def endless(dataset: ImageDataset, workers: int) -> Iterator[Any]:
    views = Views(dataset, TrainTransform(SIZE))
    loader = DataLoader(
        views,
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(0),
    )
    while True:
        yield from loader


def write_shard(path: Path, images: int = 4096) -> Path:
    """A shard of JPEGs drawn from shapes."""
    files, shapes = [], Shapes(SIZE, length=images)
    for sample in shapes:
        stream = BytesIO()
        sample.image.save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    np.savez(
        path,
        jpeg=np.frombuffer(b"".join(files), np.uint8),
        offset=np.cumsum([0, *map(len, files)]),
        label=np.arange(images) % len(shapes.classes),
        box=np.concatenate([shapes[i].boxes - (0, 0, 1, 1) for i in range(images)]).astype(np.int16),
        is_val=np.zeros(images, bool),
        wnid=np.array(shapes.classes),
        name=np.array(shapes.classes),
    )
    return path


def jpeg_size(shard: NpzShard) -> float:
    return float(np.diff(shard.offset).mean())


def machine() -> dict[str, Any]:
    names = [line.split(":")[1].strip() for line in cpu_lines() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": torch.get_num_threads()}


def cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def versions() -> dict[str, str]:
    names = ("infsa", "torch", "torchvision", "timm", "numpy", "pillow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def table(result: dict[str, Any]) -> str:
    """The result as a table of the documentation."""
    step = statistics.median(result["step"])
    lines = ["| data | workers | loading only, images/s | training, images/s | relative to memory |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        loader, fed = statistics.median(row["loader"]), statistics.median(row["fed"])
        cells = (row["data"], row["workers"], f"{loader:.0f}", f"{fed:.0f}", f"{fed / step:.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    machine, config = result["machine"], result["config"]
    lines += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores; torch {result['versions']['torch']}; `{config['model']}`",
    ]
    lines[-1] += f" at {config['size']} px, batch {config['batch']}: {step:.0f} images/s from memory."
    return "\n".join(lines) + "\n"


def update(document: Path, text: str) -> None:
    """Put the table between its marks."""
    before, rest = document.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    document.write_text(f"{before}{MARKS[0]}{text}{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
