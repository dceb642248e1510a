"""Boxes: the geometry, and masks over patches against counting pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infsa.data import boxes as b

corner = st.integers(-10, 40)
box = st.tuples(corner, corner, corner, corner).map(
    lambda c: [min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])]
)
some_boxes = st.lists(box, max_size=4).map(b.as_boxes)


def painted(boxes, size):
    canvas = np.zeros((size[1], size[0]), bool)
    for x0, y0, x1, y1 in b.clip(boxes, size).astype(int):
        canvas[y0:y1, x0:x1] = True
    return canvas


@given(some_boxes)
def test_coverage_is_the_fraction_of_painted_pixels(boxes):
    size, grid = (24, 32), (4, 3)
    patches = painted(boxes, size).reshape(4, 8, 3, 8).mean((1, 3))
    assert np.allclose(b.patch_coverage(boxes, size, grid), patches, atol=1e-6)
    odd = painted(boxes, (21, 15)).reshape(5, 3, 7, 3)[:, 1, :, 1]
    assert (b.patch_centres(boxes, (21, 15), (5, 7)) == odd).all()


@given(some_boxes)
def test_flip_twice_and_resize_back_are_nothing(boxes):
    assert np.allclose(b.flip(b.flip(boxes, 30), 30), boxes)
    assert np.allclose(b.resize(b.resize(boxes, (30, 20), (64, 48)), (64, 48), (30, 20)), boxes, atol=1e-4)


@given(some_boxes, st.integers(0, 10), st.integers(0, 10))
def test_crop_is_what_pixels_do(boxes, left, top):
    pixels = painted(boxes, (30, 30))[top : top + 12, left : left + 16]
    assert (painted(b.crop(boxes, left, top, 16, 12), (16, 12)) == pixels).all()


def test_visible_fraction_and_empty_boxes():
    boxes = b.as_boxes([[-10, 0, 10, 10], [70, 0, 80, 10], [5, 5, 5, 9]])
    assert b.visible_fraction(boxes, (64, 64)).tolist() == [0.5, 0.0, 0.0]
    assert b.drop_empty(b.clip(boxes, (64, 64))).tolist() == [[0, 0, 10, 10]]
    assert b.drop_empty(b.as_boxes([])).shape == (0, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [([1, 2, 3], r"\(n, 4\), got \(3,\)"), ([[5, 0, 4, 1]], r"got \[5.0"), ([[0, 0, np.nan, 1]], "finite")],
)
def test_wrong_boxes_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        b.as_boxes(values)
