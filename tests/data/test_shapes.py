"""Shapes: the same bytes everywhere, exact boxes, and a class that only outline and texture tell."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from infsa.data import Shapes
from infsa.data.drawing import OUTLINES, REACH, TEXTURES, outline_mask


def digest(shapes, indices):
    return hashlib.sha256(b"".join(shapes[i].image.tobytes() for i in indices)).hexdigest()


def test_bytes_do_not_depend_on_process_order_or_length():
    indices = range(0, 60, 7)
    here = digest(Shapes(seed=3), indices)
    backwards = {i: Shapes(seed=3, length=100)[i].image.tobytes() for i in reversed(indices)}
    assert hashlib.sha256(b"".join(backwards[i] for i in indices)).hexdigest() == here
    code = "import sys; sys.path[:0] = sys.argv[1:]; import numpy as np; np.random.seed(5); import torch; "
    code += "torch.set_num_threads(2); from tests.data.test_shapes import *; "
    code += "print(digest(Shapes(seed=3), range(0, 60, 7)))"
    there = subprocess.run([sys.executable, "-c", code, *sys.path], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_bytes_are_pinned():
    """A change of the drawing is a new dataset: change this number and say so in the changelog."""
    assert digest(Shapes(), range(20))[:16] == "c58c32e4b501874e"


@pytest.mark.parametrize("other", [{"seed": 1}, {"split": "val"}])
def test_seed_and_split_give_other_images(other):
    assert Shapes()[0].image.tobytes() != Shapes(**other)[0].image.tobytes()


@pytest.mark.parametrize(("size", "classes"), [(32, 2), (64, 10), (64, 48), (96, 12)])
def test_boxes_are_those_of_the_visible_pixels(size, classes):
    shapes = Shapes(size=size, classes=classes)
    for index in range(2 * classes):
        sample, (pixels, mask) = shapes[index], shapes.draw(index)
        ((x0, y0, x1, y1),) = sample.boxes.astype(int)
        assert mask[y0:y1, x0:x1].sum() == mask.sum() > 0
        assert all(edge.any() for edge in (mask[y0], mask[y1 - 1], mask[:, x0], mask[:, x1 - 1]))
        assert sample.image.tobytes() == pixels.tobytes()
        assert (sample.image.size, sample.image.mode) == ((size, size), "RGB")


@pytest.mark.parametrize("outline", OUTLINES)
def test_outlines_lie_within_their_reach(outline):
    axis = np.linspace(-2, 2, 401, dtype=np.float32)
    mask = outline_mask(outline, axis[None], axis[:, None], (0.6, 0.8), radius=1.0)
    rows, columns = mask.nonzero()
    assert np.hypot(axis[rows], axis[columns]).max() <= REACH


def test_classes_pair_outlines_with_textures():
    shapes = Shapes(classes=10)
    assert len(set(shapes.classes)) == 10
    assert len({name.split()[0] for name in shapes.classes}) == 4
    assert len({name.split()[1] for name in shapes.classes}) == 3
    assert len(set(Shapes(classes=48).classes)) == len(OUTLINES) * len(TEXTURES)
    assert np.bincount([shapes[i].label for i in range(40)]).tolist() == [4] * 10


def test_mean_colour_and_box_do_not_tell_the_class():
    """A linear classifier on them stays within four standard errors of chance on images it has not seen."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    def features(shapes):
        samples = [shapes[i] for i in range(len(shapes))]
        colours = [np.asarray(sample.image).reshape(-1, 3).mean(0) for sample in samples]
        boxes = [(box[:2] + box[2:]) / 2 for box in (sample.boxes[0] for sample in samples)]
        sides = [box[2:] - box[:2] for box in (sample.boxes[0] for sample in samples)]
        return np.hstack([colours, boxes, sides]), [sample.label for sample in samples]

    (x, y), (test_x, test_y) = features(Shapes(length=3000)), features(Shapes(split="val", length=1500))
    scaler = StandardScaler().fit(x)
    accuracy = LogisticRegression(max_iter=500).fit(scaler.transform(x), y).score(scaler.transform(test_x), test_y)
    assert accuracy < 0.1 + 4 * np.sqrt(0.1 * 0.9 / 1500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, "size .* got 8"),
        ({"split": "test"}, "split .* got 'test'"),
        ({"classes": 49}, "classes .* got 49"),
        ({"length": 0}, "length .* got 0"),
        ({"seed": -1}, "seed .* got -1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Shapes(**options)


def test_indices_end():
    shapes = Shapes(length=5)
    assert shapes[-1].name == shapes[4].name == "shapes/train/4"
    assert len(list(shapes)) == 5
    with pytest.raises(IndexError, match="5 samples"):
        shapes[5]
