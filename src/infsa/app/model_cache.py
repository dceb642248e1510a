"""The models of the page, loaded once, changed by nobody, lent to one caller at a time."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from PIL import Image

from ..evaluate import Subject, explain, load_model
from ..models import InfViT
from ..models.presets import SHIPPED
from ..ops.checks import check_choice

MECHANISMS = {label: name for name, label in sorted(SHIPPED.items(), key=lambda pair: pair[1] == "softmax")}

_SOURCES = dict(MECHANISMS)  # by the names that the page shows
_LOCKS: dict[tuple[str, bool], threading.Lock] = {}
_MODELS: dict[tuple[str, bool], InfViT] = {}


@contextmanager
def borrow(mechanism: str, padded: bool = False) -> Iterator[InfViT]:
    """A model in eval mode, for as long as the block lasts. Reading gradients hooks into a model: one at a time.

    ``padded``: its copy that pads images to whole patches, for streaming.
    """
    check_choice("mechanism", mechanism, names())
    key = mechanism, padded
    with _LOCKS.setdefault(key, threading.Lock()):
        if key not in _MODELS:
            model = load_model(_SOURCES[mechanism]).requires_grad_(False)
            if padded:
                model.patch_embed.dynamic_img_pad = True  # type: ignore[misc]  # only a hint to TorchScript
            _MODELS[key] = model
        yield _MODELS[key]


def add(checkpoints: Iterable[str]) -> None:
    """Put own models on the shelf, each a path or ``NAME=PATH``; one that the page cannot show is refused."""
    subjects = [Subject.of(checkpoint) for checkpoint in checkpoints]
    given = [subject.name for subject in subjects]
    for name in given:
        if given.count(name) > 1 or name in MECHANISMS:
            raise ValueError(f"every checkpoint needs a name of its own, got {name!r} twice; NAME=PATH gives one")
    for subject in subjects:
        model = subject.load().requires_grad_(False)
        if not model.num_classes:
            raise ValueError(f"{subject.source} has no classes, so there is no prediction to explain")
        try:
            explain(model, Image.new("RGB", (64, 64)), side=min(model.patch_embed.img_size))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ValueError(f"{subject.source} cannot be shown on the page: {error}") from error
        _SOURCES[subject.name] = subject.source
        _MODELS[subject.name, False] = model
        _MODELS.pop((subject.name, True), None)


def names() -> list[str]:
    """What is on the shelf: own models first."""
    return [*(name for name in _SOURCES if name not in MECHANISMS), *MECHANISMS]


def streamed() -> list[str]:
    """The models that stream: those with Linear-InfSA."""
    return [name for name in names() if is_linear(name)]


def is_linear(mechanism: str) -> bool:
    """Whether all rows of a model's graphs are equal."""
    with borrow(mechanism) as model:
        return model.attention == "infsa_linear"


def sizes(mechanism: str) -> tuple[int, int]:
    """How many layers and heads a model has."""
    with borrow(mechanism) as model:
        return len(model.blocks), model.num_heads


def trained_side(mechanism: str) -> int:
    """The side of the square that a model was made for, in pixels."""
    with borrow(mechanism) as model:
        return min(model.patch_embed.img_size)
