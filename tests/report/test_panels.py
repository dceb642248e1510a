"""Heatmaps and overlays show the map where it is."""

import numpy as np
from pages.gallery import draw_gallery
from PIL import Image

from infsa.evaluate import Explanation
from infsa.report.panels import draw_panel, heatmap, overlay


def bright(image):
    """The place of the brightest pixel, as a share of height and width."""
    pixels = np.asarray(image.convert("L"), np.float64)
    row, column = np.unravel_index(pixels.argmax(), pixels.shape)
    return row / pixels.shape[0], column / pixels.shape[1]


def test_heatmap_keeps_places():
    scores = np.zeros((3, 5), np.float32)
    scores[2, 1] = 1
    row, column = bright(heatmap(scores, (500, 300)))
    assert 2 / 3 <= row <= 1
    assert 1 / 5 <= column <= 2 / 5
    constant = np.asarray(heatmap(np.ones((2, 2), np.float32), (8, 8)))
    assert (constant == constant[0, 0]).all()


def test_overlay_has_the_size_of_the_image():
    scores = np.zeros((2, 2), np.float32)
    scores[0, 1] = 1
    picture = overlay(Image.new("RGB", (401, 203), "gray"), scores)
    assert picture.size == (401, 203)
    row, column = bright(picture)
    assert row < 0.5 < column


def test_panels_are_written(tmp_path):
    image = Image.new("RGB", (3000, 20), "blue")
    guess = ("a long name of a class " * 9, 0.5)
    found = Explanation(np.eye(2, dtype=np.float32) / 2, (16, 16), [guess], "last", image)
    draw_panel(image, {"one": found, "two": found}, tmp_path / "panel.png", title="wide.png")
    draw_gallery([image] * 2, [{"one": found}] * 2, tmp_path / "gallery.png", ["first", "second"])
    for name in ("panel", "gallery"):
        with Image.open(tmp_path / f"{name}.png") as written:
            assert min(written.size) > 100
