"""Maps as OME-TIFF: the numbers of the map, a pyramid of means, and a pixel size that lays it over the image."""

import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import infsa
from infsa.streaming import Placement, open_source
from infsa.streaming.ome_tiff import BLOCK, level_shapes, write_ome

from .helpers import picture, small

tifffile = pytest.importorskip("tifffile")


def told(path):
    """The attributes of the image that the file describes."""
    with tifffile.TiffFile(path) as file:
        root = ElementTree.fromstring(file.ome_metadata)
    return next(element.attrib for element in root.iter() if element.tag.endswith("}Pixels"))


def physical(path):
    found = told(path)
    assert found["PhysicalSizeXUnit"] == found["PhysicalSizeYUnit"]
    return float(found["PhysicalSizeY"]), float(found["PhysicalSizeX"]), found["PhysicalSizeXUnit"]


def test_a_killed_writer_leaves_one_part_behind(tmp_path):
    seen = []

    def blocks():
        seen.extend(path.name for path in tmp_path.iterdir())
        yield np.ones((BLOCK, 300), np.float32)

    write_ome(tmp_path / "map.ome.tif", blocks(), (BLOCK, 300), Placement((256, 300), (256, 300), (1, 1)))
    assert len(seen) == 1


@pytest.mark.parametrize("grid", [(1, 1), (5, 3), (256, 256), (257, 40), (20, 700), (1030, 515)])
def test_levels_are_means_and_the_first_is_the_map(grid, tmp_path):
    values = np.random.default_rng(0).random(grid, np.float32)
    blocks = (values[row : row + BLOCK] for row in range(0, grid[0], BLOCK))
    write_ome(tmp_path / "map.ome.tif", blocks, grid, Placement(grid, grid, (1, 1)))
    with tifffile.TiffFile(tmp_path / "map.ome.tif") as file:
        assert file.is_ome
        levels = file.series[0].levels
        assert [level.shape for level in levels] == level_shapes(grid)
        assert all(level.keyframe.is_tiled and level.dtype == np.float32 for level in levels)
        assert len(file.pages) == 1  # the smaller levels are SubIFDs of the first
        assert np.array_equal(levels[0].asarray(), values)
        above = values
        for level in levels[1:]:
            filled = np.pad(above, [(0, side % 2) for side in above.shape], mode="edge")
            means = filled.reshape(filled.shape[0] // 2, 2, filled.shape[1] // 2, 2).mean((1, 3))
            above = level.asarray()
            np.testing.assert_allclose(above, means, rtol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["map.ome.tif"]


@pytest.mark.parametrize("shape", [(61, 45), (8, 8), (3, 5)])
def test_a_stream_writes_the_model_s_map(shape, tmp_path):
    """Also where the image is no multiple of the patch, and for a grid of one patch."""
    model, x = small(), picture(*shape)
    result = infsa.stream(model, x, tile=24, map=tmp_path / "map.ome.tif")
    written = tifffile.imread(tmp_path / "map.ome.tif")
    assert np.array_equal(written.reshape(result.map.shape), result.map.astype(np.float32))
    assert (int(told(result.map_file)["SizeY"]), int(told(result.map_file)["SizeX"])) == result.map.shape
    assert physical(result.map_file) == (8, 8, "pixel")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.ome.png", "map.ome.tif"]
    infsa.stream(model, x, map=tmp_path / "map.ome.tif")  # an older map is replaced


def pyramid(path, sides=((96, 64), (48, 32)), **options):
    """An RGB TIFF with a smaller level."""
    rng = np.random.default_rng(0)
    with tifffile.TiffWriter(path, ome=options.pop("ome", False)) as file:
        for number, side in enumerate(sides):
            pixels = rng.integers(0, 256, (*side, 3), np.uint8)
            below = {"subifds": len(sides) - 1} if number == 0 else {"subfiletype": 1}
            file.write(pixels, photometric="rgb", tile=(16, 16), **below, **(options if number == 0 else {}))


def test_the_pixel_size_of_the_image_is_taken_along(tmp_path):
    metadata = {
        "axes": "YXS", "PhysicalSizeX": 0.25, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 500,
        "PhysicalSizeYUnit": "nm",
    }  # fmt: skip
    pyramid(tmp_path / "slide.ome.tif", ome=True, metadata=metadata)
    pyramid(tmp_path / "tags.tif", resolution=(40_000, 20_000), resolutionunit="CENTIMETER")
    pyramid(tmp_path / "none.tif")
    for name, size in (("slide.ome.tif", (4, 2, "µm")), ("tags.tif", (4, 2, "µm")), ("none.tif", (8, 8, "pixel"))):
        for level in (0, 1):
            infsa.stream(small(), tmp_path / name, level=level, map=tmp_path / "map.ome.tif")
            found = physical(tmp_path / "map.ome.tif")
            assert found == pytest.approx((size[0] * 2**level, size[1] * 2**level, size[2])), (name, level)


def test_an_image_of_a_file_with_several(tmp_path):
    with tifffile.TiffWriter(tmp_path / "two.tif") as file:
        for side, per_cm in ((24, 10_000), (40, 20_000)):
            pixels = np.zeros((side, side, 3), np.uint8)
            file.write(pixels, photometric="rgb", resolution=(per_cm, per_cm), resolutionunit=3, metadata=None)
    infsa.stream(small(), tmp_path / "two.tif", series=1, bands=(0, 1, 2), map=tmp_path / "map.ome.tif")
    assert physical(tmp_path / "map.ome.tif") == pytest.approx((4, 4, "µm"))
    with tifffile.TiffFile(tmp_path / "map.ome.tif") as file:
        assert file.series[0].shape == (5, 5)


def test_ome_zarr_states_its_pixel_size(tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "image.zarr"), mode="w")
    for name, side in (("0", 64), ("1", 32)):
        group.create_array(name, shape=(3, side, side), dtype="u1")[:] = 7
    axes = [{"name": "c"}, {"name": "y", "unit": "micrometer"}, {"name": "x", "unit": "micrometer"}]
    steps = [{"path": str(k), "coordinateTransformations": [{"scale": [1, 2.0**k, 2.0**k]}]} for k in (0, 1)]
    group.attrs["multiscales"] = [{"axes": axes, "datasets": steps}]
    source = open_source(tmp_path / "image.zarr", level=1)
    assert (source.full_size, source.pixel_size) == ((64, 64), (1, 1))
    assert Placement.of(source, (8, 8)).patch_size() == (16, 16, "µm")
    del group["0"]
    with pytest.raises(ValueError, match=r"image\.zarr has no OME-Zarr image that can be read: '0'"):
        open_source(tmp_path / "image.zarr", level=1)


def test_without_tifffile_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(
        ImportError, match=r"writing map\.ome\.tif needs tifffile: pip install '\.\[wsi\]' in a checkout"
    ) as caught:
        infsa.stream(small(), picture(), map=tmp_path / "map.ome.tif")
    assert "\n" not in str(caught.value)
