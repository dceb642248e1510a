"""Whole models on one GPU: the fast path of Linear and Pure InfViT-4L against a ViT on fused softmax, in one run.

    python benchmarks/models.py --out benchmarks/results/models-h200.json

bfloat16, batch 1. Every model is compiled; "eager" rows show what that is worth. A time is the median of two medians,
their distance the spread. The floor is what the matrix products of the whole model would take at 700 TFLOP/s, the last
layer's MLP over all tokens included, although the fast path needs it for one.
"""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.nn import functional as F

import infsa
from infsa.files import write_json
from infsa.models import fast
from infsa.provenance import provenance

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
NAMES = {
    "linear": "infvit_linear_4l64h_patch16_224",
    "pure": "infvit_pure_4l16h_patch16_224",
    "vit": "vit_4l16h_patch16_224",
}
CASES = [  # (model, way, mode, pixels a side)
    ("linear", "fast", "infer", 9216),
    ("linear", "fast", "infer", 1024),
    ("vit", "fast", "infer", 1024),
    ("linear", "fast", "train", 4096),
    ("vit", "fast", "train", 4096),
    ("linear", "fast", "infer", 4096),
    ("vit", "fast", "infer", 4096),
    ("pure", "fast", "infer", 4096),
    ("pure", "fast", "infer", 9216),
    ("linear", "fp8", "infer", 4096),
    ("linear", "eager", "infer", 1024),
    ("vit", "eager", "infer", 1024),
    ("linear", "eager", "infer", 9216),
    ("linear", "fp8", "infer", 9216),
]
BARS = {  # name: (row, row it is compared with or None for the floor, ratio that is asked)
    "Linear 9216²: floor / time": ("linear fast infer 9216", None, 1 / 1.3),
    "Linear 1024²: floor / time": ("linear fast infer 1024", None, 1 / 1.5),
    "Linear 1024² against the ViT": ("linear fast infer 1024", "vit fast infer 1024", 2.0),
    "Linear 4096² training against the ViT": ("linear fast train 4096", "vit fast train 4096", 15.0),
    "Pure 4096² against the ViT": ("pure fast infer 4096", "vit fast infer 4096", 1.0),
}


def median_ms(call, most):
    """Two medians of repeated calls within about `most` seconds: their mean, their distance."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    repeats = int(min(200, max(3, most / 2 / (time.perf_counter() - begin))))
    medians = []
    for _ in range(2):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        medians.append(sorted(a.elapsed_time(b) for a, b in pairwise(marks))[repeats // 2])
    return {"ms": sum(medians) / 2, "spread": abs(medians[0] - medians[1]), "repeats": 2 * repeats}


def floor_ms(model, pixels):
    """Matrix products of patches, tokens and MLPs over all tokens at 700 TFLOP/s, in ms; attention scores left out."""
    tokens = (pixels // 16) ** 2 + 1
    projections = {"linear": 1, "pure": 4, "vit": 4}[model] * 1024 * 1024
    return 2 * tokens * (768 * 1024 + 4 * (projections + 2 * 1024 * 4096)) / 700e9


def call_of(name, way, mode, images):
    model = infsa.create_model(NAMES[name], num_classes=1000).to(DEVICE, torch.bfloat16).eval()
    run = model if way == "eager" else fast(model, fp8=way == "fp8").eval()
    if mode == "infer":
        return torch.no_grad()(lambda: run(images)), run
    model.train()
    label = torch.zeros(1, dtype=torch.long, device=DEVICE)

    def step():
        model.zero_grad(set_to_none=True)
        F.cross_entropy(run(images).float(), label).backward()

    return step, run


def measure(name, way, mode, pixels, most):
    torch.manual_seed(0)
    torch._dynamo.reset()
    images = torch.randn(1, 3, pixels, pixels, device=DEVICE, dtype=torch.bfloat16)
    row = {"model": NAMES[name], "way": way, "mode": mode, "pixels": pixels, "floor_ms": floor_ms(name, pixels)}
    try:
        call, run = call_of(name, way, mode, images)
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        row["first_call_s"] = time.perf_counter() - begin
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        row |= median_ms(call, most)
        row |= {"peak_bytes": torch.cuda.max_memory_allocated(), "held_bytes": before}
        if way != "eager" and mode == "infer" and pixels <= 4096:
            row["error"] = run.error(images)  # against the model as it is, in the same type
    except RuntimeError as error:
        row["failed"] = str(error).splitlines()[0][:200]
    torch.cuda.empty_cache()
    return row


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write, after every row.")],
    budget: Annotated[float, typer.Option(help="Seconds after which no further row is begun.")] = 600,
    most: Annotated[float, typer.Option(help="Seconds for the repeats of a row.")] = 2,
) -> None:
    """Measure, and print each bar as met or missed."""
    if not GPU:
        raise typer.BadParameter("needs a CUDA device")
    begin, rows = time.perf_counter(), {}
    for case in CASES:
        name = " ".join(map(str, case))
        left = time.perf_counter() - begin < budget
        rows[name] = measure(*case, most) if left else {"failed": "not run: budget"}
        bars = {bar: judged(rows, *what) for bar, what in BARS.items()}
        write_json({"rows": rows, "bars": bars, "provenance": provenance(DEVICE)}, out)
        print(
            name,
            json.dumps({k: rows[name][k] for k in rows[name] if k not in ("model", "way", "mode", "pixels")}),
            flush=True,
        )
    for bar, found in bars.items():
        print(f"{bar}: {json.dumps(found)}")


def judged(rows, own, other, asked):
    """The ratio of times (the other's over ours), and whether it reaches what is asked."""
    own, other = rows.get(own, {}), rows.get(own if other is None else other, {})
    numerator = other.get("floor_ms" if own is other else "ms")
    if "ms" not in own or numerator is None:
        return {"asked": asked, "ratio": None, "met": False}
    ratio = numerator / own["ms"]
    return {"asked": asked, "ratio": ratio, "met": ratio >= asked}


if __name__ == "__main__":
    typer.run(main)
