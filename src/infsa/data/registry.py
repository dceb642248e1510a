"""Data sets by name."""

from collections.abc import Callable
from typing import Any

from .folders import IMAGENET_V2, ImageFolder, ImageNetV2, TinyImageNet
from .sample import ImageDataset
from .shapes import Shapes
from .tables import NpzShard

DATASETS: dict[str, Callable[..., ImageDataset]] = {
    "shapes": Shapes,
    "folder": ImageFolder,
    "imagenetv2": ImageNetV2,
    "npz": NpzShard,
    "tiny-imagenet": TinyImageNet,
}
ACCEPTED = ", ".join(name if name == "shapes" else f"{name}:PATH" for name in DATASETS)


def open_dataset(name: str, split: str | None = None, **options: Any) -> ImageDataset:
    """Open a data set by its name and, after a colon, its path.

    Args:
        name: ``shapes``, ``folder:PATH``, ``imagenetv2:PATH``, ``npz:PATH`` or ``tiny-imagenet:PATH``.
        split: ``"train"`` or ``"val"``; for ``imagenetv2`` the variant. Without it, ``shapes``, ``npz`` and
            ``tiny-imagenet`` open their training split, ``folder`` and ``imagenetv2`` the folder itself.
        options: for the class of the data set, such as ``size`` for :class:`Shapes` or ``max_pixels``.

    Example:
        >>> train = open_dataset("shapes", split="train", size=64, classes=10)
        >>> test = open_dataset("imagenetv2:imagenetv2", split="top-images")
    """
    kind, colon, path = name.partition(":")
    if kind not in DATASETS or (kind == "shapes") == bool(colon) or bool(colon) != bool(path):
        raise ValueError(f"unknown data set {name!r}; accepted are {ACCEPTED}")
    if kind == "imagenetv2" and split is not None and split not in IMAGENET_V2:
        raise ValueError(f"the split of imagenetv2 must be one of {list(IMAGENET_V2)}, got {split!r}")
    if split is not None:
        options["variant" if kind == "imagenetv2" else "split"] = split
    try:
        return DATASETS[kind](path, **options) if path else DATASETS[kind](**options)
    except TypeError as error:
        raise TypeError(f"data set {kind!r}: {error}") from error
