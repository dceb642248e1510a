"""Images in tables: the npz shard, and Hugging Face datasets."""

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from .boxes import as_boxes
from .decode import UnreadableImage
from .paths import check_split, existing_file, split_names
from .sample import BoxArray
from .skipping import Reading, SkippingDataset, numbered

SHARD = ("jpeg", "offset", "label", "box", "is_val", "wnid", "name")
LABELS = ("label", "labels", "fine_label", "class", "target")  # what a column of labels is usually called


class NpzShard(SkippingDataset):
    """A numpy archive of JPEGs with a label and a box each, or a folder of such archives of different classes.

    The arrays are ``jpeg`` (all files end to end, uint8), ``offset`` (n + 1), ``label`` (n), ``box`` (n, 4) with
    inclusive corners, ``is_val`` (n), and per class ``wnid`` and ``name``. The archives of a folder follow one another
    in the order of their names, and so do their classes.
    """

    def __init__(self, path: str | Path, split: str = "train", **reading: Unpack[Reading]) -> None:
        check_split(split)
        files = _shards_in(Path(path))
        shards = [_read_shard(file) for file in files]
        _check_classes(files, shards)
        arrays = {name: np.concatenate([shard[name] for shard in shards]) for name in SHARD if name != "offset"}
        counts = [len(shard["label"]) for shard in shards]
        bytes_before, rows_before, classes_before = (
            np.cumsum([0, *map(len, parts)])[:-1]
            for parts in zip(*((shard["jpeg"], shard["label"], shard["name"]) for shard in shards), strict=True)
        )
        labels = arrays["label"].astype(np.int64) + np.repeat(classes_before, counts)
        rows = np.flatnonzero(arrays["is_val"].astype(bool) == (split == "val"))
        origin, classes = f"the split {split!r} of {path}", [str(name) for name in arrays["name"]]
        super().__init__(origin, labels[rows], classes, split == "train", **reading)
        self.path, self.split = Path(path), split
        self.rows, self.blob = rows, arrays["jpeg"]
        self.starts, self.ends = (
            np.concatenate([shard["offset"][cut] + start for shard, start in zip(shards, bytes_before, strict=True)])
            for cut in (slice(-1), slice(1, None))
        )
        self.files, self.rows_before = [file.name for file in files], rows_before
        self.boxes = arrays["box"].astype(np.float32) + np.array([0, 0, 1, 1], np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        """A spawned worker reads the file again: less to send than its contents."""
        again = partial(type(self), max_pixels=self.max_pixels, skipped=self.skipped)
        return again, (self.path, self.split)

    def name(self, index: int) -> str:
        """The shard and the row of an image."""
        row = self.rows[index]
        shard = int(np.searchsorted(self.rows_before, row, side="right")) - 1
        return f"{self.files[shard]}/{row - self.rows_before[shard]}"

    def size(self, index: int) -> int:
        """The number of bytes of one JPEG."""
        row = self.rows[index]
        return int(self.ends[row] - self.starts[row])

    def source(self, index: int) -> bytes:
        """The bytes of one JPEG."""
        row = self.rows[index]
        return self.blob[self.starts[row] : self.ends[row]].tobytes()

    def boxes_of(self, index: int) -> BoxArray:
        """The box of one image, (1, 4)."""
        row = self.rows[index]
        return self.boxes[row : row + 1]


def _shards_in(path: Path) -> list[Path]:
    """The archive itself, or those of a folder in the order of their names."""
    if not path.is_dir():
        return [existing_file(path)]
    files = sorted(path.glob("*.npz"))
    if not files:
        raise ValueError(f"{path} holds no .npz file")
    return files


def _check_classes(files: list[Path], shards: list[dict[str, np.ndarray[Any, Any]]]) -> None:
    """Refuse archives that share a class, and labels without a class of the same archive."""
    seen: dict[str, Path] = {}
    for file, shard in zip(files, shards, strict=True):
        labels, count = shard["label"], len(shard["name"])
        if len(files) > 1 and len(labels) and not 0 <= labels.min() <= labels.max() < count:
            raise ValueError(f"{file}: label must lie in [0, {count}), got {labels.min()} to {labels.max()}")
        for wnid in map(str, shard["wnid"]):
            if len(files) > 1 and wnid in seen:
                raise ValueError(f"the class {wnid} is in {seen[wnid].name} and in {file.name}")
            seen[wnid] = file


def _read_shard(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a complete npz file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in SHARD if name not in archive]
            if missing:
                raise ValueError(f"{path}: the arrays {missing} are missing")
            arrays = {name: archive[name] for name in SHARD}
    except (zipfile.BadZipFile, EOFError, OSError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a complete npz file") from error
    rows = len(arrays["label"])
    expected = {"offset": (rows + 1,), "box": (rows, 4), "is_val": (rows,), "label": (rows,)}
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {name} must have the shape {shape}, got {arrays[name].shape}")
    as_boxes(arrays["box"])
    offset = arrays["offset"]
    if offset[0] < 0 or (np.diff(offset) < 0).any() or offset[-1] > len(arrays["jpeg"]):
        raise ValueError(f"{path}: offset must rise from 0 to at most {len(arrays['jpeg'])}, the length of jpeg")
    return arrays


class HuggingFace(SkippingDataset):
    """A dataset of the ``datasets`` library, already loaded, with a column of images and one of labels.

    Labels are whole numbers, or text: then the classes are the sorted words, or those of ``classes``.

    Args:
        dataset: one split, not streamed.
        image: the column of images; the only one of that type if not given.
        label: the column of labels; the only one of type ClassLabel, or one with a usual name, if not given.
        classes: the name of each label, where the table has none.
        every_class: whether a class without an image is refused.
        reading: ``max_pixels`` and ``skipped``, see :class:`SkippingDataset`.
    """

    def __init__(
        self,
        dataset: Any,
        image: str | None = None,
        label: str | None = None,
        classes: list[str] | None = None,
        every_class: bool = False,
        **reading: Unpack[Reading],
    ) -> None:
        import datasets  # type: ignore[import-untyped]

        if not isinstance(dataset, datasets.Dataset):
            raise TypeError(f"expected a datasets.Dataset (one split, not streamed), got {type(dataset).__name__}")
        image = _column(dataset, "image", image, datasets.Image, ("image", "img"))
        label = _column(dataset, "label", label, datasets.ClassLabel, LABELS)
        origin = f"column {label!r}"
        numbers, names = _labels(dataset, label, classes, origin)
        super().__init__(origin, numbers, names, every_class, **reading)
        self._table = dataset.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        self._image = image

    def name(self, index: int) -> str:
        """The row of an image."""
        return f"row {index}"

    def source(self, index: int) -> bytes | str:
        """The bytes or the path of one image."""
        content: Mapping[str, Any] | None = self._table[index][self._image]
        source = content and (content["bytes"] or content["path"])
        if not source:
            raise UnreadableImage(f"{self.name(index)}: no image")
        return source


def open_hugging_face(
    name: str,
    split: str = "train",
    config: str | None = None,
    image: str | None = None,
    label: str | None = None,
    **reading: Unpack[Reading],
) -> HuggingFace:
    """Open a Hugging Face dataset: a name on the hub, a folder of images or tables, a saved dataset or one table.

    Args:
        name: what ``datasets.load_dataset`` accepts, a folder that ``save_to_disk`` wrote, or a .parquet, .arrow,
            .json or .csv file.
        split: ``"val"`` stands for validation, or for test where there is no validation; any other split by its name.
        config: of datasets that come in several.
        image, label, reading: see :class:`HuggingFace`.
    """
    try:
        splits = _load(name, config)
    except Exception as error:  # anything from a network failure to a malformed table
        raise ValueError(f"hf:{name} cannot be opened: {' '.join(str(error).split())}") from error
    found = next((option for option in split_names(split) if option in splits), None)
    if found is None:
        raise ValueError(f"hf:{name} has no split {split!r}; it has {sorted(splits)}")
    classes = None
    training = next((option for option in split_names("train") if option in splits), found)
    if training != found:  # text labels are numbered as in training
        classes = HuggingFace(splits[training], image, label).classes
    try:
        return HuggingFace(splits[found], image, label, classes, split == "train", **reading)
    except ValueError as error:
        raise ValueError(f"hf:{name}, split {found!r}: {error}") from error


def _load(name: str, config: str | None) -> Mapping[str, Any]:
    import datasets

    path, kinds = Path(name), {".parquet": "parquet", ".arrow": "arrow", ".json": "json", ".csv": "csv"}
    if (path / "dataset_dict.json").is_file():
        loaded = datasets.load_from_disk(name)
    elif (path / "state.json").is_file():
        loaded = {"train": datasets.load_from_disk(name)}
    elif path.is_file():
        if path.suffix not in kinds:
            raise ValueError(f"a file must end in one of {list(kinds)}")
        loaded = datasets.load_dataset(kinds[path.suffix], config, data_files=name)
    else:
        loaded = datasets.load_dataset(name, config)
    return dict(loaded)


def _column(dataset: Any, what: str, given: str | None, kind: type, usual: tuple[str, ...]) -> str:
    """The column of images or labels: the given one, else the only one of its type, else one of a usual name."""
    columns = dataset.column_names
    if given is not None:
        if given not in columns:
            raise ValueError(f"no column {given!r}; the dataset has {columns}")
        return given
    typed = [name for name in columns if isinstance(dataset.features[name], kind)]
    named = [name for name in usual if name in (typed or columns)]
    if len(typed) == 1 or named:
        return (typed if len(typed) == 1 else named)[0]
    raise ValueError(f"cannot tell the {what} column among {columns}; pass {what}=")


def _labels(dataset: Any, column: str, classes: list[str] | None, origin: str) -> tuple[Any, list[str]]:
    """The labels as numbers, and the name of each class."""
    values = dataset.select_columns([column]).with_format("numpy")[:][column]
    names = getattr(dataset.features[column], "names", None)
    if not len(values):
        raise ValueError("the dataset holds no images")
    if values.dtype.kind in "iub":
        return values, names or classes or [str(value) for value in range(int(values.max()) + 1)]
    texts = values.tolist()
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{origin} must hold whole numbers or text, got {texts[0]!r}")
    words = classes or sorted(set(texts))
    return numbered(texts, words, origin), words
