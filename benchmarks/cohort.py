"""A table of embeddings against a hand-written loop, and over one and two workers.

    python benchmarks/cohort.py                              measure, write results/cohort.json and docs/scale.md
    python benchmarks/cohort.py --images 64 --rounds 1 --out /tmp/cohort.json --document ""       a quick trial

The loop decodes, normalises and stacks images and calls the model, as one would write it in a notebook: batches of
neighbours of one size. Loop and table take turns, and the ratio is that of each round: other work on the machine slows
both. Times of the table include hashing, headers and writing; opening the model is in neither. The model runs on
one thread everywhere; the rates of workers are those between their first and last unit, without the start of processes.
Processor seconds are the time that all threads were given: what is left where other work has the cores.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages.marks import write_tables
from PIL import Image
from torchvision.transforms import functional as F

from infsa.cohort.run import Cohort
from infsa.cohort.settings import Settings
from infsa.evaluate import data_config, load_model
from infsa.models import save_weights

ROOT = Path(__file__).parents[1]
MODEL, BATCH, SEED = "infvit_linear_tiny", 32, 0
MIXED = 40  # sizes
SLIDES, SIDE, GPUS = 10_000, 50_000, 8
PASSES = {"spill": 1, "recompute": 8}  # over the pixels: two per layer unless tokens are kept
PATCH, WIDTH = 16, 1024  # of infvit_linear_4l64h_patch16_224
MANY = 4  # times as many images for workers, who need several units each


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    print(table(result))
    Path(options.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.document:
        write_tables(Path(options.document), {"cohort": table(result), "slides": slides()})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--side", type=int, default=96, help="of the images of equal size; the mixed ones are around it"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "cohort.json"))
    parser.add_argument("--document", default=str(ROOT / "docs" / "scale.md"), help='"" leaves the document alone')
    return parser.parse_args()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    sets = {"equal": draw(folder / "equal", options, 1), "mixed": draw(folder / "mixed", options, MIXED)}
    many = draw(folder / "many", options, MIXED, MANY)
    network = load_model(MODEL, options.device)
    model = str(save_weights(network, folder / "model"))
    rows = []
    for name, place in sets.items():
        rounds = []
        for number in range(options.rounds + 1):
            found = {
                "loop": timed(lambda place=place: loop(network, place)),
                "table": run(place, model, [options.device], folder),
            }
            rounds += [found] if number else []  # the first warms up
            print(name, {kind: round(value["seconds"], 2) for kind, value in found.items()}, flush=True)
        rows.append({"images": name, "rounds": rounds})
    workers = [
        {
            "workers": count,
            "rounds": [run(many, model, [options.device] * count, folder) for _ in range(options.rounds)],
        }
        for count in (1, 2)
    ]
    return {
        "config": {"model": MODEL, "images": options.images, "many": MANY * options.images, "side": options.side,
                   "device": options.device, "batch": BATCH, "sizes": MIXED, "precision": "float32", "seed": SEED},
        "machine": {"processor": processor(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "versions": {name: version(name) for name in ("torch", "timm", "pyarrow", "pillow")},
        "rows": rows, "workers": workers,
    }  # fmt: skip


def draw(folder: Path, options: argparse.Namespace, sizes: int, times: int = 1) -> Path:
    """JPEGs of smooth noise: of one size, or of several in turn."""
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    shapes = [tuple(rng.integers(options.side - 32, options.side + 32, 2)) for _ in range(sizes)]
    for number in range(times * options.images):
        width, height = shapes[number % sizes] if sizes > 1 else (options.side, options.side)
        small = Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8))
        small.resize((int(width), int(height)), Image.Resampling.BICUBIC).save(folder / f"{number:05d}.jpg", quality=90)
    return folder


def timed(work: Any) -> dict[str, float]:
    """Seconds, and processor seconds of this process."""
    began, before = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - before}


@torch.inference_mode()
def loop(network: Any, folder: Path) -> dict[str, Any]:
    """The class tokens and logits of all images, in batches of neighbours of one size."""
    config, found = data_config(network), {}
    for _, same in groupby(sorted(folder.iterdir()), key=lambda path: Image.open(path).size):
        files = list(same)
        for start in range(0, len(files), BATCH):
            part = files[start : start + BATCH]
            images = [
                F.normalize(F.to_tensor(Image.open(p).convert("RGB")), config["mean"], config["std"]) for p in part
            ]
            images = [torch.nn.functional.pad(x, (0, -x.shape[2] % 8, 0, -x.shape[1] % 8)) for x in images]
            tokens = network.forward_features(torch.stack(images).to(next(network.parameters()).device))
            logits = network.forward_head(tokens)
            vectors = zip(part, tokens[:, 0].cpu().numpy(), logits.cpu().numpy(), strict=True)
            found |= {path.name: (token, scores) for path, token, scores in vectors}
    return found


def run(folder: Path, model: str, devices: list[str], scratch: Path) -> dict[str, float]:
    """A table of all images, with the rate from the first unit to the last."""
    out = scratch / "table.parquet"
    cohort = Cohort([folder], model, devices, None, Settings(batch_size=BATCH))
    marks: list[tuple[float, int]] = []
    found = timed(lambda: cohort.run(out, progress=lambda at: marks.append((time.perf_counter(), at.done))))
    for path in scratch.glob("table.*"):
        path.unlink()
    (first, before), (last, after) = marks[0], marks[-1]
    return {**found, "steady_images_per_second": (after - before) / (last - first) if after > before else 0.0}


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    machine, config = result["machine"], result["config"]
    count = config["images"]
    lines = ["| image sizes | loop, images/s | `infsa embed`, images/s | speed-up | CPU time, loop ÷ embed |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in result["rows"]:
        loops, tables = ([r[kind] for r in row["rounds"]] for kind in ("loop", "table"))
        rates = [statistics.median(count / one["seconds"] for one in found) for found in (loops, tables)]
        ratios = [
            statistics.median(one[kind] / other[kind] for one, other in zip(loops, tables, strict=True))
            for kind in ("seconds", "processor")
        ]
        cells = [row["images"], *(f"{rate:.0f}" for rate in rates), *(f"{ratio:.2f}×" for ratio in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    rates = {
        row["workers"]: statistics.median(r["steady_images_per_second"] for r in row["rounds"])
        for row in result["workers"]
    }
    told = ", ".join(f"{rate:.0f} images/s with {workers}" for workers, rate in rates.items())
    gain = rates[max(rates)] / rates[min(rates)]
    where = f"{machine['cores']} cores of {machine['processor']}, load average {machine['load']:.0f}"
    what = f"{count} JPEGs of {config['side']} pixels, or of {config['sizes']} sizes around it"
    lines += ["", f"Workers ({config['many']:,} images, one thread each): {told} ({gain:.2f}×)."]
    lines += ["", f"`{config['model']}`, {what}; {where}.", ""]
    return "\n".join(lines)


def slides() -> str:
    """A cohort of slides on several GPUs by arithmetic from streaming-gpu.json, as Markdown."""
    from streaming import strategy_of

    measured = json.loads((ROOT / "benchmarks" / "results" / "streaming-gpu.json").read_text(encoding="utf-8"))["gpu"]
    size = SIDE**2 / 1e6
    lines = ["| strategy | one slide | all slides | decoding per GPU | tokens kept |", "| --- " * 5 + "|"]
    for row in measured["rows"]:
        if row["dtype"] == "torch.bfloat16" and row["run"] in PASSES:
            rate, reads = row["seconds_per_megapixel"], PASSES[row["run"]]
            kept = size * 1e6 / PATCH**2 * WIDTH * 2 / 1e9 if row["run"] == "spill" else 0
            hours = rate * size * SLIDES / GPUS / 3600
            cells = [strategy_of(row), f"{rate * size:.0f} s", f"{hours:.1f} h", f"{reads / rate:.0f} megapixels/s"]
            lines.append(f"| {' | '.join([*cells, f'{kept:.0f} GB'])} |")
    what = f"{SLIDES:,} slides of {SIDE:,} × {SIDE:,} pixels on {GPUS} GPUs, bfloat16"
    return "\n".join([*lines, "", f"{what}.", ""])


if __name__ == "__main__":
    main()
