"""What timm and torchvision open, through our rules for pixels, labels and errors."""

import os
import struct
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from infsa.data import open_dataset, open_timm

from .helpers import one_line, plain_image, red, tar_bytes, write_tar


def write_mnist(root, train=range(20), test=range(5)):
    """MNIST's own files with tiny images: pixel value i, label i % 10."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, values in (("train", train), ("t10k", test)):
        pixels = np.repeat(np.array(values, np.uint8), 28 * 28)
        images = struct.pack(">iiii", 0x803, len(values), 28, 28) + pixels.tobytes()
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">ii", 0x801, len(values)) + bytes(value % 10 for value in values)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def test_a_torchvision_set(tmp_path):
    write_mnist(tmp_path)
    train, val = (open_dataset(f"timm:torch/mnist:{tmp_path}", split=split) for split in ("train", "val"))
    assert (len(train), len(val), len(train.classes)) == (20, 5, 10)
    assert train.classes == val.classes
    assert [(red(sample), sample.label, sample.image.mode) for sample in train][12] == (12, 2, "RGB")
    assert val[3].name == "torch/mnist/3"


def write_class_tars(root, splits=(("train", "cat dog owl"), ("val", "dog owl"))):
    for number, (split, names) in enumerate(splits):
        files = [
            (f"{name}/{i}.png", plain_image(100 * number + 10 * k + i))
            for k, name in enumerate(names.split())
            for i in range(2)
        ]
        write_tar(root / f"{split}.tar", files)


def test_images_in_a_tar(tmp_path):
    write_class_tars(tmp_path)
    train, val = (open_dataset(f"timm:tar:{tmp_path}", split=split) for split in ("train", "val"))
    assert train.classes == val.classes == ["cat", "dog", "owl"]
    assert sorted((red(sample), sample.label) for sample in train) == [
        (10 * k + i, k) for k in range(3) for i in (0, 1)
    ]
    assert sorted((red(sample), sample.label) for sample in val) == [(100, 1), (101, 1), (110, 2), (111, 2)]
    assert len(open_timm(f"tar:{tmp_path / 'train.tar'}")) == 6
    again = ForkingPickler.loads(ForkingPickler.dumps(train))
    assert [red(sample) for sample in again] == [red(sample) for sample in train]
    assert sorted(os.listdir(tmp_path)) == ["train.tar", "val.tar"]


def test_a_tar_per_class_and_tars_in_a_tar(tmp_path):
    inner = {name: [(f"{i}.png", plain_image(10 * k + i)) for i in range(2)] for k, name in enumerate(("cat", "dog"))}
    for name, files in inner.items():
        write_tar(tmp_path / "apart" / f"{name}.tar", files)
    write_tar(tmp_path / "nested.tar", [(f"{name}.tar", tar_bytes(files)) for name, files in inner.items()])
    for root in ("apart", "nested.tar"):
        train = open_timm(f"tar:{tmp_path / root}")
        assert train.classes == ["cat", "dog"]
        assert sorted((red(sample), sample.label) for sample in train) == [(0, 0), (1, 0), (10, 1), (11, 1)]


def test_refusals_are_one_line(tmp_path):
    write_mnist(tmp_path / "holes", train=[1, 2])
    write_class_tars(tmp_path, [("train", "cat"), ("val", "dog")])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.tar").write_bytes(b"no tar")
    (tmp_path / "none").mkdir()
    write_tar(tmp_path / "none" / "train.tar", [("notes.txt", b"hello")])
    cases = [
        (f"torch/mnist:{tmp_path}", "train", "timm:torch/mnist:.*download"),
        (f"torch/mnist:{tmp_path / 'holes'}", "train", "class '0 - zero' and 7 more classes have no images"),
        (f"torch/nothing:{tmp_path}", "train", "Unknown torchvision dataset nothing"),
        (f"torch/mnist:{tmp_path}", "test", "split must be one of"),
        ("wds/x:y", "train", "is not torch/NAME.*; use wds:PATTERN"),
        ("torch/folder:y", "train", "use folder:PATH"),
        ("hfds/x", "train", "use hf:NAME"),
        ("tar", "train", "is not torch/NAME"),
        (f"tar:{tmp_path / 'train.tar'}", "val", "no tars of the split 'val' at .*looked for val.tar"),
        (f"tar:{tmp_path}", "val", "'dog' is not among the 1 classes"),
        (f"tar:{tmp_path / 'bad'}", "train", "not a complete tar of images"),
        (f"tar:{tmp_path / 'none'}", "train", "not a complete tar of images"),
        (f"tar:{tmp_path / 'nowhere'}", "train", "no tars of the split 'train'"),
    ]
    for name, split, message in cases:
        with pytest.raises((ValueError, FileNotFoundError), match=one_line(message)):
            open_dataset(f"timm:{name}", split=split)
    with pytest.raises(ValueError, match="download is for torch"):
        open_timm(f"tar:{tmp_path}", download=True)
