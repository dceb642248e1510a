"""Recipes that start: what nobody asked for gives way to the other fields, the machine and the data, and is told."""

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from .recipe import ANSWERS_OF_PLACE, DRAWN, Recipe

STEPS = 4  # at least so many in an epoch, where the batch has to shrink


def fitted(recipe: Recipe, base: Recipe, fixed: Collection[str]) -> tuple[Recipe, list[str]]:
    """A recipe that contradicts neither itself nor the machine, and a line for each field that was changed for it.

    Args:
        recipe: as it was asked for.
        base: the named recipe that it comes from.
        fixed: fields that were asked for, which stay; if they contradict each other, :meth:`Recipe.check` says so.
    """
    notes: list[str] = []

    def change(name: str, value: Any, reason: str) -> None:
        nonlocal recipe
        if name not in fixed and getattr(recipe, name) != value:
            notes.append(f"{name} {_word(getattr(recipe, name))} became {_word(value)}: {reason}")
            recipe = replace(recipe, **{name: value})

    if recipe.image_size != base.image_size and recipe.image_size > 0 and base.image_size:
        resize = round(recipe.image_size * base.val_resize / base.image_size)
        change("val_resize", resize, f"in proportion to image_size {recipe.image_size}")
    if recipe.warmup_epochs >= recipe.epochs > 0:
        change("warmup_epochs", recipe.epochs / 10, "a tenth of the epochs")
    for name, value in DRAWN.items() if recipe.data.partition(":")[0] in ANSWERS_OF_PLACE else ():
        change(name, value, "its images are drawn on the device, and their answers depend on positions")
    if recipe.loader == "resident":
        hue = len(recipe.jitter) > 3 and recipe.jitter[3] > 0
        reasons = {"hue jitter": hue, "RandAugment": recipe.randaugment > 0}
        reasons |= {recipe.interpolation: recipe.interpolation not in ("", "bilinear", "bicubic", "nearest")}
        for reason in (name for name, wanted in reasons.items() if wanted):
            change("loader", "workers", f"loader='resident' has no {reason}")
    gpu = recipe.device in ("auto", "cuda") and torch.cuda.is_available()
    if not gpu and recipe.precision != "32-true":
        change("precision", "32-true", "other precisions are slow or missing without a GPU")
    elif gpu and recipe.precision == "bf16-mixed" and not torch.cuda.is_bf16_supported(including_emulation=False):
        change("precision", "16-mixed", "this GPU has no bfloat16")
    elif recipe.strategy == "fsdp" and recipe.precision == "16-mixed":
        change("precision", "bf16-mixed", "fsdp does not run in 16-mixed")
    cores = os.cpu_count() or 1
    if recipe.workers > cores:
        change("workers", cores, f"this machine has {cores} cores")
    return recipe, notes


def fitted_batch(recipe: Recipe, images: int, world: int) -> tuple[Recipe, list[str]]:
    """A batch that fits the training images and can be shared out, and a line if it is another one."""
    parts = world * recipe.accumulate * (2 if recipe.mixup or recipe.cutmix else 1)
    size, reason = recipe.batch_size, f"a multiple of {parts}"
    if size > images:
        size, reason = smaller_batch(images), f"there are {images} training images"
    size = max(parts, size - size % parts)
    if size == recipe.batch_size:
        return recipe, []
    return replace(recipe, batch_size=size), [f"batch_size {recipe.batch_size} became {size}: {reason}"]


def smaller_batch(images: int) -> int:
    """A batch of which an epoch over so many images has a few."""
    return 1 << max(0, (images // STEPS).bit_length() - 1)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
