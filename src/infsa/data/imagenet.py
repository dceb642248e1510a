"""ImageNet-1K in the forms in which people have it: class folders, the Kaggle tree, the original tars.

Labels number the sorted WordNet ids of the training images, whatever the form.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from .annotations import Annotations, Boxed, read_loc_csv, read_voc_xml
from .decode import UnreadableImage
from .devkit import Devkit
from .folders import ImageFiles
from .paths import check_split, existing_folder, is_image
from .skipping import Reading, SkippingDataset, numbered
from .tars import Member, TarImages, members

KAGGLE = Path("ILSVRC", "Data", "CLS-LOC")
FOLDERS = {"train": ("train",), "val": ("val", "validation")}  # test has no labels
WNID = re.compile(r"n\d{8}")


def open_imagenet(root: str | Path, split: str = "train", **reading: Unpack[Reading]) -> SkippingDataset:
    """Open ImageNet-1K, with boxes where the Kaggle tree's annotations are there.

    Args:
        root: a folder with one of

            - ``train/WNID/*.JPEG`` and ``val/WNID/*.JPEG`` (or ``validation``); ``val`` may also be flat, with
              ``LOC_val_solution.csv`` or the devkit beside it;
            - the Kaggle tree: ``ILSVRC/Data/CLS-LOC/{train,val}``, ``LOC_val_solution.csv``,
              ``ILSVRC/Annotations/CLS-LOC``; ``root`` may be any of its folders down to ``CLS-LOC``;
            - ``ILSVRC2012_img_train.tar`` and ``ILSVRC2012_img_val.tar`` as published, and for the labels of the
              latter the devkit ``ILSVRC2012_devkit_t12``, unpacked or as .tar.gz.
        split: ``"train"`` or ``"val"``.
        reading: ``max_pixels`` and ``skipped``, see :class:`SkippingDataset`.
    """
    check_split(split)
    place = _Place(existing_folder(root))
    classes, boxes = place.classes(), place.boxes(split)
    tar, folder = place.root / f"ILSVRC2012_img_{split}.tar", _split_folder(place.data, split)
    complete = split == "train"
    if folder is not None:
        files, names = _in_folder(folder, place)
        labels = numbered(names, classes, str(folder))
        pairs = zip(files, labels, strict=True)
        return ImageFiles(place.data, pairs, classes, boxes, complete, **reading)
    if tar.is_file():
        images, names = _in_tar(tar, place) if split == "val" else _in_nested_tar(tar)
        labels, which = numbered(names, classes, str(tar)), [0] * len(images)
        return TarImages([tar], which, images, str(tar), labels, classes, complete, boxes, **reading)
    looked = f"{split}, {KAGGLE / split} and {tar.name}"
    raise FileNotFoundError(f"no ImageNet-1K images of the split {split!r} in {root}; looked for {looked}")


class _Place:
    """The folders of one copy of ImageNet, wherever in the Kaggle tree ``root`` points."""

    def __init__(self, root: Path) -> None:
        self.root = root
        inside = (root, *(root.joinpath(*KAGGLE.parts[skip:]) for skip in range(3)))
        self.data = next((path for path in inside if any(_split_folder(path, split) for split in FOLDERS)), root)
        full = self.data.resolve()
        kaggle = full.parts[-2:] == KAGGLE.parts[1:]
        self.around = [root, full.parents[1], full.parents[2]] if kaggle else [root]

    def beside(self, name: str | Path) -> Path | None:
        """A file or folder that describes the images, or None."""
        return next((path / name for path in self.around if (path / name).exists()), None)

    def classes(self) -> list[str]:
        """The sorted WordNet ids: of the training images if they are there, else of what describes them."""
        folder, tar = _split_folder(self.data, "train"), self.root / "ILSVRC2012_img_train.tar"
        table = self.beside("LOC_synset_mapping.txt")
        if folder is not None:
            return sorted(_wnids(entry.name for entry in os.scandir(folder) if entry.is_dir()))
        if tar.is_file():
            return sorted(_wnids(Path(member.name).stem for member in members(tar)))
        if table is not None:
            return sorted(_wnids(line.split()[0] for line in table.read_text(encoding="utf-8").splitlines() if line))
        devkit, folder = Devkit.find(self.around), _split_folder(self.data, "val")
        if devkit is not None:
            return sorted(devkit.wnids.values())
        return sorted(_wnids(entry.name for entry in os.scandir(folder) if entry.is_dir())) if folder else []

    def boxes(self, split: str) -> Annotations | None:
        """Boxes by the stem of an image, from the XML files or else the localisation table."""
        folder, table = self.beside(Path("Annotations", "CLS-LOC", split)), self.beside(f"LOC_{split}_solution.csv")
        if folder is not None:
            return _XmlBoxes(folder)
        return None if table is None else read_loc_csv(table)

    def label_names(self) -> tuple[Mapping[str, str], str]:
        """The WordNet id of every flat validation image by its stem, and where that was found."""
        table, devkit = self.beside("LOC_val_solution.csv"), Devkit.find(self.around)
        if table is not None:
            return {name: labels[0] for name, (_, labels) in read_loc_csv(table).items() if labels}, str(table)
        if devkit is not None:
            return devkit.validation(), str(devkit.path)
        raise FileNotFoundError(
            f"the validation images in {self.root} are not in class folders; their labels need LOC_val_solution.csv "
            "or ILSVRC2012_devkit_t12 beside them"
        )


class _XmlBoxes(Mapping[str, Boxed]):
    """ImageNet's XML files by the stem of an image, each read when it is asked for; many images have none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, stem: str) -> Path:
        wnid = stem.partition("_")[0]
        return self.folder.joinpath(*([wnid] if WNID.fullmatch(wnid) else []), f"{stem}.xml")

    def __contains__(self, stem: object) -> bool:
        return isinstance(stem, str) and "/" not in stem and self._file(stem).is_file()

    def __getitem__(self, stem: str) -> Boxed:
        try:
            return read_voc_xml(self._file(stem), one_based=False)[stem]
        except ValueError as error:
            raise UnreadableImage(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in self.folder.rglob("*.xml"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _split_folder(root: Path, split: str) -> Path | None:
    return next((root / name for name in FOLDERS[split] if (root / name).is_dir()), None)


def _wnids(names: Iterator[str]) -> Iterator[str]:
    for name in names:
        if not name.startswith("."):
            if not WNID.fullmatch(name):
                raise ValueError(f"ImageNet's classes are WordNet ids such as n01440764, got {name!r}")
            yield name


def _in_folder(folder: Path, place: _Place) -> tuple[list[str], list[str]]:
    """The images of a split and the WordNet id of each: by folder, or for a flat one by the tables beside it."""
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    if any(entry.is_dir() and WNID.fullmatch(entry.name) for entry in entries):
        pairs = [
            (image.path, entry.name)
            for entry in entries
            if entry.is_dir()
            for image in sorted(os.scandir(entry), key=lambda image: image.name)
            if is_image(image.name)
        ]
        return [path for path, _ in pairs], [name for _, name in pairs]
    images = [entry.path for entry in entries if is_image(entry.name)]
    return images, _labelled(images, place)


def _in_tar(tar: Path, place: _Place) -> tuple[list[Member], list[str]]:
    images = sorted(member for member in members(tar) if is_image(member.name))
    return images, _labelled([image.name for image in images], place)


def _in_nested_tar(tar: Path) -> tuple[list[Member], list[str]]:
    """The images of one tar per class inside ``tar``; their places count from the start of ``tar``."""
    found = [
        (image, Path(inner.name).stem)
        for inner in sorted(members(tar))
        for image in sorted(members(tar, start=inner.offset))
        if is_image(image.name)
    ]
    return [image for image, _ in found], [wnid for _, wnid in found]


def _labelled(images: Sequence[str], place: _Place) -> list[str]:
    names, origin = place.label_names()
    stems = [Path(image).stem for image in images]
    missing = [stem for stem in stems if stem not in names]
    if missing:
        raise ValueError(f"{origin} has no label for {missing[0]}")
    return [names[stem] for stem in stems]
