"""Held-out images: a share of every class, chosen by name; and what a fingerprint notices."""

import numpy as np
import pytest

from infsa.data import ImageFiles, ImageFolder, Part, UnreadableImage, hold_out
from infsa.data.parts import fingerprint, held_out, what_changed

from .helpers import one_line, write_image


def files(counts, order=None):
    """A set that is never read: a number of files per class."""
    names = [(f"{label}/{i}.png", label) for label, count in enumerate(counts) for i in range(count)]
    chosen = names if order is None else [names[i] for i in order]
    return ImageFiles(".", chosen, [f"class {i}" for i in range(len(counts))])


def names(dataset):
    return {dataset.name(i) for i in range(len(dataset))}


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_a_share_of_every_class_and_one_at_least_of_each_side(share):
    whole = files([1, 2, 3, 50])
    train, val = hold_out(whole, share)
    assert names(train) | names(val) == names(whole)
    assert not names(train) & names(val)
    counts = np.bincount(val.labels, minlength=4)
    assert counts.tolist() == [0, 1, min(2, max(1, round(3 * share))), min(49, max(1, round(50 * share)))]
    assert (np.bincount(train.labels, minlength=4) > 0).all()
    assert train.classes == val.classes == whole.classes


def test_the_choice_depends_on_names_and_seed_alone():
    counts = [20, 30]
    order = np.random.default_rng(0).permutation(50)
    first, turned, other = (
        hold_out(files(counts), 0.3),
        hold_out(files(counts, order), 0.3),
        hold_out(files(counts), 0.3, 1),
    )
    assert names(first[1]) == names(turned[1])
    assert names(first[1]) != names(other[1])


def test_further_images_leave_most_of_the_choice():
    before, after = names(hold_out(files([100]), 0.2)[1]), names(hold_out(files([110]), 0.2)[1])
    assert len(before & after) >= 15


def test_nothing_to_hold_out_is_one_line():
    with pytest.raises(ValueError, match=one_line("no class has two images.*val_data")):
        hold_out(files([1, 1]), 0.5)
    for share in (0, 1, -0.1):
        with pytest.raises(ValueError, match=one_line("share")):
            held_out(files([5]), share)


def test_an_unreadable_image_is_replaced_from_its_own_part(tmp_path):
    """Otherwise a validation image would be trained on."""
    for i in range(20):
        write_image(tmp_path / "cat" / f"{i}.png")
    train, val = hold_out(ImageFolder(tmp_path), 0.5)
    for name in list(names(train))[:5]:
        (tmp_path / name).write_bytes(b"damaged")
    assert {sample.name for sample in train} <= names(train)
    assert {sample.name for sample in val} == names(val)
    assert (len(train.skipped), len(val.skipped)) == (5, 0)
    for name in names(val):
        (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(UnreadableImage, match="none of the 10 images"):
        val[0]


def test_other_numbers_for_the_same_names():
    whole = files([2, 2])
    part = Part(whole, np.arange(4), ["class 1", "class 2", "class 0"])
    assert part.labels.tolist() == [2, 2, 0, 0]
    with pytest.raises(ValueError, match=one_line("'class 1' is not among")):
        Part(whole, np.arange(4), ["class 0"])


def test_a_fingerprint_notices_names_and_sizes_and_nothing_else(tmp_path):
    import os

    for label in ("cat", "dog"):
        for i in range(3):
            write_image(tmp_path / label / f"{i}.png")
    before = fingerprint(ImageFolder(tmp_path))
    os.utime(tmp_path / "cat" / "0.png", (1, 1))
    assert what_changed(before, fingerprint(ImageFolder(tmp_path))) == ""
    assert what_changed(before, fingerprint(Part(ImageFolder(tmp_path), np.arange(6)[::-1]))) == ""
    write_image(tmp_path / "cat" / "0.png", size=(90, 91))
    assert what_changed(before, fingerprint(ImageFolder(tmp_path))) == "'cat' has other files"
    write_image(tmp_path / "cat" / "3.png")
    (tmp_path / "dog" / "0.png").rename(tmp_path / "dog" / "x.png")
    changed = what_changed(before, fingerprint(ImageFolder(tmp_path)))
    assert changed == "'cat' had 3 images and has 4; 'dog' has other files"
    (tmp_path / "dog").rename(tmp_path / "eel")
    changed = what_changed(before, fingerprint(ImageFolder(tmp_path)))
    assert changed.startswith("class 'dog' is gone; class 'eel' is new; ")
