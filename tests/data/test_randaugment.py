"""RandAugment: timm's changes, boxes that keep their object, and a view that only its own key moves."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import auto_augment as theirs

from infsa.data import Shapes, TrainTransform, keyed_generator, rand_augment
from infsa.data.boxes import as_boxes
from infsa.data.randaugment import COLOURS, MOVES, moved

TIMM = {  # our change of level L and sign s, and timm's with the arguments that L and s stand for
    "autocontrast": lambda image, level, sign: theirs.auto_contrast(image),
    "equalize": lambda image, level, sign: theirs.equalize(image),
    "invert": lambda image, level, sign: theirs.invert(image),
    "posterize": lambda image, level, sign: theirs.posterize(
        image, *theirs._posterize_increasing_level_to_arg(10 * level, {})
    ),
    "solarize": lambda image, level, sign: theirs.solarize(
        image, *theirs._solarize_increasing_level_to_arg(10 * level, {})
    ),
    "solarize add": lambda image, level, sign: theirs.solarize_add(
        image, *theirs._solarize_add_level_to_arg(10 * level, {})
    ),
    "colour": lambda image, level, sign: theirs.color(image, max(0.1, 1 + 0.9 * level * sign)),
    "contrast": lambda image, level, sign: theirs.contrast(image, max(0.1, 1 + 0.9 * level * sign)),
    "brightness": lambda image, level, sign: theirs.brightness(image, max(0.1, 1 + 0.9 * level * sign)),
    "sharpness": lambda image, level, sign: theirs.sharpness(image, max(0.1, 1 + 0.9 * level * sign)),
}


@pytest.mark.parametrize("name", COLOURS)
@pytest.mark.parametrize("level", [0.0, 0.35, 0.9])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_colours_change_as_in_timm(name, level, sign):
    image = Shapes()[3].image
    assert COLOURS[name](image, level, sign).tobytes() == TIMM[name](image, level, sign).tobytes()


def test_there_are_as_many_changes_as_in_timm():
    assert len(COLOURS) + len(MOVES) == len(theirs.rand_augment_choices("", increasing=True))


@given(st.sampled_from(sorted(MOVES)), st.floats(-1, 1), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_a_moved_box_holds_its_object_and_is_tight_for_a_shift(name, amount, seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(40, 90)), int(rng.integers(40, 90))
    x0, y0 = (int(rng.integers(0, side - 10)) for side in size)
    x1, y1 = int(rng.integers(x0 + 8, size[0] + 1)), int(rng.integers(y0 + 8, size[1] + 1))
    image = Image.new("RGB", size)
    image.paste((255, 255, 255), (x0, y0, x1, y1))
    matrix = MOVES[name](amount, size)
    image, boxes = moved(image, as_boxes([x0, y0, x1, y1]), matrix, fill=(0, 0, 0))
    white = np.asarray(image)[..., 0] > 127
    ((left, top, right, bottom),) = boxes
    rows, columns = white.nonzero()
    if len(rows):
        assert left - 1 <= columns.min()
        assert columns.max() + 1 <= right + 1
        assert top - 1 <= rows.min()
        assert rows.max() + 1 <= bottom + 1
        if name.startswith("shift") and min(right - left, bottom - top) >= 2:
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(boxes[0] - found).max() <= 1


def test_choices_follow_the_generator_alone():
    sample = Shapes()[0]
    first, again = (rand_augment(keyed_generator(5), sample.image, sample.boxes, 4, 9) for _ in range(2))
    assert first[0].tobytes() == again[0].tobytes()
    assert np.array_equal(first[1], again[1])
    views = {rand_augment(keyed_generator(i), sample.image, sample.boxes, 2, 9)[0].tobytes() for i in range(40)}
    assert 15 < len(views) < 40  # a quarter of the views draw two changes that are not made
    same, boxes = rand_augment(keyed_generator(5), sample.image, sample.boxes, layers=0)
    assert (same, boxes.tolist()) == (sample.image, sample.boxes.tolist())


def test_off_is_the_view_without_it_and_on_leaves_crop_and_erasing_alone():
    sample = Shapes()[0]
    options = {"size": 32, "jitter": 0.0, "erase": 1.0}
    bare, off = TrainTransform(**options), TrainTransform(**options, randaugment=0)
    on = TrainTransform(**options, randaugment=9)
    unchanged = 0
    for index in range(40):
        plain, changed = (view(sample.image, sample.boxes, index=index)[0] for view in (bare, on))
        assert torch.equal(plain, off(sample.image, sample.boxes, index=index)[0])
        unchanged += torch.equal(plain, changed)
        assert (plain == changed).flatten(1).all(0).any()  # the erased rectangle has the same noise
    assert 0 < unchanged < 25


@pytest.mark.parametrize("value", [-1, 10.5])
def test_a_wrong_magnitude_is_named(value):
    with pytest.raises(ValueError, match=f"randaugment .* got {value}"):
        TrainTransform(32, randaugment=value)
    with pytest.raises(ValueError, match=f"magnitude .* got 2 and {value}"):
        rand_augment(keyed_generator(0), Image.new("RGB", (8, 8)), as_boxes([]), 2, value)
