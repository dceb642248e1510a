"""Resuming a run: its newest complete checkpoint, and what may have changed since it was written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.parts import what_changed
from .checkpoint import list_checkpoints, newest_checkpoint, write_checkpoint
from .recipe import Recipe, current

Saved = tuple[dict[str, Tensor], dict[str, Any]]  # tensors and facts of a checkpoint
Tell = Callable[[str], None]

# What may change when a run continues: where it runs and what it records, not what it computes
FREE = {
    "device", "devices", "nodes", "strategy", "compile", "workers", "save_every", "keep", "log_every",
    "accumulate", "grad_checkpointing",
}  # fmt: skip


def check_same_run(recipe: Recipe, saved: dict[str, Any], more_epochs: bool = False) -> None:
    """Refuse to continue with a recipe that computes something else; with ``more_epochs`` it may last longer."""
    saved = current(saved)
    for name, value in recipe.as_dict().items():
        before = saved.get(name, value)
        if name in FREE or before == value or (more_epochs and name == "epochs" and value > before):
            continue
        hint = "; a run can continue for more epochs, not for fewer" if more_epochs and name == "epochs" else ""
        raise ValueError(f"the run was started with {name}={before!r}, got {value!r}{hint}")


def saved_state(recipe: Recipe, out: Path, tell: Tell) -> Saved | None:
    """The newest complete checkpoint of a run that this recipe may continue with; None if it has none yet."""
    if (out / "recipe.json").exists() and not list_checkpoints(out / "checkpoints"):
        tell("there is no checkpoint yet: starting at step 0")
        return None
    path, tensors, facts, damage = newest_checkpoint(out / "checkpoints")
    check_same_run(recipe, facts["recipe"], more_epochs=True)
    for line in damage:
        tell(f"{line}; continuing from {path.name}")
    return tensors, facts


def on_same_data(
    saved: Saved, data: dict[str, Any], per_epoch: int, out: Path, accept: bool, keep: int, tell: Tell
) -> Saved:
    """Refuse to continue with other images than the run began with; if accepted, continue at the same part of an epoch.

    Args:
        saved: what the run continues from.
        data: the fingerprints of the training and the validation images.
        per_epoch: steps that an epoch has with these images.
        out: the run's folder.
        accept: continue with other images; other classes are always refused.
        keep: checkpoints kept.
        tell: receives a line if the images have changed.
    """
    tensors, facts = saved
    before = facts.get("data", data)
    changes = [f"{split}: {text}" for split in data if (text := what_changed(before[split], data[split]))]
    if not changes:
        return saved
    changed = f"the images have changed since the run began: {'; '.join(changes)}"
    if [row[0] for row in before["train"]] != [row[0] for row in data["train"]]:
        raise ValueError(f"{changed}; a model cannot continue with other classes: put them back or start a new run")
    if not accept:
        raise ValueError(f"{changed}; put them back, or continue with what is there with --accept-new-data")
    step = round(facts["step"] / facts["per_epoch"] * per_epoch)
    tell(f"{changed}; continuing with what is there, at step {step}")
    facts = {**facts, "step": step, "data": data, "per_epoch": per_epoch}
    kept = write_checkpoint(out / "checkpoints", step, tensors, facts, keep)
    for other in list_checkpoints(out / "checkpoints"):
        if other > kept:  # they count steps of epochs with other images
            other.unlink()
    return tensors, facts


def tell_longer(recipe: Recipe, facts: dict[str, Any], per_epoch: int, tell: Tell) -> None:
    """Say what more epochs than before mean for the learning rate."""
    before = Recipe().override(facts["recipe"])
    if recipe.epochs == before.epochs:
        return
    now, then = (one.learning_rate(facts["step"], per_epoch) for one in (recipe, before))
    tell(
        f"{before.epochs} epochs became {recipe.epochs}: the cosine ends at epoch {recipe.epochs}, and the learning "
        f"rate continues at {now:.3g} instead of {then:.3g}"
    )
