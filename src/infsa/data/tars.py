"""Images inside uncompressed tars, read where they lie: nothing is unpacked and nothing is written."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .annotations import Annotations
from .decode import UnreadableImage
from .paths import Names
from .skipping import Reading, SkippingDataset


class Member(NamedTuple):
    """A file inside a tar: its name, where its bytes start, how many there are, and the bytes if they were wanted."""

    name: str
    offset: int
    size: int
    content: bytes | None = None


def members(path: str | Path, start: int = 0, wanted: Callable[[str], bool] = lambda name: False) -> Iterator[Member]:
    """The files of an uncompressed tar in order; the contents of those whose name is ``wanted`` come along.

    Args:
        path: of the tar.
        start: where the tar starts in its file, for a tar inside another.
        wanted: which contents to read.
    """
    try:
        with open(path, "rb") as file:
            file.seek(start)
            with tarfile.TarFile(fileobj=file) as tar:
                while (entry := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # or they pile up, a kilobyte each
                    if entry.isfile():
                        stream = tar.extractfile(entry) if wanted(entry.name) else None
                        content = None if stream is None else stream.read()
                        yield Member(entry.name, entry.offset_data, entry.size, content)
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{path} is not a complete uncompressed tar: {error}") from error


class TarImages(SkippingDataset):
    """Images inside tars, each read by its place; a file is opened for every read, so any number of workers may.

    Args:
        tars: the files.
        which: for every image, the number of its tar, (n,).
        images: where each lies in its tar.
        origin, labels, classes, every_class, annotations, reading: see :class:`SkippingDataset`.
    """

    def __init__(
        self,
        tars: Sequence[str | Path],
        which: ArrayLike,
        images: Sequence[Member],
        origin: str,
        labels: ArrayLike,
        classes: Sequence[str],
        every_class: bool = False,
        annotations: Annotations | None = None,
        **reading: Unpack[Reading],
    ) -> None:
        super().__init__(origin, labels, classes, every_class, annotations, **reading)
        self.tars = [str(tar) for tar in tars]
        self.which = np.asarray(which, np.int64)  # (n,)
        self.places = np.array([(image.offset, image.size) for image in images], np.int64)  # (n, 2)
        self.names = Names(image.name for image in images)

    def name(self, index: int) -> str:
        """The tar and the name of an image in it."""
        return f"{Path(self.tars[self.which[index]]).name}/{self.names[index]}"

    def size(self, index: int) -> int:
        """The number of bytes of one image."""
        return int(self.places[index, 1])

    def source(self, index: int) -> bytes:
        """The bytes of one image."""
        offset, size = self.places[index].tolist()
        try:
            with open(self.tars[self.which[index]], "rb", buffering=0) as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise UnreadableImage(f"{self.name(index)}: {error.strerror}") from error
