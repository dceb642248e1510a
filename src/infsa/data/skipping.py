"""Datasets that meet unreadable images: each is logged by name and replaced by the next good one."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from .annotations import Annotations
from .decode import MAX_PIXELS, UnreadableImage, decode
from .paths import few
from .sample import BoxArray, Sample


class SkipLog:
    """The images that could not be read: how many, which, and why. An image counts once, however often it is met.

    Args:
        file: if given, every new entry is also appended to this file, one JSON line each. Worker processes have
            logs of their own; the file is what they share, and :meth:`read` returns it as one log.

    Example:
        >>> log = SkipLog()
        >>> log.add("cat.jpg", "truncated")
        >>> len(log), log.names, str(log)
        (1, ['cat.jpg'], '1 image skipped: cat.jpg')
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self.file = None if file is None else Path(file)
        self.reasons: dict[str, str] = {}

    def add(self, name: str, reason: str) -> None:
        """Note an image and the reason."""
        if name in self.reasons:
            return
        self.reasons[name] = reason
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"name": name, "reason": reason}) + "\n")

    @property
    def names(self) -> list[str]:
        """The skipped images in the order in which they were met."""
        return list(self.reasons)

    @classmethod
    def read(cls, file: str | Path) -> "SkipLog":
        """The log that several processes wrote to one file; empty if none wrote."""
        log = cls()
        if Path(file).exists():
            for line in Path(file).read_text(encoding="utf-8").splitlines():
                log.add(**json.loads(line))
        return log

    def __len__(self) -> int:
        return len(self.reasons)

    def __str__(self) -> str:
        count = f"{len(self)} image{'' if len(self) == 1 else 's'} skipped"
        return f"{count}: {few(self.names)}" if len(self) else count


class Reading(TypedDict, total=False):
    """What every dataset of files takes: see :class:`SkippingDataset`."""

    max_pixels: int
    skipped: SkipLog | None


class SkippingDataset(ABC):
    """Images with a label each; a subclass says what image ``index`` is called and where its bytes are.

    An unreadable image is replaced by the next readable one in order, cyclically, and noted in ``skipped``. The
    replacement depends on the files alone, so it is the same in every process and every epoch.

    Args:
        origin: what errors call the dataset.
        labels: of every image, (n,).
        classes: the name of each label.
        every_class: whether a class without an image is refused, as it should be for training.
        annotations: boxes by an image's name, by its last part or by its stem; images without have none.
        max_pixels: see :func:`decode`.
        skipped: the log of unreadable images; a new one if not given.
    """

    def __init__(
        self,
        origin: str,
        labels: ArrayLike,
        classes: Sequence[str],
        every_class: bool,
        annotations: Annotations | None = None,
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        self.labels, self.classes = np.asarray(labels, np.int64), list(classes)
        self.annotations, self.max_pixels = {} if annotations is None else annotations, max_pixels
        self.skipped = SkipLog() if skipped is None else skipped
        self.left_out: Sequence[str] = ()  # files that are no images
        if not len(self.labels):
            raise ValueError(f"no images in {origin}")
        wrong = self.labels[(self.labels < 0) | (self.labels >= len(self.classes))]
        if len(wrong):
            raise ValueError(f"{origin}: labels must be from 0 to {len(self.classes) - 1}, got {wrong[0]}")
        empty = np.flatnonzero(np.bincount(self.labels, minlength=len(self.classes)) == 0)
        if every_class and len(empty):
            more = f" and {len(empty) - 1} more classes have" if len(empty) > 1 else " has"
            raise ValueError(f"class {self.classes[empty[0]]!r}{more} no images in {origin}")

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """What sample ``index`` is called."""

    @abstractmethod
    def source(self, index: int) -> bytes | str | Image.Image:
        """The bytes, the path or the opened image of sample ``index``, or :class:`UnreadableImage`."""

    def size(self, index: int) -> int:
        """The bytes of sample ``index`` where that is known without reading it, otherwise 0."""
        return 0

    def boxes_of(self, index: int) -> BoxArray:
        """The boxes of sample ``index``, (n, 4)."""
        name = Path(self.name(index))
        for key in (name.as_posix(), name.name, name.stem) if self.annotations else ():
            if key in self.annotations:
                return self.annotations[key][0]
        return np.zeros((0, 4), np.float32)

    def load(self, index: int) -> Sample:
        """Sample ``index``, from 0 to len - 1, or :class:`UnreadableImage`."""
        name = self.name(index)
        image = decode(self.source(index), self.max_pixels, name)
        return Sample(image, int(self.labels[index]), self.boxes_of(index), name)

    def __getitem__(self, index: int) -> Sample:
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"index {index} is outside a dataset of {length} samples")
        for candidate in (step % length for step in range(index % length, index % length + length)):
            if self.skipped.reasons and self.name(candidate) in self.skipped.reasons:
                continue
            try:
                return self.load(candidate)
            except UnreadableImage as error:
                self.skipped.add(self.name(candidate), str(error))
        first = next(iter(self.skipped.reasons.values()))
        raise UnreadableImage(f"none of the {length} images can be read; the first met: {first}")


def numbered(names: Sequence[str], classes: Sequence[str], origin: str) -> list[int]:
    """The label of each class name, or one line about a name that is no class."""
    labels = {name: label for label, name in enumerate(classes)}
    unknown = sorted(set(names) - set(labels))
    if unknown:
        raise ValueError(f"{origin}: {unknown[0]!r} is not among the {len(classes)} classes of the training images")
    return [labels[name] for name in names]


def left_out_note(dataset: object) -> str:
    """One line about the files of a dataset that are no images; empty if there are none."""
    names: Sequence[str] = getattr(dataset, "left_out", ())
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    return f"{files} left out, in no format that Pillow reads: {few(names)}" if names else ""
