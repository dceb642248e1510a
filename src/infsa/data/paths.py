"""Where files are: folders that must exist, what a split may be called, many names, and what patterns stand for."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image
from timm.utils.misc import natural_key

RECOGNISED_ONLY = {"BUFR", "GRIB", "HDF5", "MPEG", "WMF"}  # formats that Pillow names without decoding their pixels
ALIASES = {"train": ("train", "training"), "val": ("val", "validation", "valid", "dev", "test")}  # first found wins


class Names(Sequence[str]):
    """Many names in two arrays: quick to hand to a worker, and not copied page by page after a fork."""

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
    """What a split may be called in files and folders."""
    return ALIASES.get(split, (split,))


def check_split(split: str) -> None:
    """Refuse what is neither the training nor the validation split."""
    if split not in ALIASES:
        raise ValueError(f"split must be one of {list(ALIASES)}, got {split!r}")


def split_folder(root: Path, split: str) -> Path | None:
    """The folder of a split inside ``root``, or None; one that holds images itself is a class of that name."""
    folders = (root / name for name in split_names(split))
    return next((path for path in folders if path.is_dir() and not any(map(is_image, os.listdir(path)))), None)


def existing_folder(path: str | Path) -> Path:
    """The path, if a folder is there."""
    if not Path(path).is_dir():
        raise FileNotFoundError(f"no folder at {path}")
    return Path(path)


def existing_file(path: str | Path) -> Path:
    """The path, if a file is there."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}")
    return Path(path)


def class_folders(root: Path, empty: bool = False) -> list[Path]:
    """The folders inside ``root`` in text order, hidden ones left out; one without images is refused unless
    ``empty``.
    """
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if not folders:
        raise ValueError(f"no class folders in {root}: put the images of each class into a subfolder")
    for folder in folders:
        if not empty and next(images_below(folder), None) is None:
            raise ValueError(f"class folder {folder} holds no images")
    return folders


@cache
def image_endings() -> frozenset[str]:
    """How the names of files end that Pillow reads, in lower case."""
    Image.init()
    kinds = Image.OPEN.keys() - RECOGNISED_ONLY
    return frozenset(ending for ending, kind in Image.registered_extensions().items() if kind in kinds)


def is_image(name: str) -> bool:
    """Whether a file is called like an image that Pillow reads; hidden files are not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in image_endings()


def in_order(names: Iterable[str]) -> list[str]:
    """Names as people count, 2 before 10; those that differ in case alone in text order."""
    return sorted(names, key=lambda name: (natural_key(name), name))


def images_below(folder: Path) -> Iterator[Path]:
    """The images in a folder and in the folders inside it, hidden ones and linked folders left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if is_image(name) and readable_kind(Path(place, name)))


def readable_kind(path: Any) -> bool:
    """Whether a path or entry is a file or a link, even a broken one, and not a pipe, which would never end."""
    return path.is_file() or (path.is_symlink() and not path.is_dir())


def shown(name: str) -> str:
    """A name as one printable line: control characters, and bytes that are not text, are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def few(names: Sequence[str], limit: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(shown, names[:limit])) + more


@dataclass
class Listing:
    """What was found: files in order, each once, and what stands for none with the reason."""

    files: list[Path] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # what was asked for, and why it is not there
    ignored: int = 0  # other files in folders


def list_images(sources: Iterable[str | Path]) -> Listing:
    """Files as they are named, the images in folders and the folders inside them, and what patterns match.

    Hidden files and folders are passed over. A file that is named is listed whatever its ending is.
    """
    found = Listing()
    seen: dict[Path, None] = {}
    for source in sources:
        path, text = Path(source), str(source)
        if path.exists() or path.is_symlink():
            matches = [path]
        elif glob.has_magic(text):
            matches = [Path(match) for match in sorted(glob.glob(text, recursive=True))]
            if not matches:
                found.missing[text] = "nothing matches this pattern"
        else:
            matches, found.missing[text] = [], "no such file"
        for match in matches:
            if match.is_dir():
                seen |= dict.fromkeys(_inside(match, found))
            elif match.is_file():
                seen[match] = None
            else:
                found.missing[str(match)] = "a broken link" if match.is_symlink() else "neither a file nor a folder"
    found.files = list(seen)
    return found


def _inside(folder: Path, found: Listing) -> list[Path]:
    """The images of a folder and of those inside it, in text order."""
    images = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            if is_image(name) and (Path(place) / name).is_file():
                images.append(Path(place) / name)
            else:
                found.ignored += 1
    if not images:
        found.missing[str(folder)] = "no images in this folder"
    return images
