"""How long one training step and one inference of a recipe's model take."""

from typing import Any

import torch
from torch.nn import functional as F

from ..bench.timing import median_milliseconds
from .module import build_model
from .recipe import Recipe

AUTOCAST = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def measuring_device(recipe: Recipe) -> torch.device:
    """Where a recipe's finished model is measured: the first GPU, unless there is none or the recipe asks for
    the CPU.
    """
    return torch.device("cpu" if recipe.device == "cpu" or not torch.cuda.is_available() else "cuda")


def measure_latency(
    recipe: Recipe, classes: int, batch: int = 64, warmups: int = 50, timed: int = 300
) -> dict[str, float]:
    """Median milliseconds of a training step (forward, backward, AdamW) and of an inference, on random images.

    Eager unless the recipe says ``compile="on"``; then the whole model is compiled.
    """
    device = measuring_device(recipe)
    model = build_model(recipe, classes).to(device)
    run: Any = torch.compile(model) if recipe.compile == "on" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(batch, 3, recipe.image_size, recipe.image_size, device=device)
    labels = torch.arange(batch, device=device) % classes
    half = AUTOCAST[recipe.precision]

    def step() -> None:
        with torch.autocast(device.type, half, enabled=half is not None):
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def infer() -> None:
        with torch.autocast(device.type, half, enabled=half is not None):
            run(images)

    train_ms = median_milliseconds(step, device, warmups, timed)
    model.eval()
    return {
        "train_ms": train_ms,
        "infer_ms": median_milliseconds(infer, device, warmups, timed),
        "batch": batch,
        "warmups": warmups,
        "timed": timed,
    }
