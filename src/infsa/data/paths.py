"""Where files are: folders that must exist, what a split may be called, and many names in little memory."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from timm.data.readers.img_extensions import get_img_extensions

ALIASES = {"train": ("train", "training"), "val": ("val", "validation", "valid", "dev", "test")}  # first found wins


class Names(Sequence[str]):
    """Many names in two arrays: quick to hand to a worker, and not copied page by page after a fork.

    Example:
        >>> Names(["cat/1.jpg", "dog/7.png"])[1]
        'dog/7.png'
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = np.cumsum([0, *map(len, encoded)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        return os.fsdecode(self._bytes[self._ends[index] : self._ends[index + 1]].tobytes())


def split_names(split: str) -> tuple[str, ...]:
    """What a split may be called in files and folders.

    Example:
        >>> split_names("train")
        ('train', 'training')
    """
    return ALIASES.get(split, (split,))


def check_split(split: str) -> None:
    """Refuse what is neither the training nor the validation split.

    Example:
        >>> check_split("val")
    """
    if split not in ALIASES:
        raise ValueError(f"split must be one of {list(ALIASES)}, got {split!r}")


def split_folder(root: Path, split: str) -> Path | None:
    """The folder of a split inside ``root``, or None.

    Example:
        >>> split_folder(Path("photos"), "val")
        PosixPath('photos/validation')
    """
    return next((root / name for name in split_names(split) if (root / name).is_dir()), None)


def existing_folder(path: str | Path) -> Path:
    """The path, if a folder is there.

    Example:
        >>> existing_folder("photos")
        PosixPath('photos')
    """
    if not Path(path).is_dir():
        raise FileNotFoundError(f"no folder at {path}")
    return Path(path)


def existing_file(path: str | Path) -> Path:
    """The path, if a file is there.

    Example:
        >>> existing_file("shard.npz")
        PosixPath('shard.npz')
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}")
    return Path(path)


def class_folders(root: Path, empty: bool = False) -> list[Path]:
    """The folders inside ``root`` in text order, hidden ones left out; one without images is refused unless ``empty``.

    Example:
        >>> [folder.name for folder in class_folders(Path("photos"))]
        ['cat', 'dog']
    """
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if not folders:
        raise ValueError(f"no class folders in {root}")
    for folder in folders:
        if not empty and not any(is_image(path.name) for path in folder.rglob("*")):
            raise ValueError(f"class folder {folder} holds no images")
    return folders


def is_image(name: str) -> bool:
    """Whether a file is called like an image that timm reads.

    Example:
        >>> is_image("n01440764_18.JPEG")
        True
    """
    return os.path.splitext(name)[1].lower() in get_img_extensions(as_set=True)
