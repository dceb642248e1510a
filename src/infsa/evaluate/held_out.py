"""What a run left beside its model: the data it was trained on, and the images it never saw."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from ..data import ImageDataset, Part, SkippingDataset
from ..files import read_json

HELD_OUT_FILE = "held-out.json"


def run_of(model: str | Path) -> Path | None:
    """The folder of the run that a saved model belongs to, or that is given for it, or None."""
    place = Path(model).resolve()
    return next((folder for folder in (place, *place.parents[:3]) if (folder / "recipe.json").is_file()), None)


def held_out_by(model: str | Path, data: str) -> list[str]:
    """The names of the images of ``data`` that a model's run kept from training; none if it trained on other data."""
    run = run_of(model)
    if run is None or not (run / HELD_OUT_FILE).is_file():
        return []
    record = read_json(run / HELD_OUT_FILE)
    kind, _, path = record["data"].partition(":")
    other, _, own = data.partition(":")
    return record["images"] if kind == other and Path(path).resolve() == Path(own).resolve() else []


def chosen(dataset: ImageDataset, names: Collection[str], inside: bool = True) -> ImageDataset:
    """The images of a dataset that have one of the names, or the others."""
    assert isinstance(dataset, SkippingDataset)
    wanted = [(dataset.name(index) in names) == inside for index in range(len(dataset))]
    return Part(dataset, np.flatnonzero(wanted))
