"""What timm and torchvision open: torchvision's own datasets, and images in tars."""

import tarfile
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from PIL import Image
from timm.data import create_dataset
from timm.data.readers.reader_image_in_tar import extract_tarinfos

from .decode import UnreadableImage
from .paths import ALIASES, check_split, split_names
from .skipping import Reading, SkippingDataset, numbered
from .tars import Member, TarImages

ELSEWHERE = {"hfds": "hf:NAME", "hfids": "hf:NAME", "wds": "wds:PATTERN", "tfds": "hf:NAME", "folder": "folder:PATH"}


def open_timm(name: str, split: str = "train", download: bool = False, **reading: Unpack[Reading]) -> SkippingDataset:
    """Open ``torch/NAME[:ROOT]`` through timm's ``create_dataset``, or ``tar:ROOT`` through timm's tar reader.

    Args:
        name: ``torch/cifar10:ROOT``, with any name that timm knows after ``torch/``; ``ROOT`` is the current folder
            if it is not given. ``tar:ROOT`` reads a .tar file, or a folder with the tars or folders of tars of each
            split; the class is the folder or tar that an image lies in.
        split: ``"train"`` or ``"val"``.
        download: whether torchvision may fetch what is missing.
        reading: ``max_pixels`` and ``skipped``, see :class:`SkippingDataset`.
    """
    check_split(split)
    kind, _, root = name.partition(":")
    if kind == "tar" and root:
        if download:
            raise ValueError(f"download is for torch/NAME only, got timm:{name}")
        return _open_tars(root, split, **reading)
    family, _, title = kind.partition("/")
    if family != "torch" or title in ("", "folder", "image_folder"):
        hint = ELSEWHERE.get("folder" if "folder" in kind else family)
        raise ValueError(f"timm:{name} is not torch/NAME[:ROOT] or tar:ROOT" + (f"; use {hint}" if hint else ""))
    timm_split = "validation" if split == "val" else split
    try:
        dataset = create_dataset(kind, root=root or ".", split=timm_split, download=download)
    except Exception as error:  # torchvision raises almost anything, timm asserts
        raise ValueError(f"timm:{name}, split {split!r}: {' '.join(str(error).split())}") from error
    return TorchDataset(dataset, kind, split == "train", **reading)


class TorchDataset(SkippingDataset):
    """A dataset of torchvision without a transform: Pillow images and whole numbers."""

    def __init__(self, dataset: Any, title: str, every_class: bool = False, **reading: Unpack[Reading]) -> None:
        labels = _targets(dataset)
        names = getattr(dataset, "classes", None) or getattr(dataset, "all_categories", None)
        classes = [", ".join(name) if isinstance(name, tuple) else str(name) for name in names or ()]
        if not classes:
            classes = [str(label) for label in range(int(labels.max(initial=-1)) + 1)]
        super().__init__(title, labels, classes, every_class, **reading)
        self.dataset, self.title = dataset, title

    def name(self, index: int) -> str:
        """The title of the dataset and the place of an image in it."""
        return f"{self.title}/{index}"

    def source(self, index: int) -> Image.Image:
        """One image as torchvision gives it."""
        try:
            image = self.dataset[index][0]
        except OSError as error:
            raise UnreadableImage(f"{self.name(index)}: {' '.join(str(error).split())}") from error
        if not isinstance(image, Image.Image):
            raise TypeError(f"expected images of Pillow, got {type(image).__name__}: leave the transform out")
        return image


def _targets(dataset: Any) -> np.ndarray[Any, Any]:
    """Every label of a torchvision dataset, without reading its images where it keeps a list."""
    if hasattr(dataset, "targets"):
        targets = np.asarray(dataset.targets)
        return targets[:, 0] if targets.ndim == 2 else targets  # QMNIST keeps more than the digit
    if hasattr(dataset, "index"):  # iNaturalist: (category, file)
        return np.array([category for category, _ in dataset.index])
    return np.array([dataset[index][1] for index in range(len(dataset))])


def _open_tars(root: str, split: str, **reading: Unpack[Reading]) -> TarImages:
    place = _tar_place(Path(root), split)
    if place is None:
        names = ", ".join(f"{name}.tar" for name in split_names(split))
        raise FileNotFoundError(f"no tars of the split {split!r} at {root}; looked for {names}, and folders of tars")
    found, labels, classes = _scan(place)
    training = None if split == "train" else _tar_place(Path(root), "train")
    if training is not None:
        words, classes = [classes[label] for label in labels], _scan(training)[2]
        labels = numbered(words, classes, str(place))
    tars = sorted({tar for tar, _ in found})
    which, images = [tars.index(tar) for tar, _ in found], [image for _, image in found]
    return TarImages(tars, which, images, str(place), labels, classes, split == "train", **reading)


def _tar_place(root: Path, split: str) -> Path | None:
    """The tar or the folder of tars of a split. One tar, or tars that name no split, are for training."""
    if root.is_file():
        return root if split == "train" else None
    options = {name: _named_place(root, name) for key in ALIASES for name in split_names(key)}
    found = next((options[name] for name in split_names(split) if options[name]), None)
    if found is None and split == "train" and not any(options.values()) and any(root.glob("*.tar")):
        return root
    return found


def _named_place(root: Path, name: str) -> Path | None:
    if (root / f"{name}.tar").is_file():
        return root / f"{name}.tar"
    return root / name if any((root / name).glob("*.tar")) else None


def _scan(place: Path) -> tuple[list[tuple[str, Member]], list[int], list[str]]:
    """Every image with its tar, its label, and the classes, as timm finds them."""
    try:
        infos, targets, numbers, _ = extract_tarinfos(str(place), cache_tarinfo=False)
    except (tarfile.TarError, OSError, ValueError, AssertionError) as error:
        raise ValueError(f"{place} is not a complete tar of images in folders: {error}") from error
    found = []
    for info, tar, inner in infos:  # a tar inside a tar counts its places from its own start
        start = 0 if inner is None else inner.offset_data
        found.append((str(place / tar if tar else place), Member(info.name, start + info.offset_data, info.size)))
    return found, targets.tolist(), sorted(numbers, key=numbers.__getitem__)
