"""Images in tables: the npz shard, and a Hugging Face data set."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .boxes import as_boxes
from .decode import MAX_PIXELS, UnreadableImage, decode
from .folders import existing_file
from .sample import Sample
from .skipping import SkipLog, SkippingDataset

SHARD = {"jpeg": 1, "offset": 1, "label": 1, "box": 2, "is_val": 1, "wnid": 1, "name": 1}  # array → dimensions


class NpzShard(SkippingDataset):
    """A numpy archive of JPEGs with a label and a box each.

    The arrays are ``jpeg`` (all files end to end, uint8), ``offset`` (n + 1), ``label`` (n), ``box`` (n, 4) with
    inclusive corners, ``is_val`` (n), and per class ``wnid`` and ``name``.

    Example:
        >>> shard = NpzShard("tiny-imagenet-a.npz", split="val")
        >>> len(shard), shard.classes[0]
        (2500, 'goldfish, Carassius auratus')
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be one of ['train', 'val'], got {split!r}")
        self.path, self.split, self.max_pixels = existing_file(path), split, max_pixels
        self.skipped = SkipLog() if skipped is None else skipped
        arrays = _read_shard(self.path)
        rows = np.flatnonzero(arrays["is_val"].astype(bool) == (split == "val"))
        if not len(rows):
            raise ValueError(f"{path} holds no images of the split {split!r}")
        self.rows, self.blob, self.offset = rows, arrays["jpeg"], arrays["offset"]
        self.labels, self.classes = arrays["label"], [str(name) for name in arrays["name"]]
        self.boxes = arrays["box"].astype(np.float32) + np.array([0, 0, 1, 1], np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """The shard and the row of an image."""
        return f"{self.path.name}/{self.rows[index]}"

    def load(self, index: int) -> Sample:
        """Decode one image."""
        row, name = self.rows[index], self.name(index)
        image = decode(self.blob[self.offset[row] : self.offset[row + 1]].tobytes(), self.max_pixels, name)
        return Sample(image, int(self.labels[row]), self.boxes[row : row + 1], name)


def _read_shard(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in SHARD if name not in archive]
            if missing:
                raise ValueError(f"{path}: the arrays {missing} are missing")
            arrays = {name: archive[name] for name in SHARD}
    except (zipfile.BadZipFile, EOFError, OSError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a whole npz file") from error
    rows = len(arrays["label"])
    expected = {"offset": (rows + 1,), "box": (rows, 4), "is_val": (rows,), "label": (rows,)}
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {name} must have the shape {shape}, got {arrays[name].shape}")
    as_boxes(arrays["box"])
    if rows and not 0 <= arrays["label"].min() <= arrays["label"].max() < len(arrays["name"]):
        raise ValueError(f"{path}: labels must be from 0 to {len(arrays['name']) - 1}, got {arrays['label'].max()}")
    return arrays


class HuggingFace(SkippingDataset):
    """A data set of the ``datasets`` library, already loaded, with a column of images and one of labels.

    Example:
        >>> cats = datasets.load_dataset("imagefolder", data_dir="photos", split="train")
        >>> HuggingFace(cats).classes
        ['cat', 'dog']
    """

    def __init__(
        self,
        dataset: Any,
        image: str = "image",
        label: str = "label",
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        import datasets  # type: ignore[import-untyped]

        if not isinstance(dataset, datasets.Dataset):
            raise TypeError(f"expected a datasets.Dataset (one split, not streamed), got {type(dataset).__name__}")
        for column in (image, label):
            if column not in dataset.column_names:
                raise ValueError(f"no column {column!r}; the data set has {dataset.column_names}")
        if not len(dataset):
            raise ValueError("the data set holds no images")
        self.max_pixels, self.skipped = max_pixels, SkipLog() if skipped is None else skipped
        names = getattr(dataset.features[label], "names", None)
        self.classes = list(names) if names else [str(value) for value in range(max(dataset[label]) + 1)]
        self._table = dataset.select_columns([image, label]).cast_column(image, datasets.Image(decode=False))
        self._image, self._label = image, label

    def __len__(self) -> int:
        return len(self._table)

    def name(self, index: int) -> str:
        """The row of an image."""
        return f"row {index}"

    def load(self, index: int) -> Sample:
        """Decode one image."""
        row, name = self._table[index], self.name(index)
        content: Mapping[str, Any] | None = row[self._image]
        source = content and (content["bytes"] or content["path"])
        if not source:
            raise UnreadableImage(f"{name}: no image")
        return Sample(decode(source, self.max_pixels, name), int(row[self._label]), as_boxes([]), name)
