"""Datasets by name."""

import inspect
from collections.abc import Callable
from typing import Any

from .digit_sums import DigitSums
from .folders import IMAGENET_V2, ImageFolder, ImageNetV2, TinyImageNet
from .imagenet import open_imagenet
from .megapixel import MegapixelDigits
from .sample import ImageDataset
from .shapes import Shapes
from .skipping import Reading
from .tables import NpzShard, open_hugging_face
from .timm_readers import open_timm
from .webdataset import WebShards

DATASETS: dict[str, tuple[str, Callable[..., ImageDataset]]] = {  # what follows the name, and who opens it
    "shapes": ("", Shapes),
    "megapixel-digits": ("[:PATH]", MegapixelDigits),
    "digit-sums": ("[:PATH]", DigitSums),
    "folder": (":PATH", ImageFolder),
    "imagenet": (":PATH", open_imagenet),
    "imagenetv2": (":PATH", ImageNetV2),
    "tiny-imagenet": (":PATH", TinyImageNet),
    "npz": (":PATH", NpzShard),
    "wds": (":PATTERN", WebShards),
    "hf": (":NAME", open_hugging_face),
    "timm": (":NAME[:ROOT]", open_timm),
}
SIDES = {"shapes": "size", "megapixel-digits": "side", "digit-sums": "side"}  # what drawn datasets call an image's
ACCEPTED = ", ".join(name + rest for name, (rest, _) in DATASETS.items())


def open_dataset(name: str, split: str | None = None, **options: Any) -> ImageDataset:
    """Open a dataset by its name and, after a colon, its path.

    Args:
        name: ``shapes``, ``megapixel-digits[:PATH]`` or ``digit-sums[:PATH]`` with MNIST's folder, ``folder:PATH``,
            ``imagenet:PATH``, ``imagenetv2:PATH``, ``tiny-imagenet:PATH``, ``npz:PATH``, ``wds:PATTERN``, ``hf:NAME``
            or ``timm:NAME[:ROOT]``.
        split: ``"train"`` or ``"val"``; for ``imagenetv2`` the variant. Without it, ``folder`` and ``imagenetv2`` open
            the folder itself, ``wds`` all shards, and the others their training split.
        options: for the class of the dataset, such as ``size`` for :class:`Shapes` or ``max_pixels``.

    Example:
        >>> len(open_dataset("folder:photos"))
        4
    """
    kind, colon, path = name.partition(":")
    rest, opener = DATASETS.get(kind, ("", None))
    possible = {"": (False,), ":": (True,), "[": (False, True)}[rest[:1]]
    if opener is None or bool(colon) not in possible or bool(colon) != bool(path):
        raise ValueError(f"unknown dataset {name!r}; accepted are {ACCEPTED}")
    if kind == "imagenetv2" and split is not None and split not in IMAGENET_V2:
        raise ValueError(f"the split of imagenetv2 must be one of {list(IMAGENET_V2)}, got {split!r}")
    if split is not None:
        options["variant" if kind == "imagenetv2" else "split"] = split
    _check_options(kind, opener, options, bool(path))  # before thousands of files are listed
    try:
        return opener(path, **options) if path else opener(**options)
    except TypeError as error:
        raise TypeError(f"dataset {kind!r}: {error}") from error


def _check_options(kind: str, opener: Callable[..., ImageDataset], options: dict[str, Any], path: bool) -> None:
    """Refuse an option that a dataset does not have; the first argument may be its path."""
    names = list(inspect.signature(opener).parameters)[path:]
    known = [name for name in names if name != "reading"] + list(Reading.__annotations__) * ("reading" in names)
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"dataset {kind!r}: no option {unknown[0]!r}; its options are {', '.join(known)}")
