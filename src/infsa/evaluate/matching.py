"""Which of a model's classes each class of a dataset is: by name, or by number where there are no names to go by."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.paths import few
from ..models import InfViT
from .maps import class_names

UNKNOWN = -1


@dataclass(frozen=True)
class Match:
    """The classes that are evaluated, and which of them each class of the data is."""

    classes: list[str]  # names of the model's outputs
    labels: NDArray[np.int64]  # for every class of the data the model's, or UNKNOWN
    notes: list[str]  # what the user should know


def match_model(model: InfViT, data: Sequence[str]) -> Match:
    """The classes of a dataset among those of a model, whose names may be missing."""
    names = class_names(model)
    return match_classes(names if names != [f"class {i}" for i in range(len(names))] else len(names), data)


def match_classes(model: Sequence[str] | int, data: Sequence[str]) -> Match:
    """Match by name, without regard to case, underscores and further synonyms after a comma.

    Args:
        model: the names of its classes, or how many it has.
        data: the names in the dataset.
    """
    in_order = np.arange(len(data))
    count = model if isinstance(model, int) else len(model)
    if isinstance(model, int) or list(model) == list(data):
        if count != len(data):
            raise ValueError(f"the model has {count} classes, the dataset {len(data)}")
        return Match(list(data), in_order, [])
    labels = _by_name(model, data)
    known = labels != UNKNOWN
    if not known.any():
        if count != len(data):
            raise ValueError(
                f"the model has {count} classes ({few(model, 2)}), the dataset {len(data)} ({few(data, 2)}), and no "
                "name in common: rename the folders to the model's class names"
            )
        if all(name.isdigit() for name in data):
            return Match(list(model), in_order, [])
        note = f"the model knows {model[0]!r}, ... and the data {data[0]!r}, ...: they have no class in common"
        return Match(list(data), in_order, [f"{note}, so classes are matched in order"])
    notes = []
    if not known.all():
        strange = [name for name, is_known in zip(data, known, strict=True) if not is_known]
        notes.append(f"{len(strange)} of {len(data)} classes of the data are not the model's, left out: {few(strange)}")
    missing = [name for index, name in enumerate(model) if index not in set(labels.tolist())]
    if missing:
        notes.append(f"{len(missing)} of {count} classes of the model have no images in the data: {few(missing)}")
    return Match(list(model), labels, notes)


def _by_name(model: Sequence[str], data: Sequence[str]) -> NDArray[np.int64]:
    """The model's number of each name, at the first rule that finds one and only one; each number at most once."""
    labels = np.full(len(data), UNKNOWN)
    for rule in (lambda name: [name], _plain, _synonyms):
        keys = [(key, index) for index, name in enumerate(model) for key in set(rule(name))]
        times = Counter(key for key, _ in keys)
        numbers = {key: index for key, index in keys if times[key] == 1}
        for place, name in enumerate(data):
            found = {numbers[key] for key in rule(name) if key in numbers} - set(labels.tolist())
            if labels[place] == UNKNOWN and len(found) == 1:
                labels[place] = found.pop()
    return labels


def _plain(name: str) -> list[str]:
    return [" ".join(name.casefold().replace("_", " ").replace("-", " ").split())]


def _synonyms(name: str) -> list[str]:
    return [key for part in name.split(",") for key in _plain(part)]
