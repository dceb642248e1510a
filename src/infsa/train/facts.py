"""What the model card of a run says: its data, recipe and accuracy."""

import dataclasses
from pathlib import Path
from typing import Any

from .recipe import Recipe

TOLD = ("model", "data", "val_data", "init", "epochs", "batch_size", "optimizer", "lr", "seed")  # told in any case
MACHINE = ("device", "devices", "nodes", "strategy", "workers", "save_every", "keep", "log_every", "val_every")


def training_facts(
    recipe: Recipe, history: list[dict[str, Any]], classes: int, images: tuple[int, int] | None = None
) -> dict[str, str]:
    """Rows of the model card: where the weights come from, on what they were trained, how, and how well.

    Paths are cut to their last part.
    """
    last = history[-1]
    usual = Recipe()
    fields = [
        f"{field.name}={getattr(recipe, field.name)}"
        for field in dataclasses.fields(Recipe)
        if field.name not in (*TOLD, *MACHINE) and getattr(recipe, field.name) != getattr(usual, field.name)
    ]
    counts = f", {images[0]:,} training and {images[1]:,} validation images" if images else ""
    data = short(recipe.data) + (f", validated on {short(recipe.val_data)}" if recipe.val_data else "")
    shares = {"top-1, top-5": f"{last['top1']:.1%}, {last['top5']:.1%}"}
    if "tasks" in last:
        shares = {"right answers": ", ".join(f"{name} {own['top1']:.1%}" for name, own in last["tasks"].items())}
    return {
        "data": f"{data}: {classes} classes{counts}",
        "started from": short(recipe.init) if recipe.init else "random weights",
        "recipe": f"{recipe.epochs} epochs, batch {recipe.batch_size}, {recipe.optimizer}, lr {recipe.lr:g}, seed "
        f"{recipe.seed}" + "".join(f", {field}" for field in fields),
        **{name: f"{text} after epoch {last['epoch']:.0f}".replace("%", " %") for name, text in shares.items()},
        "validation loss": f"{last['val_loss']:.3f}",
    }


def short(name: str) -> str:
    """The name of a dataset or of weights without the folders that lead to it."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{Path(path).name}" if colon else Path(name).name
