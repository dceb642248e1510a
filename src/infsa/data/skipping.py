"""Data sets that meet unreadable images: each is logged by name and replaced by the next good one."""

import json
from abc import ABC, abstractmethod
from pathlib import Path

from .decode import UnreadableImage
from .sample import Sample


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
        """Note an image and the reason.

        Example:
            >>> log.add("cat.jpg", "truncated")
        """
        if name in self.reasons:
            return
        self.reasons[name] = reason
        if self.file is not None:
            with open(self.file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"name": name, "reason": reason}) + "\n")

    @property
    def names(self) -> list[str]:
        """The skipped images in the order in which they were met."""
        return list(self.reasons)

    @classmethod
    def read(cls, file: str | Path) -> "SkipLog":
        """The log that several processes wrote to one file; empty if none wrote.

        Example:
            >>> SkipLog.read("skipped.jsonl").names
            ['cat.jpg']
        """
        log = cls()
        if Path(file).exists():
            for line in Path(file).read_text(encoding="utf-8").splitlines():
                log.add(**json.loads(line))
        return log

    def __len__(self) -> int:
        return len(self.reasons)

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (f" and {len(self) - 3} more" if len(self) > 3 else "")
        return f"{len(self)} image{'' if len(self) == 1 else 's'} skipped" + (f": {shown}" if len(self) else "")


class SkippingDataset(ABC):
    """A data set whose subclass loads sample ``index`` or raises :class:`UnreadableImage`.

    An unreadable image is replaced by the next readable one in order, cyclically, and noted in ``skipped``. The
    replacement depends on the files alone, so it is the same in every process and every epoch.

    Example:
        >>> dataset = ImageFolder("photos")
        >>> dataset[3].name, str(dataset.skipped)  # photo 3 is damaged
        ('cat/4.jpg', '1 image skipped: cat/3.jpg')
    """

    classes: list[str]
    skipped: SkipLog

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> Sample:
        """Sample ``index``, from 0 to len - 1, or :class:`UnreadableImage`."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What sample ``index`` is called."""

    def __getitem__(self, index: int) -> Sample:
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"index {index} is outside a data set of {length} samples")
        for candidate in (step % length for step in range(index % length, index % length + length)):
            if self.name(candidate) in self.skipped.reasons:
                continue
            try:
                return self.load(candidate)
            except UnreadableImage as error:
                self.skipped.add(self.name(candidate), str(error))
        first = next(iter(self.skipped.reasons.values()))
        raise UnreadableImage(f"none of the {length} images can be read; the first met: {first}")
