"""Parts of a dataset: some of its images, held out by the names of the files or numbered as another set is."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .sample import BoxArray, ImageDataset
from .skipping import SkipLog, SkippingDataset, numbered


class Part(SkippingDataset):
    """Some images of a dataset; an unreadable one is replaced from this part alone.

    Args:
        whole: the dataset.
        indices: which of its images, (n,).
        classes: other names in another order, among which are those of the images; the whole's if not given.
        skipped: the log of unreadable images; the whole's if not given.
    """

    def __init__(
        self,
        whole: SkippingDataset,
        indices: NDArray[np.int64],
        classes: Sequence[str] | None = None,
        skipped: SkipLog | None = None,
    ) -> None:
        labels = whole.labels[indices]
        if classes is not None:
            labels = np.array(numbered([whole.classes[label] for label in labels], classes, "this data"), np.int64)
        names = whole.classes if classes is None else classes
        log = whole.skipped if skipped is None else skipped
        super().__init__("this part of the data", labels, names, False, None, whole.max_pixels, log)
        self.whole, self.indices = whole, indices

    def name(self, index: int) -> str:
        """What the whole dataset calls it."""
        return self.whole.name(int(self.indices[index]))

    def source(self, index: int) -> bytes | str | Image.Image:
        """Where the whole dataset has it."""
        return self.whole.source(int(self.indices[index]))

    def size(self, index: int) -> int:
        """The bytes of an image where that is known."""
        return self.whole.size(int(self.indices[index]))

    def boxes_of(self, index: int) -> BoxArray:
        """The boxes of an image, (n, 4)."""
        return self.whole.boxes_of(int(self.indices[index]))


def held_out(dataset: SkippingDataset, share: float, seed: int = 0) -> NDArray[np.bool_]:
    """Which images are kept from training: a share of every class, at least one where it has two or more, (n,).

    An image is chosen by a hash of its name and the seed, so the choice does not depend on the order of the files, and
    further images change it little.
    """
    if not 0 < share < 1:
        raise ValueError(f"a share must lie between 0 and 1, got {share}")
    chosen = np.zeros(len(dataset), bool)
    for label in range(len(dataset.classes)):
        own = np.flatnonzero(dataset.labels == label)
        count = min(len(own) - 1, max(1, round(share * len(own))))
        ranked = sorted(own.tolist(), key=lambda index: _hash(seed, dataset.name(index)))
        chosen[ranked[: max(0, count)]] = True
    if not chosen.any():
        raise ValueError("no class has two images, so none can be held out: validate on other data with val_data")
    return chosen


def _hash(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(errors="surrogateescape"), digest_size=16).digest()


def hold_out(
    dataset: SkippingDataset, share: float, seed: int = 0, skipped: SkipLog | None = None
) -> tuple[Part, Part]:
    """A dataset in two parts, for training and for validation; ``skipped`` is the log of the second."""
    chosen = held_out(dataset, share, seed)
    train = Part(dataset, np.flatnonzero(~chosen))
    train.left_out = dataset.left_out
    return train, Part(dataset, np.flatnonzero(chosen), skipped=SkipLog() if skipped is None else skipped)


def fingerprint(dataset: ImageDataset) -> list[tuple[str, int, str]]:
    """Of every class its name, how many images it has, and a digest of their names and sizes; of drawn images the name.

    Example:
        >>> fingerprint(ImageFolder("photos"))[0]
        ('cat', 60, '8c1f0a…')
    """
    if not isinstance(dataset, SkippingDataset):
        return [(name, 0, "") for name in dataset.classes]
    rows = []
    for label, name in enumerate(dataset.classes):
        own = np.flatnonzero(dataset.labels == label).tolist()
        digest = hashlib.blake2b(digest_size=8)
        for line in sorted(f"{dataset.name(index)} {dataset.size(index)}\n" for index in own):
            digest.update(line.encode(errors="surrogateescape"))
        rows.append((name, len(own), digest.hexdigest()))
    return rows


def what_changed(before: Sequence[Sequence[object]], now: Sequence[Sequence[object]]) -> str:
    """What differs between two fingerprints, in one line; empty if nothing does."""
    old, new = ({str(name): tuple(rest) for name, *rest in rows} for rows in (before, now))
    lines = [f"class {name!r} is new" for name in new if name not in old]
    lines += [f"class {name!r} is gone" for name in old if name not in new]
    for name in old.keys() & new.keys():
        (count, digest), (count_now, digest_now) = old[name], new[name]
        if count != count_now:
            lines.append(f"{name!r} had {count} images and has {count_now}")
        elif digest != digest_now:
            lines.append(f"{name!r} has other files")
    lines.sort(key=lambda line: (not line.startswith("class"), line))
    return "; ".join([*lines[:4], *([f"{len(lines) - 4} more"] if len(lines) > 4 else [])])
