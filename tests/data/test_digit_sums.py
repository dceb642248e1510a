"""Digit sums: three to five digits of very different size that lie apart, the same everywhere, and their sum."""

import numpy as np
import pytest
import torch

from infsa.data import DigitSums, open_dataset
from infsa.data.digit_sums import enlarged_over
from infsa.data.mnist import STAND_IN, read_digits

SMALL = {"side": 360, "noise": 5, "length": 24}


def classes_at(crop, split):
    """The classes of the digits that look like a square of pixels when they are as large."""
    pixels, labels = read_digits(None, split)
    sources, first = np.unique(np.arange(len(crop)) * 28 // len(crop), return_index=True)
    same = (pixels[:, sources][:, :, sources] == crop[np.ix_(first, first)]).all((1, 2))
    return set(labels[same].tolist())


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("options", [{}, {"seed": 5, "side": 224}])
def test_digits_lie_apart_and_the_label_is_their_sum(split, options):
    dataset = DigitSums(split=split, **SMALL | options)
    for index in range(len(dataset)):
        image, label, boxes, _ = dataset[index]
        pixels, total = np.asarray(image)[..., 0], 0
        assert 3 <= len(boxes) <= 5
        covered = np.zeros(pixels.shape, int)
        for x0, y0, x1, y1 in boxes.astype(int):
            assert 14 <= x1 - x0 == y1 - y0 <= dataset.side // 3
            covered[y0:y1, x0:x1] += 1
            found = classes_at(pixels[y0:y1, x0:x1], split)
            assert len(found) == 1
            total += found.pop()
        assert covered.max() == 1  # inside the image and apart
        assert covered.sum() == ((boxes[:, 2] - boxes[:, 0]) ** 2).sum()
        assert total == label


def test_boxes_hold_all_digits_and_fit_them():
    dataset = DigitSums(**SMALL | {"noise": 0})
    for index in range(len(dataset)):
        image, _, boxes, _ = dataset[index]
        left = np.array(image)[..., 0]
        for x0, y0, x1, y1 in boxes.astype(int):
            rows, columns = np.nonzero(left[y0:y1, x0:x1])
            assert max(np.ptp(rows), np.ptp(columns)) > 0.5 * (x1 - x0)  # MNIST's margin is a seventh on each side
            left[y0:y1, x0:x1] = 0
        assert not left.any()


def test_all_sums_and_numbers_of_digits_occur_and_sizes_differ_much():
    scenes = DigitSums(side=4000, noise=0, length=2800).scenes(torch.arange(2800))
    dataset = DigitSums(side=224, noise=0, length=2800)
    sums = torch.cat([dataset.compose(some)[1] for some in torch.arange(2800).split(400)]).bincount(minlength=28)
    assert ((sums - 100.0) ** 2 / 100).sum() < 55  # the 0.1 % quantile of χ² with 27 degrees of freedom
    sizes = scenes.sizes
    assert set((sizes > 0).sum(1).tolist()) == {3, 4, 5}
    ratio = sizes.amax(1) / sizes.masked_fill(sizes == 0, 10**6).amin(1)
    assert ratio.median() > 10
    assert (sizes[sizes > 0].min(), sizes.max()) == (14, 1333)


def test_images_do_not_depend_on_batch_or_order_or_length():
    options = {"augment": 1.0, "scatter": True}
    whole = DigitSums(**SMALL, **options).compose(torch.tensor([7, 0, 19]), 3)
    alone = DigitSums(**SMALL | {"length": 20}, **options).compose(torch.tensor([19]), 3)
    for part, own in zip(whole, alone, strict=True):
        assert torch.equal(part[2:], own)


def test_scenes_are_pinned():
    """A change of the drawing is a new dataset: change these numbers and say so in the changelog."""
    dataset = DigitSums(**SMALL)
    assert dataset.compose(torch.arange(4))[1].tolist() == [26, 14, 26, 5]
    assert dataset.scenes(torch.arange(4)).corners.sum(1).tolist() == [
        [1126, 1991],
        [1289, 1386],
        [1655, 1749],
        [1806, 1347],
    ]


def test_fixed_scattered_and_endless_images():
    every = torch.arange(24)
    fixed, scattered, endless = (DigitSums(**SMALL, **own) for own in ({}, {"scatter": True}, {"endless": True}))
    assert all(map(torch.equal, fixed.scenes(every, 0), fixed.scenes(every, 1)))
    one, other = scattered.scenes(every, 0), scattered.scenes(every, 1)
    assert torch.equal(one.digits, other.digits)
    assert torch.equal(one.sizes > 0, other.sizes > 0)
    assert not torch.equal(one.sizes, other.sizes)
    assert torch.equal(scattered.compose(every, 1)[1], fixed.compose(every)[1])
    assert not torch.equal(endless.scenes(every, 0).digits, endless.scenes(every, 1).digits)


def test_augmentation_changes_pixels_alone_and_validation_nothing():
    plain, changed = DigitSums(**SMALL), DigitSums(**SMALL, augment=1.0)
    (pixels, *same), (others, *kept) = (dataset.compose(torch.arange(8), 2) for dataset in (plain, changed))
    assert not torch.equal(pixels, others)
    assert all(map(torch.equal, same, kept))
    val = DigitSums(split="val", **SMALL, augment=1.0, scatter=True, endless=True)
    here, later = (val.compose(torch.arange(4), epoch)[0] for epoch in (0, 5))
    assert torch.equal(here, later)


def test_enlarging_repeats_pixels_and_shrinking_leaves_some_out():
    patch = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).expand(1, 3, 3, 3)
    boxes = torch.tensor([[[1, 2, 7, 8], [8, 8, 9, 9], [0, 0, 0, 0]]])
    image = enlarged_over(torch.full((1, 1, 10, 10), 99, dtype=torch.uint8), patch, boxes)[0, 0]
    assert torch.equal(image[2:8, 1:7], torch.kron(patch[0, 0], torch.ones(2, 2, dtype=torch.uint8)))
    assert image[8, 8] == 1
    assert (image == 99).sum() == 100 - 36 - 1


def test_it_is_opened_by_name_and_says_what_it_refuses():
    dataset = open_dataset("digit-sums", "val", **SMALL)
    assert dataset.note == STAND_IN
    assert dataset.classes == [str(total) for total in range(28)]
    assert dataset[-1].name == "digit-sums/val/23"
    assert (DigitSums().side, len(DigitSums()), len(DigitSums(split="val"))) == (4000, 28_000, 2_800)
    with pytest.raises(ValueError, match="side must be a whole number of 224 or more, got 200"):
        DigitSums(side=200)
