"""Models as a user meets them first: eager, nothing compiled, training steps and inference, against ViTs in one run.

    python benchmarks/eager.py --out benchmarks/results/eager-h200.json
    python benchmarks/eager.py --quick --out quick.json     # few repeats
    python benchmarks/eager.py --trainer --out trainer.json # a step of `infsa train` alone
    python benchmarks/eager.py --tiny --out tiny.json       # anywhere: small models, times that mean nothing

bfloat16. Whole models: milliseconds of a forward and backward pass, and of inference, in many short turns, because a
host that is slow for a while is then slow for all of them. A block of 24 layers: host microseconds and kernels of a
call at 197 tokens and batch 1, where the GPU waits for the host. Pure attention at 1,024 tokens beside PyTorch's fused
softmax. The time of a model is the median of its turns, the spread their range.

`infsa train` with its recipe `paper` in bf16-mixed, images on the device: milliseconds of a step, once with the default
of `--compile` and once with `off`, and the seconds to the first step. timm's ViT runs in the same trainer.
"""

import contextlib
import gc
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated
from unittest import mock

import timm
import torch
import typer
from kernel_checks import DEVICE, GPU
from kernels import reason
from models import median_ms, synchronize
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import infsa
from infsa.files import write_json
from infsa.nn.infsa import merge_heads, split_heads
from infsa.provenance import provenance
from infsa.train import RECIPES, module, train

SIZES = [(24, 224, 64), (24, 512, 1), (24, 1024, 4), (4, 224, 64), (24, 384, 32), (4, 512, 1)]  # layers, pixels, batch
KINDS = ("linear", "pure", "vit", "timm")
WRITTEN = "written"  # Linear-InfSA as its equations stand, not pooled first; for inference alone
TURNS = 12
TINY = {"embed_dim": 64, "depth": 2, "num_heads": 4}
BARS = {  # (row, mode, kind, beside) -> at most
    "24 layers, 224², batch 64, training: Linear / our ViT": ("24 224 64", "train", "linear", "vit", 0.90),
    "4 layers, 224², batch 64, training: Linear / our ViT": ("4 224 64", "train", "linear", "vit", 0.95),
    "24 layers, 512², batch 1, training: Linear / our ViT": ("24 512 1", "train", "linear", "vit", 1.25),
    "24 layers, 1024², batch 4, training: Linear / our ViT": ("24 1024 4", "train", "linear", "vit", 0.60),
    "24 layers, 512², batch 1, inference: Linear / timm's ViT": ("24 512 1", "infer", "linear", "timm", 1.4),
    "infsa train, 24 layers, 224², batch 64: Linear / timm's ViT": ("trainer", "train", "linear", "timm", 0.85),
    "Pure, 1,024 tokens, forward / SDPA": ("attention", "forward", "pure", "sdpa", 3.5),
    "Pure, 1,024 tokens, forward and backward / SDPA": ("attention", "both", "pure", "sdpa", 2.5),
}


class Written(nn.Module):
    """Linear-InfSA whose values and outputs are projected for every token."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn

    def forward(self, x, **_):
        attn = self.attn
        q, v = (split_heads(layer(x), attn.num_heads) for layer in (attn.q, attn.v))
        row = infsa.linear_attention(q, q, v, gamma=attn.decay(), impl="reference")
        return attn.proj(merge_heads(row.expand_as(v)))


def built(kind, depth, pixels, tiny):
    """A model of one kind, with random weights."""
    torch.manual_seed(0)
    if kind == WRITTEN:
        model = built("linear", depth, pixels, tiny)
        for block in model.blocks:
            block.attn = Written(block.attn)
        return model
    if kind == "timm":
        options = {"img_size": pixels, "depth": depth} | (TINY if tiny else {})
        name = "vit_base_patch16_224" if tiny else "vit_large_patch16_224"
        with torch.device(DEVICE):
            return timm.create_model(name, **options).to(torch.bfloat16)
    heads = "64h" if (kind, depth) == ("linear", 4) else "16h"
    name = f"vit_{depth}l16h" if kind == "vit" else f"infvit_{kind}_{depth}l{heads}"
    options = {"img_size": pixels, "num_classes": 1000} | (TINY if tiny else {})
    with torch.device(DEVICE):
        return infsa.create_model(f"{name}_patch16_224", **options).to(torch.bfloat16)


def model_rows(depth, pixels, batch, most, tiny):
    """Milliseconds of a training step and of inference, and the memory of the former, of all kinds in turns."""
    pixels, batch = (32, 2) if tiny else (pixels, batch)
    images = torch.randn(batch, 3, pixels, pixels, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.zeros(batch, dtype=torch.long, device=DEVICE)

    def step(model):
        for parameter in model.parameters():
            parameter.grad = None
        F.cross_entropy(model(images).float(), labels).backward()

    @torch.no_grad()
    def infer(model):
        model(images)

    models, found = {}, {}
    for kind in KINDS:
        before = torch.cuda.memory_allocated() if GPU else 0
        model = models[kind] = built(kind, depth, pixels, tiny).train()
        for _ in range(3):
            step(model)
        peak = None
        if GPU:
            torch.cuda.reset_peak_memory_stats()
            step(model)
            peak = torch.cuda.max_memory_allocated() - before
        found[kind] = {"train": {"peak_bytes": peak}}
    times = in_turns({kind: partial(step, model) for kind, model in models.items()}, most)
    for kind, model in models.items():
        found[kind]["train"] |= times[kind]
        model.zero_grad(set_to_none=True)
        model.eval()
        for _ in range(3):
            infer(model)
    models[WRITTEN] = built(WRITTEN, depth, pixels, tiny).eval()
    infer(models[WRITTEN])
    times = in_turns({kind: partial(infer, model) for kind, model in models.items()}, most)
    return {kind: found.get(kind, {}) | {"infer": times[kind]} for kind in models}


def in_turns(calls, most):
    """Milliseconds of calls, each for about ``most`` seconds."""
    rounds = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            rounds[name].append(median_ms(call, most / TURNS))
    found = {}
    for name, turns in rounds.items():
        times = [turn["ms"] for turn in turns]
        spread, repeats = max(times) - min(times), sum(turn["repeats"] for turn in turns)
        found[name] = {"ms": statistics.median(times), "spread": spread, "repeats": repeats}
    return found


def host_us(call, most):
    """Microseconds until the host has issued a call, without waiting for what it issued: the best of three rounds."""
    for _ in range(5):
        call()
    synchronize()
    begin = time.perf_counter()
    call()
    repeats = int(min(200, max(3, most / 6 / (time.perf_counter() - begin))))
    rounds = []
    for _ in range(3):
        synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        rounds.append((time.perf_counter() - begin) / repeats)
    synchronize()
    return 1e6 * min(rounds)


def kernels_of(call):
    """How many kernels a call runs, and on the CPU how many operators."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if GPU else [])
    with profile(activities=activities) as found:
        call()
        synchronize()
    kind = torch.autograd.DeviceType.CUDA if GPU else torch.autograd.DeviceType.CPU
    return sum(event.device_type == kind and "Memcpy" not in event.name for event in found.events())


def block_row(kind, most, tiny):
    """Host time and kernels of one block: without gradients, and forward and backward."""
    grid = (4, 4) if tiny else (14, 14)
    block = built(kind, 24, 224 if not tiny else 64, tiny).blocks[0].train()
    width = TINY["embed_dim"] if tiny else 1024
    x = torch.randn(1, grid[0] * grid[1] + 1, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    arguments = () if kind == "timm" else (grid,)
    weights = torch.randn_like(x)

    def both():
        for y in (x, *block.parameters()):
            y.grad = None
        block(x, *arguments).backward(weights)

    @torch.no_grad()
    def forward():
        block(x, *arguments)

    found = {}
    for name, call in (("forward", forward), ("both", both)):
        found[name] = {"us": host_us(call, most), "kernels": kernels_of(call)}
    return found


def attention_row(kind, most, tiny):
    """Milliseconds of Pure InfSA or softmax at 1,024 tokens: forward without gradients, forward and backward."""
    shape = (1, 2, 32, 16) if tiny else (1, 16, 1024, 64)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    weights = torch.randn_like(q)
    run = infsa.pure_attention if kind == "pure" else F.scaled_dot_product_attention

    def both():
        q.grad = k.grad = v.grad = None
        run(q, k, v).backward(weights)

    @torch.no_grad()
    def forward():
        run(q, k, v)

    return {name: {"us": host_us(call, most)} for name, call in (("forward", forward), ("both", both))}


class Enough(Exception):
    """Ends a run that has been timed."""


def trainer_row(kind, choice, most, tiny):
    """Milliseconds of a step of ``infsa train`` from line to line of its log, and what it told about compiling."""
    pixels, batch, per_epoch = (32, 2, 3) if tiny else (224, 64, 5)
    small = TINY if tiny else {}
    fields = {
        "model": "vit_24l16h_patch16_224" if kind == "vit" else "infvit_linear_24l16h_patch16_224",
        "model_options": small, "data": "shapes", "data_options": {"length": per_epoch * batch}, "epochs": 240,
        "batch_size": batch, "image_size": pixels, "val_resize": pixels, "jitter": (0.4, 0.4, 0.4),
        "loader": "resident", "precision": "bf16-mixed", "compile": choice, "val_every": 240, "save_every": 10**6,
    }  # fmt: skip
    begin, first, notes, speeds = [], [], [], []

    def watch(line):
        times = {"start": begin, "step": first}.get(line["kind"])
        if times is not None:
            times.append(time.perf_counter())
        elif line["kind"] == "note":
            notes.append(line["text"])
        elif line["kind"] == "train":
            speeds.append(line["images_per_s"])
            if len(speeds) == 4 + 2 * max(2, round(12 * most)):
                raise Enough

    def timm_model(recipe, classes, *_):
        torch.manual_seed(recipe.seed)
        options = {"img_size": pixels, "num_classes": len(classes), "depth": 24} | small
        return timm.create_model("vit_base_patch16_224" if tiny else "vit_large_patch16_224", **options)

    builder = timm_model if kind == "timm" else module.build_model
    patched = mock.patch.object(module, "build_model", builder)
    with tempfile.TemporaryDirectory() as out, patched, contextlib.suppress(Enough):
        train(RECIPES["paper"].override(fields), out, watch=watch)
    times = [1e3 * batch / speed for speed in speeds[4:]]  # the first lines of the log warm up
    if len(times) < 2:
        raise RuntimeError(f"the training ended after {len(speeds)} lines of its log, too few to time")
    halves = [statistics.median(times[start::2]) for start in (0, 1)]
    found = {"ms": sum(halves) / 2, "spread": abs(halves[0] - halves[1]), "repeats": per_epoch * len(times)}
    return {"train": found, "first_step_s": first[0] - begin[0], "notes": notes}


def row(measure, *arguments):
    """A row, or in one line why there is none."""
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
    try:
        return measure(*arguments)
    except (RuntimeError, ValueError) as error:
        return {"failed": reason(error)}


def bars(rows):
    found = {}
    for name, (of, mode, kind, beside, most) in BARS.items():
        ours, theirs = (rows.get(of, {}).get(x, {}).get(mode, {}) for x in (kind, beside))
        measured = next((ours[unit] / theirs[unit] for unit in ("ms", "us") if unit in ours and unit in theirs), None)
        found[name] = {"at_most": most, "found": measured, "met": measured is not None and measured <= most}
    return found


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write, after every row.")],
    budget: Annotated[float, typer.Option(help="Seconds after which no further row is begun.")] = 540,
    quick: Annotated[bool, typer.Option(help="Few repeats, and the rows of the bars alone.")] = False,
    tiny: Annotated[bool, typer.Option(help="Small models and images, on any device.")] = False,
    trainer: Annotated[bool, typer.Option(help="The rows of infsa train alone.")] = False,
) -> None:
    """Measure, and print each bar as met or missed.

    Example: python benchmarks/eager.py --out eager.json
    """
    if not (GPU or tiny):
        raise typer.BadParameter("needs a CUDA device, or --tiny")
    most = 0.02 if tiny else 0.5 if quick else 2
    cases = [("attention", kind, (attention_row, kind)) for kind in ("pure", "sdpa")]
    cases += [("block", kind, (block_row, kind)) for kind in KINDS]
    cases += [(" ".join(map(str, size)), None, (model_rows, *size)) for size in SIZES[: 4 if quick else None]]
    steps = [("trainer", kind, (trainer_row, kind, "auto")) for kind in ("linear", "timm", "vit")]
    steps += [("trainer, off", kind, (trainer_row, kind, "off")) for kind in ("linear", "timm", "vit")]
    cases = steps if trainer else cases + steps[: 2 if quick else None]
    begin, rows = time.perf_counter(), {}
    for name, kind, case in cases:
        left = time.perf_counter() - begin < budget
        found = row(*case, most, tiny) if left else {"failed": "not run: budget"}
        rows.setdefault(name, {}).update(found if kind is None else {kind: found})
        report = {"rows": rows, "bars": bars(rows), "quick": quick, "tiny": tiny, "provenance": provenance(DEVICE)}
        write_json(report, out)
        print(name, kind or "", json.dumps(found), flush=True)
    for bar, found in report["bars"].items():
        print(f"{'met   ' if found['met'] else 'MISSED'} {bar}: {json.dumps(found)}")


if __name__ == "__main__":
    typer.run(main)
