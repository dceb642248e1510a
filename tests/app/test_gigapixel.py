"""Streamed images: the map of the whole, windows of whole patches, sizes read from headers."""

from dataclasses import replace

import numpy as np
import pytest

from infsa.app.gigapixel import any_order, open_checked, rgb, shrink, stream_scene
from infsa.app.html import show_scene
from infsa.app.look import model_input
from infsa.app.model_cache import borrow
from infsa.app.tiles import draw, levels, publish, tile
from infsa.streaming import open_source

from .helpers import photograph, promise


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("scene") / "scene.npy"
    np.save(path, np.asarray(photograph(320, 192)))
    heard = []
    found = stream_scene(path, progress=lambda share, text: heard.append(share))
    assert heard == sorted(heard)
    return found


def test_map_and_prediction_are_those_of_the_whole_image(scene):
    with borrow("Linear-InfSA") as model:
        batch = model_input(model, photograph(320, 192), (320, 192))
        expected = model.attention_maps(batch)[0].numpy()
        chance = float(model(batch).softmax(-1).max())
    np.testing.assert_allclose(scene.map, expected, rtol=1e-4)
    assert scene.predictions[0][1] == pytest.approx(chance, rel=1e-4)


@pytest.mark.parametrize("layer", ["image", "map"])
def test_tiles_at_every_level_cover_the_layer(scene, layer):
    width, height = scene.size if layer == "image" else scene.map.shape[::-1]
    for level in range(levels(width, height)):
        step = 256 * 2**level
        for row in range(-(-height // step)):
            widths = [draw(scene, layer, level, column, row).width for column in range(-(-width // step))]
            assert sum(widths) == -(-width // 2**level)


def test_tiles_are_read_from_the_file_where_the_overview_is_too_coarse(scene):
    coarse = replace(scene, factor=8, overview=scene.overview.reduce(8))
    assert (np.asarray(draw(coarse, "image", 0, 1, 0)) == np.asarray(draw(scene, "image", 0, 1, 0))).all()


def test_pixels_and_patches_are_told_in_one_order(scene):
    (width, height), (rows, columns) = scene.size, scene.map.shape
    assert rows != columns
    assert f"{width} × {height} pixels, {columns} × {rows} patches" in show_scene(scene)


def test_only_tiles_of_known_scenes_are_served(scene):
    key = publish(scene)
    assert tile(key, "image", 0, 0, 0)[:2] == b"\xff\xd8"
    assert tile(key, "map", 0, 0, 0)[1:4] == b"PNG"
    for wrong in (("image", 9, 0, 0), ("image", 0, 9, 0), ("image", 0, 0, -1), ("code", 0, 0, 0)):
        assert tile(key, *wrong) is None
    assert tile("another", "image", 0, 0, 0) is None


def test_an_image_that_decodes_from_the_top_is_copied_in_tiles(tmp_path):
    photograph(300, 500).save(tmp_path / "tall.png")
    copy = any_order(open_source(tmp_path / "tall.png"))
    assert not copy.sequential
    window = copy.read(300, 20, 420, 290).astype(int)
    assert np.abs(window - np.asarray(photograph(300, 500))[300:420, 20:290]).mean() < 4


def test_shrinking_in_bands_is_shrinking(tmp_path):
    picture = photograph(300, 500)
    picture.save(tmp_path / "tall.png")
    whole = shrink(open_source(tmp_path / "tall.png"), (0, 0, 500, 300), 3)
    assert (np.asarray(whole) == np.asarray(picture.reduce(3))).all()


def test_a_gigapixel_beyond_the_limit_is_refused_by_its_header(tmp_path):
    with pytest.raises(ValueError, match="32768 × 32768 = 1,074 megapixels, more than the 400") as caught:
        open_checked(promise(tmp_path / "huge.png", 32768, 32768))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["text.png", "empty.png", "cut.jpg", "cut.npy", "cube.npy"])
def test_a_bad_file_is_named_and_its_folder_is_not(tmp_path, name):
    file = tmp_path / name
    np.save(file, np.zeros((64, 64, 7), np.uint8)) if name.endswith("npy") else photograph(640, 512).save(file)
    whole = file.read_bytes()
    file.write_bytes({"text": b"no picture", "empty": b"", "cut": whole[: len(whole) // 2]}.get(file.stem, whole))
    with pytest.raises(ValueError, match=name) as caught:
        stream_scene(file)
    assert str(tmp_path) not in str(caught.value)


def test_model_input_has_no_colours(tmp_path):
    np.save(tmp_path / "input.npy", np.zeros((3, 64, 64), np.float32))
    with pytest.raises(ValueError, match="no colours to show"):
        open_checked(tmp_path / "input.npy")


def test_pixels_become_colours():
    grey = np.full((2, 2, 1), 0x8000, np.uint16)
    assert (rgb(grey) == 0x80).all()
    assert rgb(grey).shape == (2, 2, 3)
    clear = np.zeros((2, 2, 4), np.uint8)
    assert (rgb(clear) == 255).all()
    picture = np.asarray(photograph(8, 8))
    assert (rgb(picture) == picture).all()
    assert (rgb(picture / 255) == picture).all()
