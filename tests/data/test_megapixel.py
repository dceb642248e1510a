"""Megapixel digits: what the protocol says is in an image, the same everywhere, and answers that are true of it."""

import functools
import gzip
import struct

import numpy as np
import pytest
import torch

from infsa.data import MegapixelDigits, open_dataset
from infsa.data.mnist import STAND_IN, read_digits

SMALL = {"side": 200, "noise": 5, "length": 24}


@functools.cache
def known_digits(split):
    """The class of every digit, by its pixels."""
    return {one.tobytes(): label for one, label in zip(*read_digits(None, split), strict=True)}


def classes_in(dataset, index, epoch=0):
    """The classes of the digits in the order of their boxes, recognised by their pixels."""
    known = known_digits(dataset.split)
    image, _, boxes = (part[0] for part in dataset.compose(torch.tensor([index]), epoch))
    crops = [image[0, y0:y1, x0:x1].numpy().tobytes() for x0, y0, x1, y1 in boxes.long().tolist()]
    return [int(known[crop]) for crop in crops], boxes


@pytest.mark.parametrize("split", ["train", "val"])
def test_digits_lie_apart_over_the_strokes_and_the_answers_are_true(split):
    dataset = MegapixelDigits(split=split, **SMALL)
    for index in range(len(dataset)):
        classes, boxes = classes_in(dataset, index)
        counts = np.bincount(classes, minlength=10)
        assert sorted(counts[counts > 0])[-1] == 3
        assert counts.sum() == 5
        assert ((boxes[:, None, :2] - boxes[None, :, :2]).abs().amax(-1)[~torch.eye(5, dtype=bool)] >= 28).all()
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= 200).all()
        assert (boxes[:, 2:] - boxes[:, :2] == 28).all()
        majority, largest, top, multi = dataset[index].label.reshape(4, 10)
        assert majority.argmax() == counts.argmax()
        assert majority.sum() == 1
        assert largest.argmax() == max(classes)
        assert largest.sum() == 1
        assert top.argmax() == classes[int(boxes[:, 1].argmin())]
        assert top.sum() == 1
        assert multi.tolist() == (counts > 0).astype(int).tolist()


def test_images_do_not_depend_on_batch_or_order_or_length():
    options = {"augment": 1.0, "scatter": True}
    whole = MegapixelDigits(**SMALL, **options).compose(torch.tensor([7, 0, 19]), 3)
    alone = MegapixelDigits(**SMALL | {"length": 20}, **options).compose(torch.tensor([19]), 3)
    for part, own in zip(whole, alone, strict=True):
        assert torch.equal(part[2:], own)


def test_scenes_are_pinned():
    """A change of the drawing is a new dataset: change these numbers and say so in the changelog."""
    scenes = MegapixelDigits(**SMALL).scenes(torch.arange(4))
    assert scenes.corners.sum(1).tolist() == [[831, 923], [511, 796], [823, 706], [689, 924]]


@pytest.mark.parametrize("other", [{"seed": 1}, {"split": "val"}])
def test_seed_and_split_give_other_images(other):
    assert MegapixelDigits(**SMALL)[0].image.tobytes() != MegapixelDigits(**SMALL, **other)[0].image.tobytes()


def test_a_sample_is_the_composed_image():
    dataset = MegapixelDigits(**SMALL)
    image, label, boxes, name = dataset[-1]
    pixels, answers, corners = (part[0].numpy() for part in dataset.compose(torch.tensor([23])))
    assert (np.asarray(image) == pixels[0][..., None]).all()
    assert image.mode == "RGB"
    assert (label == answers).all()
    assert (boxes == corners).all()
    assert name == "megapixel-digits/train/23"
    with pytest.raises(IndexError, match="24"):
        dataset[24]


def test_scattering_moves_the_same_digits():
    dataset = MegapixelDigits(**SMALL, scatter=True)
    (first, one), (second, other) = classes_in(dataset, 3, 0), classes_in(dataset, 3, 1)
    assert first == second
    assert not torch.equal(one, other)
    assert second[int(other[:, 1].argmin())] == dataset.compose(torch.tensor([3]), 1)[1][0, 20:30].argmax()


def test_endless_images_are_new_in_every_epoch():
    dataset = MegapixelDigits(**SMALL, endless=True)
    every = torch.arange(24)
    assert not torch.equal(dataset.scenes(every, 0).digits, dataset.scenes(every, 1).digits)
    assert torch.equal(dataset.scenes(every, 1).digits, dataset.scenes(every, 1).digits)


def test_augmentation_changes_pixels_and_no_answer():
    plain, changed = MegapixelDigits(**SMALL), MegapixelDigits(**SMALL, augment=1.0)
    every = torch.arange(24)
    _, answers, boxes = plain.compose(every)
    for epoch in range(3):
        images, same, moved = changed.compose(every, epoch)
        assert torch.equal(answers, same)
        assert (moved >= 0).all()
        assert (moved <= 200).all()
        assert not torch.equal(moved, boxes)
        shift = (moved - boxes)[..., 1]
        assert (shift == shift[:, :1]).all()  # up and down together
    again, _, _ = changed.compose(every, 2)
    assert torch.equal(images, again)


def test_augmentation_leaves_digits_apart():
    dataset = MegapixelDigits(side=200, noise=0, length=400, augment=1.0)
    boxes = dataset.compose(torch.arange(400))[2]
    gaps = (boxes[:, :, None, :2] - boxes[:, None, :, :2]).abs().amax(-1)
    assert (gaps[:, ~torch.eye(5, dtype=bool)] >= 28).all()


def test_validation_is_always_the_same():
    changed = MegapixelDigits(split="val", **SMALL, augment=1.0, scatter=True, endless=True)
    here, later = (changed.compose(torch.arange(4), epoch)[0] for epoch in (0, 5))
    assert torch.equal(here, later)
    assert torch.equal(here, MegapixelDigits(split="val", **SMALL).compose(torch.arange(4))[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 100}, "side must be a whole number of 168 or more, got 100"),
        ({"side": 200.0}, "side must be a whole number"),
        ({"length": 0}, "length must be a whole number of 1 or more, got 0"),
        ({"noise": -1}, "noise must be"),
        ({"seed": True}, "seed must be"),
        ({"augment": 2}, "augment must be a number from 0 to 1, got 2"),
        ({"endless": 1}, "endless must be true or false, got 1"),
        ({"split": "test"}, "split must be one of"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MegapixelDigits(**options)


def write_mnist(folder, packed, count=40):
    """Files as MNIST has them; returns the pixels of each split."""
    folder.mkdir(parents=True)
    pixels = {}
    for seed, start in enumerate(("train", "t10k")):
        pixels[start] = np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, head, data in (
            ("images-idx3", struct.pack(">4B3i", 0, 0, 8, 3, count, 28, 28), pixels[start]),
            ("labels-idx1", struct.pack(">4Bi", 0, 0, 8, 1, count), labels),
        ):
            content = head + data.tobytes()
            name = f"{start}-{name}-ubyte" + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return pixels


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", ["MNIST/raw", "."])
def test_mnist_is_read_packed_or_not(tmp_path, packed, inside):
    root = tmp_path / "digits"
    pixels = write_mnist(root / inside, packed)
    for split, start in (("train", "train"), ("val", "t10k")):
        found = read_digits(root, split)
        assert (found.pixels == pixels[start]).all()
        assert found.labels.tolist() == [i % 10 for i in range(40)]
    dataset = open_dataset(f"megapixel-digits:{root}", "val", **SMALL)
    assert len(dataset) == 24
    assert dataset.note == ""


def test_files_that_are_not_mnist_are_refused_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="no train-images-idx3-ubyte"):
        MegapixelDigits(tmp_path)
    write_mnist(tmp_path / "raw", packed=True)
    whole = (tmp_path / "raw" / "train-images-idx3-ubyte.gz").read_bytes()
    for broken in (
        b"",
        b"no gzip",
        whole[:-30],
        gzip.compress(b"\0\0\x0d\3" + bytes(12)),
        gzip.compress(b"\0\0\x08\1"),
    ):
        (tmp_path / "raw" / "train-images-idx3-ubyte.gz").write_bytes(broken)
        with pytest.raises(ValueError, match="is not a readable file of MNIST"):
            MegapixelDigits(tmp_path)
    (tmp_path / "raw" / "train-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(struct.pack(">4B3i", 0, 0, 8, 3, 40, 9, 9) + bytes(40 * 81))
    )
    with pytest.raises(ValueError, match=r"images \(n, 28, 28\)"):
        MegapixelDigits(tmp_path)


def test_the_stand_in_for_mnist_is_said():
    assert open_dataset("megapixel-digits", **SMALL).note == STAND_IN
    with pytest.raises(ValueError, match="unknown dataset"):
        open_dataset("megapixel-digits:")
