"""Training on single images by streaming, within a fixed memory."""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from infsa.bench.memory import cap_memory
from infsa.models import InfViT
from infsa.streaming import stream_backward

from .runs import Run
from .step import Digits, as_rows, weighted_loss

BATCH = 4  # images per optimiser step
TILE = 1024


@contextlib.contextmanager
def limited(device: torch.device, limit: int) -> Iterator[None]:
    """No more than ``limit`` bytes of a GPU's memory for a while; runs that come later have all of it again."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    cap_memory(device, limit)
    try:
        yield
    finally:
        cap_memory(device, torch.cuda.get_device_properties(device).total_memory)


def streamed_steps(run: Run, model: InfViT, data: Digits, seconds: float) -> dict[str, Any]:
    """Take optimiser steps for so many seconds; the GPU's memory is limited, or on a CPU the process's."""
    device, limit = next(model.parameters()).device, int(run.streamed * 2**30)
    cuda = device.type == "cuda"
    options: dict[str, Any] = {} if cuda else {"memory": limit}
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=run.lr, weight_decay=run.weight_decay, betas=(0.9, 0.98))
    model.eval()
    began, losses, place, found = time.perf_counter(), [], 0, None
    with limited(device, limit):
        while place < BATCH or time.perf_counter() - began < seconds:
            total = 0.0
            for index in range(place, place + BATCH):
                image, answers, _ = data.compose(torch.tensor([index % len(data)]))
                rows = as_rows(answers, data.tasks).to(device)
                loss = functools.partial(_share, run, data, rows)
                found = stream_backward(model, image[0].float() / 255, loss, tile=TILE, **options)
                total += float(found.loss)
            nn.utils.clip_grad_norm_(parameters, run.clip)
            optimizer.step()
            optimizer.zero_grad()
            place += BATCH
            losses.append(total)
            passed = time.perf_counter() - began
            print(f"streamed {data.side}²: {place} images, {passed:.0f} s, {total:.3f}", flush=True)
    passed = time.perf_counter() - began
    assert found is not None
    peak = torch.cuda.max_memory_reserved() if cuda else found.peak_memory
    model.train()
    return {
        "side": data.side, "noise": data.noise, "batch": BATCH, "steps": len(losses), "epochs": place / len(data),
        "ms_per_step": 1e3 * passed / len(losses), "seconds": passed, "losses": losses, "limit": limit,
        "peak_bytes": peak, "strategy": found.strategy,
    }  # fmt: skip


def _share(run: Run, data: Digits, rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The part of one image in the mean loss of a step."""
    return weighted_loss(run, data.tasks, logits, rows) / BATCH
