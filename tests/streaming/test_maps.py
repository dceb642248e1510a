"""The streamed map is the model's own, whether kept or written."""

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.streaming.maps import BLOCK, Overview

from .helpers import VARIANTS, picture, small


@pytest.mark.parametrize("strategy", ["recompute", "spill"])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "gelu"])
def test_equals_attention_maps(variant, strategy):
    model, x = small(**VARIANTS[variant]), picture(61, 45)
    for layer, head in ((-1, None), (0, 2)):
        expected = model.attention_maps(x[None], layer=layer, head=head)[0].numpy()
        found = infsa.stream(model, x, tile=24, map=True, layer=layer, head=head, strategy=strategy).map
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-12 * expected.max()


def test_a_map_can_be_asked_for_later():
    model, x = small(), picture()
    assert np.array_equal(infsa.stream(model, x, tile=24).map, infsa.stream(model, x, tile=24, map=True).map)


@pytest.mark.parametrize("ending", ["tif", "zarr"])
@pytest.mark.parametrize("shape", [(20, 700), (600, 40), (5, 5)])
def test_written_maps(ending, shape, tmp_path):
    """Larger than a block in either direction, and smaller than one."""
    tifffile, zarr = pytest.importorskip("tifffile"), pytest.importorskip("zarr")
    model, x = small(patch_size=1, img_size=8, depth=1), picture(*shape)
    path = tmp_path / f"map.{ending}"
    result = infsa.stream(model, x, tile=100, map=path)
    assert result.map_file == path
    if ending == "tif":
        with tifffile.TiffFile(path) as file:
            assert file.pages[0].is_tiled
            assert file.pages[0].tile == (BLOCK, BLOCK)
            written = file.asarray()
    else:
        written = zarr.open_array(str(path), mode="r")[:]
    assert np.array_equal(written, result.map.astype(np.float32))
    with Image.open(path.with_suffix(".png")) as overview:
        assert overview.size == shape[::-1]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "map.png",
        path.name,
    ]


def test_an_existing_zarr_is_left_alone(tmp_path):
    (tmp_path / "map.zarr").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        infsa.stream(small(), picture(), map=tmp_path / "map.zarr")


def test_an_image_is_never_overwritten(tmp_path):
    """Neither by the map nor by the overview beside it, nor any other picture that is not an overview."""
    tifffile = pytest.importorskip("tifffile")
    array, model = np.zeros((16, 16, 3), np.uint8), small(depth=1)
    tifffile.imwrite(tmp_path / "image.tif", array, photometric="rgb")
    Image.fromarray(array).save(tmp_path / "photo.png")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"image.tif is the image itself"):
        infsa.stream(model, tmp_path / "image.tif", map=tmp_path / "image.tif")
    with pytest.raises(FileExistsError, match=r"photo.png exists already"):
        infsa.stream(model, array, map=tmp_path / "photo.tif")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    for _ in range(2):
        infsa.stream(model, array, map=tmp_path / "map.tif")  # the second replaces the first


def test_overview_is_the_mean_of_its_squares():
    values = np.random.default_rng(0).random((1500, 2100), np.float32)
    overview = Overview(values.shape)
    for start in range(0, 1500, BLOCK):
        overview.add(values[start : start + BLOCK])
    factor = overview.factor
    assert factor == 3
    expected = values.reshape(500, 3, 700, 3).mean((1, 3))
    assert np.allclose(overview.sums / factor**2, expected)
    assert overview.picture().size == (700, 500)


def test_a_map_of_zeros_is_uniform():
    model = small(attention_options={"tied": False})
    with torch.no_grad():
        for block in model.blocks:
            block.attn.k.weight.zero_()
            block.attn.k.bias.zero_()
    with pytest.warns(UserWarning, match="uniform"):
        found = infsa.stream(model, picture(), tile=24, map=True).map
    assert np.allclose(found, 1 / 130)


def test_no_map_with_negative_weights():
    with pytest.raises(ValueError, match="gelu"):
        infsa.stream(small(activation="gelu"), picture(), map=True)
