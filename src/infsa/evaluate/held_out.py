"""What a run left beside its model: the data it was trained on, the images it never saw, and how far it came."""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data import ImageDataset, Part, SkippingDataset
from ..data.folders import without_splits
from ..files import read_json

Choose = Callable[[ImageDataset], ImageDataset]

HELD_OUT_FILE = "held-out.json"


def run_of(model: str | Path) -> Path | None:
    """The folder of the run that a saved model belongs to, or that is given for it, or None."""
    place = Path(model).resolve()
    return next((folder for folder in (place, *place.parents[:3]) if (folder / "recipe.json").is_file()), None)


@dataclass(frozen=True)
class Unfinished:
    """A training run that was interrupted, or still runs: where it is, how far it is, its best model so far."""

    folder: Path
    epoch: float
    epochs: int
    best: Path | None

    def __str__(self) -> str:
        far = f"{self.folder} holds an unfinished run (epoch {self.epoch:.3g} of {self.epochs})"
        then = f"infsa train --resume --out {self.folder} continues it"
        return f"{far} without a validated model; {then}" if self.best is None else f"{far}: taking {self.best}; {then}"


def unfinished(model: str | Path) -> Unfinished | None:
    """The run that a folder holds, or that a missing folder ``RUN/model`` belongs to, if it has no model yet."""
    path = Path(model)
    run = path.parent if path.name == "model" and not path.exists() else path
    if not (run / "recipe.json").is_file() or (run / "model").exists():
        return None
    best = run / "checkpoints" / "best"
    return Unfinished(run, _reached(run), read_json(run / "recipe.json")["epochs"], best if best.is_dir() else None)


def _reached(run: Path) -> float:
    """The epoch of the last whole line of a run's log."""
    log = run / "log.jsonl"
    for line in reversed(log.read_text(encoding="utf-8").splitlines() if log.is_file() else []):
        with suppress(ValueError):  # the run is writing it
            return float(json.loads(line)["epoch"])
    return 0.0


def held_out_by(model: str | Path, data: str) -> list[str]:
    """The names of the images of ``data`` that a model's run kept from training; none if it trained on other data."""
    run = run_of(model)
    if run is None or not (run / HELD_OUT_FILE).is_file():
        return []
    record = read_json(run / HELD_OUT_FILE)
    kind, _, path = record["data"].partition(":")
    other, _, own = data.partition(":")
    places = {Path(path).resolve(), Path(record.get("place", path)).resolve()}
    return record["images"] if kind == other and Path(own).resolve() in places else []


def chosen(dataset: ImageDataset, names: Collection[str], inside: bool = True) -> ImageDataset:
    """The images of a dataset that have one of the names, or the others."""
    assert isinstance(dataset, SkippingDataset)
    wanted = [(dataset.name(index) in names) == inside for index in range(len(dataset))]
    return Part(dataset, np.flatnonzero(wanted))


def part_of(model: str, data: str, split: str | None) -> tuple[str | None, Choose, str]:
    """How to open a split: its name for the dataset, which images to take, and what to say about it.

    A folder without splits has those of the run that trained the model on it; ``all`` takes every image.
    """
    whole = without_splits(data)
    names = set(held_out_by(model, data)) if whole else set()
    if not whole or (split not in (None, "all") and not names):
        return split, lambda dataset: dataset, ""
    if split == "all" or not names:
        return None, lambda dataset: dataset, ""
    if split not in (None, "val", "train"):
        raise ValueError(f"the split of {data} must be val, train or all, got {split!r}")
    note = "" if split else f"on the {len(names)} images that the run held out; --split all takes every image"
    return None, lambda dataset: chosen(dataset, names, inside=split != "train"), note
