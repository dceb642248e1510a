"""``fast`` on images of all sizes: no size is compiled for, none is slower than if it were the only one.

    python benchmarks/any_size.py --out benchmarks/results/any-size-h200.json
    python benchmarks/any_size.py --tiny --out tiny.json      # anywhere: a small model, times that mean nothing

Linear InfViT-4L of width 1024, 64 heads, bfloat16. 24 sizes between 1 and 85 megapixels come in random order, three
rounds; every call has a new image and is timed by itself until the GPU is done. Beside it, the median of repeated
calls of a model that never sees another size. Then: memory over 200 further sizes, one size in 8 bits and not, and how
long a new process takes to its first result, with and without the kernels on disk.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from kernel_checks import DEVICE, GPU
from models import at_least, built, distance, intervals, pictures, synchronize

from infsa.files import write_json
from infsa.models import fast
from infsa.provenance import provenance

SMALLEST, LARGEST = 1e6, 85e6  # pixels
FIXED = {1024: 0.68, 4096: 8.7, 9216: 37.0}  # side: at most so many milliseconds
EIGHT_BITS = {9216: 29.0}
START = """
import time; begin = time.perf_counter()
import torch, infsa
model = infsa.create_model("infvit_linear_4l64h_patch16_224", num_classes=1000, device=DEVICE, dtype=torch.bfloat16)
quick, images = infsa.models.fast(model.eval()), torch.randn(1, 3, SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
ready = time.perf_counter()
with torch.no_grad():
    quick(images).cpu()
print(ready - begin, time.perf_counter() - ready)
"""


def sizes(count, seed, smallest=SMALLEST, largest=LARGEST, step=16):
    """(height, width) with areas spread evenly over the logarithm, sides in a ratio of up to 2."""
    draw = random.Random(seed)
    found = []
    for index in range(count):
        area = smallest * (largest / smallest) ** ((index + draw.random()) / count)
        ratio = 2 ** draw.uniform(-1, 1)
        found.append(tuple(max(step, step * round((area * r) ** 0.5 / step)) for r in (ratio, 1 / ratio)))
    draw.shuffle(found)
    return found


def drawn(size):
    """One image of a size."""
    g = torch.Generator(DEVICE).manual_seed(size[0])
    return torch.randn(1, 3, *size, generator=g, device=DEVICE, dtype=torch.bfloat16)


def timed(run, images):
    """Logits, and seconds until they are there."""
    synchronize()
    begin = time.perf_counter()
    found = run(images)
    synchronize()
    return found, time.perf_counter() - begin


def rounds(model, chosen, repeats):
    """Seconds of the first, second and third call of every size, and of a model that sees only that size."""
    quick, draw = fast(model), random.Random(1)
    quick(drawn((224, 224)))  # the first call ever
    rows = {f"{h}x{w}": {"megapixels": h * w / 1e6, "calls_s": []} for h, w in chosen}
    for _ in range(3):
        for h, w in draw.sample(chosen, len(chosen)):
            rows[f"{h}x{w}"]["calls_s"].append(timed(quick, drawn((h, w)))[1])
    for h, w in chosen:
        images, alone, row = drawn((h, w)), fast(model), rows[f"{h}x{w}"]
        found = alone(images)
        row["alone_s"] = sorted(timed(alone, drawn((h, w)))[1] for _ in range(repeats))[repeats // 2]
        row["distance"] = distance(found.double(), model(images).double())
        row["ratio"] = sorted(row["calls_s"][1:])[0] / row["alone_s"]
        row["second_ratio"] = row["calls_s"][1] / row["alone_s"]
    return rows, quick


def growth(quick, count, largest):
    """Memory before and after many further sizes."""
    chosen, found = sizes(count, 3, largest=largest), []
    for index, size in enumerate(chosen):
        quick(drawn(size))
        if (index + 1) % max(1, count // 4) == 0 and GPU:
            synchronize()
            held = quick.graph_memory()
            memory = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
            found.append({"sizes": index + 1, **memory, **held})
    return found


def fixed(model, side, fp8, repeats):
    """Milliseconds of one size, called again and again, and how far its logits are from the model's."""
    quick, images = fast(model, fp8=fp8), pictures(side)
    quick(images)
    medians = [sorted(intervals(lambda: quick(images), repeats))[repeats // 2] for _ in range(2)]
    return {"ms": sum(medians) / 2, "spread": abs(medians[0] - medians[1]), **quick.error(images)}


def starts(side):
    """Seconds until a new process has a model, and then a result: with kernels to be compiled, and on disk."""
    found = {}
    code = START.replace("DEVICE", repr(DEVICE)).replace("SIDE", str(side))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first ever", "kernels on disk"):
            environment = os.environ | {"TRITON_CACHE_DIR": folder}
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            ready, first = map(float, done.stdout.split())
            found[name] = {"ready_s": ready, "first_result_s": first}
    return found


def bars(report):
    """Every bar with what was asked (at most) and found; one without its row is not met."""
    rows = report["sizes"].values()
    found = {
        "second call / a model of that size alone, worst": (1.15, max(row["second_ratio"] for row in rows)),
        "first call of a new size, worst, s": (0.3, max(row["calls_s"][0] for row in rows)),
    }
    for name, row in report["fixed"].items():
        asked = (EIGHT_BITS if name.endswith("fp8") else FIXED)[int(name.split()[0])]
        found[f"{name}, ms"] = (asked, row["ms"])
    if report["growth"]:
        found["allocated after the last size / after a quarter"] = (
            1.02,
            report["growth"][-1]["allocated"] / report["growth"][0]["allocated"],
        )
    return {
        name: at_least(1.0, asked, value) | {"at_most": asked, "value": value} for name, (asked, value) in found.items()
    }


@torch.no_grad()
def measure(tiny, count, further, repeats, keep):
    """The whole report; ``keep`` gets it after every part."""
    model, scale = built("linear", tiny), 1e-3 if tiny else 1
    report = {"tiny": tiny, "provenance": provenance(DEVICE), "fixed": {}, "sizes": {}, "growth": []}
    for side, fp8 in [(side, False) for side in FIXED] + [(side, True) for side in EIGHT_BITS]:
        name = f"{side} fp8" if fp8 else f"{side}"
        report["fixed"][name] = fixed(model, side // 32 if tiny else side, fp8, repeats)
        keep(report)
    report["sizes"], quick = rounds(model, sizes(count, 0, SMALLEST * scale, LARGEST * scale), repeats)
    keep(report)
    report["growth"] = growth(quick, further, LARGEST * scale)
    keep(report)
    report["start"] = starts(64 if tiny else 1024)
    report["bars"] = bars(report)
    keep(report)
    return report


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    count: Annotated[int, typer.Option(help="Sizes in the rounds.")] = 24,
    further: Annotated[int, typer.Option(help="Sizes over which memory is watched.")] = 200,
    repeats: Annotated[int, typer.Option(help="Calls of a size by itself.")] = 11,
    tiny: Annotated[bool, typer.Option(help="A small model and small images, on any device.")] = False,
) -> None:
    """Measure, and print each bar as met or missed.

    Example: python benchmarks/any_size.py --out any-size.json
    """
    if not (GPU or tiny):
        raise typer.BadParameter("needs a CUDA device, or --tiny")
    report = measure(tiny, count, further, repeats, lambda report: write_json(report, out))
    for size, row in report["sizes"].items():
        print(size, json.dumps({name: np.round(value, 4).tolist() for name, value in row.items()}))
    for name in ("fixed", "growth", "start"):
        print(name, json.dumps(report[name]))
    for bar, found in report["bars"].items():
        print(
            f"{'met   ' if found['met'] else 'MISSED'} {bar}: {found['value']:.4g}, asked at most {found['at_most']:g}"
        )


if __name__ == "__main__":
    typer.run(main)
