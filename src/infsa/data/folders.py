"""Images in folders: one folder per class, ImageNet-V2, and Tiny-ImageNet."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from timm.data.readers import create_reader
from timm.data.readers.img_extensions import get_img_extensions

from .annotations import Annotations, read_tiny_imagenet
from .decode import MAX_PIXELS, decode
from .sample import BoxArray, Sample
from .skipping import SkipLog, SkippingDataset

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
        max_pixels: see :func:`decode`.
        skipped: the log of unreadable images; a new one if not given.

    Example:
        >>> ImageFiles("photos", [("photos/a.jpg", 0)], classes=["cat"])[0].name
        'a.jpg'
    """

    def __init__(
        self,
        root: str | Path,
        files: Iterable[tuple[str | Path, int]],
        classes: list[str],
        annotations: Annotations | None = None,
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        self.root, self.files, self.classes = Path(root), [(str(path), label) for path, label in files], classes
        self.annotations, self.max_pixels = annotations or {}, max_pixels
        self.skipped = SkipLog() if skipped is None else skipped
        if not self.files:
            raise ValueError(f"no images in {root}; accepted are {', '.join(get_img_extensions())}")

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """The path of an image relative to the root."""
        return Path(os.path.relpath(self.files[index][0], self.root)).as_posix()

    def load(self, index: int) -> Sample:
        """Decode one image."""
        (path, label), name = self.files[index], self.name(index)
        return Sample(decode(path, self.max_pixels, name=name), label, self._boxes(name), name)

    def _boxes(self, name: str) -> BoxArray:
        for key in (name, Path(name).name, Path(name).stem):
            if key in self.annotations:
                return self.annotations[key][0]
        return np.zeros((0, 4), np.float32)


class ImageFolder(ImageFiles):
    """One folder per class, read through timm; classes are in timm's order, where 2 comes before 10.

    Example:
        >>> folder = ImageFolder("photos", split="val")  # photos/val/cat/1.jpg, photos/val/dog/7.png, …
        >>> folder.classes
        ['cat', 'dog']
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        annotations: Annotations | None = None,
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        root = existing_folder(root)
        if split is not None:
            root = _split_folder(root, split)
        class_folders(root)
        reader = _timm_reader(root)
        classes = sorted(reader.class_to_idx, key=reader.class_to_idx.__getitem__)
        super().__init__(root, reader.samples, classes, annotations, max_pixels, skipped)


class ImageNetV2(ImageFiles):
    """ImageNet-V2. Its folders are called 0 to 999 and the name is the label, whichever folders are there.

    Args:
        root: the folder of one variant, or the one that holds the three.
        variant: ``"matched-frequency"``, ``"threshold-0.7"`` or ``"top-images"``, where ``root`` holds the three.
        max_pixels: see :func:`decode`.
        skipped: the log of unreadable images; a new one if not given.

    Example:
        >>> ImageNetV2("imagenetv2", variant="top-images")[0].label
        0
    """

    def __init__(
        self,
        root: str | Path,
        variant: str | None = None,
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        root = existing_folder(root)
        if variant is not None:
            if variant not in IMAGENET_V2:
                raise ValueError(f"variant must be one of {list(IMAGENET_V2)}, got {variant!r}")
            root = root if root.name == IMAGENET_V2[variant] else existing_folder(root / IMAGENET_V2[variant])
        names = [folder.name for folder in class_folders(root)]
        for name in names:
            if not (name.isascii() and name.isdigit() and int(name) < 1000):
                raise ValueError(f"ImageNet-V2 folders are called 0 to 999, got {name!r} in {root}")
        reader = _timm_reader(root, {name: int(name) for name in names})
        super().__init__(root, reader.samples, [str(label) for label in range(1000)], None, max_pixels, skipped)


class TinyImageNet(ImageFiles):
    """Tiny-ImageNet as published: ``train/WNID/images``, ``val/images`` and their box files; one box per image.

    Labels number the sorted names of the training folders.

    Example:
        >>> tiny = TinyImageNet("tiny-imagenet-200", split="val")
        >>> tiny[0].boxes.shape
        (1, 4)
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        if split not in ("train", "val"):
            raise ValueError(f"split must be one of ['train', 'val'], got {split!r}")
        root = existing_folder(root)
        folders = class_folders(existing_folder(root / "train"))
        classes = [folder.name for folder in folders]
        files: list[tuple[str | Path, int]] = []
        annotations: Annotations = {}
        if split == "train":
            for label, folder in enumerate(folders):
                annotations |= read_tiny_imagenet(existing_file(folder / f"{folder.name}_boxes.txt"))
                files += [(path, label) for path in sorted(folder.glob("images/*.JPEG"))]
        else:
            table = existing_file(root / "val" / "val_annotations.txt")
            annotations = read_tiny_imagenet(table)
            for name, (_, (wnid,)) in sorted(annotations.items()):
                if wnid not in classes:
                    raise ValueError(f"{table}: class {wnid!r} of {name} has no folder in {root / 'train'}")
                files.append((root / "val" / "images" / name, classes.index(wnid)))
        super().__init__(root, files, classes, annotations, max_pixels, skipped)


def existing_folder(path: str | Path) -> Path:
    """The path, if a folder is there.

    Example:
        >>> existing_folder("photos")
        PosixPath('photos')
    """
    if not Path(path).is_dir():
        raise FileNotFoundError(f"no folder at {path}")
    return Path(path)


def existing_file(path: str | Path) -> Path:
    """The path, if a file is there.

    Example:
        >>> existing_file("shard.npz")
        PosixPath('shard.npz')
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}")
    return Path(path)


def class_folders(root: Path) -> list[Path]:
    """The folders inside ``root`` in text order, hidden ones left out; none may be without images.

    Example:
        >>> [folder.name for folder in class_folders(Path("photos"))]
        ['cat', 'dog']
    """
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if not folders:
        raise ValueError(f"no class folders in {root}")
    extensions = get_img_extensions(as_set=True)
    for folder in folders:
        if not any(path.suffix.lower() in extensions for path in folder.rglob("*")):
            raise ValueError(f"class folder {folder} holds no images")
    return folders


def _split_folder(root: Path, split: str) -> Path:
    names = (split, "validation") if split == "val" else (split,)
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"no folder {' or '.join(names)} in {root}; leave the split out to read {root} itself")


def _timm_reader(root: Path, labels: dict[str, int] | None = None) -> Any:
    return create_reader("folder", root=str(root), class_map=labels)
