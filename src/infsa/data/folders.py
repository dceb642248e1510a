"""Images in folders: one folder per class, ImageNet-V2, and Tiny-ImageNet."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

from .annotations import Annotations, Boxed, read_tiny_imagenet
from .paths import (
    ALIASES,
    Names,
    check_split,
    class_folders,
    existing_file,
    existing_folder,
    images_below,
    in_order,
    is_image,
    readable_kind,
    split_folder,
    split_names,
)
from .skipping import Reading, SkippingDataset, numbered

IMAGENET_V2 = {
    "matched-frequency": "imagenetv2-matched-frequency-format-val",
    "threshold-0.7": "imagenetv2-threshold0.7-format-val",
    "top-images": "imagenetv2-top-images-format-val",
}


class ImageFiles(SkippingDataset):
    """Image files with labels, decoded when asked for; the other classes of this file only find them.

    Args:
        root: names are relative to this folder.
        files: (path, label) of every image.
        classes: the name of each label.
        annotations: boxes by name relative to ``root``, by file name or by its stem; images without have none.
        every_class: whether a class without an image is refused.
        left_out: files beside the images that are none, relative to ``root``.
        reading: ``max_pixels`` and ``skipped``, see :class:`SkippingDataset`.
    """

    def __init__(
        self,
        root: str | Path,
        files: Iterable[tuple[str | Path, int]],
        classes: list[str],
        annotations: Annotations | None = None,
        every_class: bool = False,
        left_out: Sequence[str] = (),
        **reading: Unpack[Reading],
    ) -> None:
        files = list(files)
        super().__init__(str(root), [label for _, label in files], classes, every_class, annotations, **reading)
        self.root, self.left_out = Path(root), list(left_out)
        self.names = Names(Path(os.path.relpath(path, root)).as_posix() for path, _ in files)

    def name(self, index: int) -> str:
        """The path of an image relative to the root."""
        return self.names[index]

    def source(self, index: int) -> str:
        """The path of an image."""
        return os.path.join(self.root, self.names[index])

    def size(self, index: int) -> int:
        """The bytes of a file; 0 if it is gone."""
        try:
            return os.stat(self.source(index)).st_size
        except OSError:
            return 0


class ImageFolder(ImageFiles):
    """One folder per class, with images in any format that Pillow reads; classes are ordered with 2 before 10.

    A validation split takes its classes from the training folder beside it, so that a class without validation images
    does not shift the labels of the others. Hidden files are passed over; other files that are not images are listed
    in ``left_out``. Images deeper inside a class folder are refused.

    Example:
        >>> ImageFolder("photos").classes
        ['cat', 'dog']
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        annotations: Annotations | None = None,
        **reading: Unpack[Reading],
    ) -> None:
        root = existing_folder(root)
        folder = root if split is None else split_folder(root, split)
        if folder is None:
            names = " or ".join(split_names(str(split)))
            raise FileNotFoundError(f"no folder {names} in {root}; put images of that split there, in class folders")
        training = None if split in (None, "train") else split_folder(root, "train")
        found = [path.name for path in class_folders(folder, empty=training is not None)]
        if set(found) <= {name for names in ALIASES.values() for name in names}:
            flat = any(map(is_image, os.listdir(folder / found[0])))
            raise ValueError(
                f"{folder / found[0]} must hold a folder per class, got images"
                if flat
                else f"{folder} holds the splits {', '.join(found)}: name one of them"
            )
        classes = in_order(found)
        if training is not None:
            classes = in_order(path.name for path in class_folders(training, empty=True))
            numbered(found, classes, str(folder))
        files, left_out = scan_classes(folder, {name: label for label, name in enumerate(classes)})
        super().__init__(folder, files, classes, annotations, left_out=left_out, **reading)


def scan_classes(folder: Path, labels: dict[str, int]) -> tuple[list[tuple[str, int]], list[str]]:
    """The images of class folders with their labels, in order, and the names of the files that are no images."""
    found, left_out = dict[str, int](), list[str]()
    for place in _visible(folder):
        if not place.is_dir():
            left_out.append(place.name)
            continue
        for entry in _visible(place.path):
            name = f"{place.name}/{entry.name}"
            if is_image(entry.name) and readable_kind(entry):
                found[name] = labels[place.name]
            elif entry.is_dir() and next(images_below(Path(entry.path)), None) is not None:
                raise ValueError(
                    f"images must lie in folders directly inside {folder}, got some in {entry.name!r} ({entry.path})"
                )
            else:
                left_out.append(name)
    return [(os.path.join(folder, name), found[name]) for name in in_order(found)], in_order(left_out)


def _visible(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in os.scandir(folder) if not entry.name.startswith("."))


def without_splits(data: str) -> bool:
    """Whether a dataset is a folder with neither a training nor a validation folder inside."""
    kind, _, path = data.partition(":")
    root = Path(path)
    return kind == "folder" and root.is_dir() and not (split_folder(root, "train") or split_folder(root, "val"))


class ImageNetV2(ImageFiles):
    """ImageNet-V2. Its folders are called 0 to 999 and the name is the label, whichever folders are there.

    Args:
        root: the folder of one variant, or the one that holds the three.
        variant: ``"matched-frequency"``, ``"threshold-0.7"`` or ``"top-images"``, where ``root`` holds the three.
        reading: ``max_pixels`` and ``skipped``, see :class:`SkippingDataset`.
    """

    def __init__(self, root: str | Path, variant: str | None = None, **reading: Unpack[Reading]) -> None:
        root = existing_folder(root)
        if variant is not None:
            if variant not in IMAGENET_V2:
                raise ValueError(f"variant must be one of {list(IMAGENET_V2)}, got {variant!r}")
            root = root if root.name == IMAGENET_V2[variant] else existing_folder(root / IMAGENET_V2[variant])
        names = [folder.name for folder in class_folders(root, empty=True)]
        for name in names:
            if not (name.isascii() and name.isdigit() and int(name) < 1000):
                raise ValueError(f"ImageNet-V2 folders are called 0 to 999, got {name!r} in {root}")
        files, left_out = scan_classes(root, {name: int(name) for name in names})
        classes = [str(label) for label in range(1000)]
        super().__init__(root, files, classes, left_out=left_out, **reading)


class TinyImageNet(ImageFiles):
    """Tiny-ImageNet as published: ``train/WNID/images``, ``val/images`` and their box files; one box per image.

    Labels number the sorted names of the training folders.
    """

    def __init__(self, root: str | Path, split: str = "train", **reading: Unpack[Reading]) -> None:
        check_split(split)
        root = existing_folder(root)
        folders = class_folders(existing_folder(root / "train"), empty=split == "val")
        classes = [folder.name for folder in folders]
        files: list[tuple[str | Path, int]] = []
        annotations: dict[str, Boxed] = {}
        if split == "train":
            for label, folder in enumerate(folders):
                annotations |= read_tiny_imagenet(existing_file(folder / f"{folder.name}_boxes.txt"))
                files += [(path, label) for path in sorted(folder.glob("images/*.JPEG"))]
        else:
            table = existing_file(root / "val" / "val_annotations.txt")
            annotations = read_tiny_imagenet(table)
            names = sorted(annotations)
            labels = numbered([annotations[name][1][0] for name in names], classes, str(table))
            files = [(root / "val" / "images" / name, label) for name, label in zip(names, labels, strict=True)]
        super().__init__(root, files, classes, annotations, every_class=split == "train", **reading)
