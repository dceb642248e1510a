"""Handwritten digits of 28 × 28 pixels: MNIST from its raw files, or scikit-learn's small digits scaled up."""

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 28
FILES = {"train": "train", "val": "t10k"}  # how MNIST's files begin
STAND_IN = "no folder with MNIST was given: the digits are scikit-learn's 8 x 8 ones, scaled up to 28 x 28"


class Digits(NamedTuple):
    """Pixels (n, 28, 28) and classes (n,), bytes both."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def read_digits(root: str | Path | None, split: str) -> Digits:
    """The digits of a split: of MNIST in ``root``, or scikit-learn's where no folder is given.

    Args:
        root: what ``torchvision.datasets.MNIST`` takes, or the folder of the four files, packed (``.gz``) or not.
        split: ``"train"`` or ``"val"``: MNIST's test set.
    """
    if root is None:
        return _small_digits(split)
    folders = [folder for folder in (Path(root) / "MNIST" / "raw", Path(root) / "raw", Path(root)) if folder.is_dir()]
    start = FILES[split]
    pixels, labels = (_read_idx(folders, f"{start}-{kind}-ubyte", root) for kind in ("images-idx3", "labels-idx1"))
    if pixels.shape != (len(labels), SIDE, SIDE) or set(np.unique(labels)) != set(range(10)):
        found = f"images {pixels.shape} and labels {labels.shape} of {len(np.unique(labels))} values"
        raise ValueError(f"MNIST must be images (n, 28, 28) with labels (n,) from 0 to 9, got {found} in {root}")
    return Digits(pixels, labels)


def _read_idx(folders: list[Path], name: str, root: str | Path) -> NDArray[np.uint8]:
    """One of MNIST's files: two zeros, 8 for bytes, the number of axes, their lengths, the bytes."""
    for file in (folder / f"{name}{ending}" for folder in folders for ending in ("", ".gz")):
        if not file.is_file():
            continue
        try:
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            axes = data[3]
            shape = tuple(np.frombuffer(data, ">i4", axes, 4).tolist())
            if data[:3] != b"\0\0\x08":
                raise ValueError("its header is not that of an IDX file of bytes")
            return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)
        except (OSError, EOFError, IndexError, ValueError) as error:
            raise ValueError(f"{file} is not a readable file of MNIST: {error}") from error
    raise FileNotFoundError(f"no {name} or {name}.gz in {root}, {root}/raw or {root}/MNIST/raw")


def _small_digits(split: str) -> Digits:
    """scikit-learn's digits, scaled up; every fifth is for validation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("a folder with MNIST is needed, or scikit-learn for its small digits") from error
    images, labels = load_digits(return_X_y=True)
    own = (np.arange(len(labels)) % 5 == 4) == (split == "val")
    small = (images[own].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    inner = SIDE - 8  # MNIST's digits, too, leave a border of four pixels
    large = [np.asarray(Image.fromarray(one).resize((inner, inner), Image.Resampling.BICUBIC)) for one in small]
    return Digits(np.pad(np.stack(large), ((0, 0), (4, 4), (4, 4))), labels[own].astype(np.uint8))
