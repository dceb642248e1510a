"""Every reader gives the pixels of the file, in any window; what cannot be read is told in one line."""

import importlib
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.streaming import open_source
from infsa.streaming.source import Colours

from .helpers import relative, small

tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")
pyvips = pytest.importorskip("pyvips")

WINDOWS = [(0, 0, 40, 70), (0, 0, 1, 1), (17, 9, 90, 140), (99, 0, 101, 150), (0, 149, 101, 150)]


def pixels(channels=3, dtype=np.uint8, height=101, width=150):
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def write_tiff(path, array, **options):
    photometric = options.pop("photometric", "rgb" if array.ndim == 3 else "minisblack")
    tifffile.imwrite(path, array, photometric=photometric, **options)


def write_pyramid(path, array):
    with tifffile.TiffWriter(path) as file:
        file.write(array, subifds=1, tile=(32, 32), photometric="rgb")
        file.write(array[::2, ::2], subfiletype=1, tile=(32, 32), photometric="rgb")


def write_ome_zarr(path, array):
    group = zarr.open_group(str(path), mode="w")
    for name, level in (("0", array), ("1", array[::2, ::2])):
        planes = level.transpose(2, 0, 1)[None]
        stored = group.create_array(name, shape=planes.shape, chunks=(1, 1, 32, 32), dtype=planes.dtype)
        stored[:] = planes
    axes = [{"name": name} for name in "tcyx"]
    group.attrs["ome"] = {"multiscales": [{"axes": axes, "datasets": [{"path": "0"}, {"path": "1"}]}]}


def write_zarr(path, array):
    zarr.create_array(str(path), shape=array.shape, chunks=(32, 32, 3), dtype=array.dtype)[:] = array


WRITERS = {
    "image.npy": lambda path, array: np.save(path, array),
    "image.png": lambda path, array: Image.fromarray(array).save(path),
    "tiled.tif": lambda path, array: write_tiff(path, array, tile=(32, 48)),
    "deflated.tif": lambda path, array: write_tiff(path, array, tile=(32, 32), compression="zlib", predictor=True),
    "lzw.tif": lambda path, array: write_tiff(path, array, tile=(32, 32), compression="lzw"),
    "strips.tif": lambda path, array: write_tiff(path, array, rowsperstrip=7, compression="zlib"),
    "raw.tif": lambda path, array: write_tiff(path, array),
    "planar.tif": lambda path, array: write_tiff(
        path, np.ascontiguousarray(array.transpose(2, 0, 1)), tile=(32, 32), planarconfig="separate"
    ),
    "big-endian.tif": lambda path, array: write_tiff(path, array, byteorder=">"),
    "pyramid.tiff": write_pyramid,
    "array.zarr": write_zarr,
    "image.ome.zarr": write_ome_zarr,
}


@pytest.mark.parametrize("name", WRITERS)
def test_readers_give_the_pixels(name, tmp_path):
    array = pixels()
    WRITERS[name](tmp_path / name, array)
    source = open_source(tmp_path / name)
    assert (source.height, source.width, source.channels) == array.shape
    for top, left, bottom, right in WINDOWS:
        source.restart()
        assert np.array_equal(source.read(top, left, bottom, right), array[top:bottom, left:right])


@pytest.mark.parametrize("name", ["image.npy", "tiled.tif", "strips.tif", "image.png", "array.zarr", "raw.tif"])
def test_sixteen_bits(name, tmp_path):
    array = pixels(dtype=np.uint16)
    if name == "image.png":
        pyvips.Image.new_from_array(array, interpretation="rgb16").write_to_file(str(tmp_path / name))
    else:
        WRITERS[name](tmp_path / name, array)
    model = small()
    expected = infsa.stream(model, Colours(model)(array)[0], tile=32).logits
    assert relative(infsa.stream(model, tmp_path / name, tile=32).logits, expected) < 1e-12
    assert torch.allclose(Colours(model)(array), Colours(model)((array / 257).round().astype(np.uint8)), atol=0.02)


@pytest.mark.parametrize("name", WRITERS)
def test_files_stream_like_arrays(name, tmp_path):
    array, model = pixels(), small(depth=2)
    WRITERS[name](tmp_path / name, array)
    expected = infsa.stream(model, array, tile=32).logits
    assert torch.equal(infsa.stream(model, tmp_path / name, tile=32, strategy="recompute").logits, expected)
    with torch.no_grad():
        assert relative(expected, model(Colours(model)(array))) < 1e-10


def test_jpeg_equals_pillow_nearly(tmp_path):
    smooth = np.asarray(Image.fromarray(pixels(height=8, width=8)).resize((150, 101), Image.Resampling.BICUBIC))
    for name, options in (("plain.jpg", {}), ("progressive.jpg", {"progressive": True})):
        Image.fromarray(smooth).save(tmp_path / name, quality=95, **options)
        found = open_source(tmp_path / name).read(0, 0, 101, 150).astype(int)
        assert abs(found - np.asarray(Image.open(tmp_path / name)).astype(int)).max() <= 8


def test_exif_orientation_is_applied(tmp_path):
    array = pixels()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(array).save(tmp_path / "turned.png", exif=exif)
    source = open_source(tmp_path / "turned.png")
    assert (source.height, source.width) == (150, 101)
    assert np.array_equal(source.read(0, 0, 150, 101), np.rot90(array, -1))


def test_floating_zarr_with_a_batch_axis_is_not_loaded_whole(tmp_path):
    values = np.random.default_rng(0).standard_normal((1, 3, 40, 50))
    stored = zarr.create_array(str(tmp_path / "x.zarr"), shape=values.shape, chunks=(1, 3, 16, 16), dtype="f8")
    stored[:] = values
    source = open_source(tmp_path / "x.zarr")
    assert not isinstance(source.tensor, np.ndarray)
    assert np.array_equal(source.read(7, 3, 31, 50), values[0, :, 7:31, 3:50])


def test_levels_of_a_pyramid(tmp_path):
    array = pixels()
    for name in ("pyramid.tiff", "image.ome.zarr"):
        WRITERS[name](tmp_path / name, array)
        source = open_source(tmp_path / name, level=1)
        assert np.array_equal(source.read(0, 0, source.height, source.width), array[::2, ::2])
        with pytest.raises(ValueError, match="2 levels, got level=2"):
            open_source(tmp_path / name, level=2)


def test_a_fourth_channel_of_a_microscope_is_no_opacity(tmp_path):
    array = pixels(4)
    write_ome_zarr(tmp_path / "image.zarr", array)
    with pytest.raises(ValueError, match="has 4 channels, none of them opacity, the model takes 3"):
        infsa.stream(small(depth=1), tmp_path / "image.zarr")
    found = infsa.stream(small(depth=1), tmp_path / "image.zarr", bands=(3, 1, 0), tile=32).logits
    assert torch.equal(found, infsa.stream(small(depth=1), array[..., [3, 1, 0]], tile=32).logits)


def test_whole_slides(tmp_path):
    pytest.importorskip("openslide")
    from infsa.streaming.readers import SlideSource

    array = pixels(height=128, width=160)
    write_tiff(tmp_path / "slide.tif", array, tile=(64, 64), compression="jpeg", compressionargs={"level": 95})
    source = SlideSource(tmp_path / "slide.tif")
    found = source.read(10, 20, 100, 150)
    assert found.shape == (90, 130, 4)
    expected = open_source(tmp_path / "slide.tif").read(10, 20, 100, 150)
    assert abs(found[..., :3].astype(int) - expected.astype(int)).max() <= 4
    with pytest.raises(ValueError, match="1 levels, got level=1"):
        SlideSource(tmp_path / "slide.tif", level=1)


@pytest.mark.parametrize("channels", [0, 1, 2, 4])
def test_grey_and_transparent_pixels(channels):
    model, array = small(depth=1), pixels(channels)
    columns = array.reshape(101, 150, -1) / 255
    colours = columns[..., :-1] * columns[..., -1:] + 1 - columns[..., -1:] if channels in (2, 4) else columns
    colours = np.broadcast_to(colours, (101, 150, 3))
    expected = Colours(model)(np.zeros((1, 1, 3), np.uint8))  # black: −mean/std
    scale = Colours(model)(np.full((1, 1, 3), 255, np.uint8)) - expected
    made = expected + torch.from_numpy(colours.copy()).permute(2, 0, 1)[None] * scale
    assert relative(infsa.stream(model, array, tile=32).logits, infsa.stream(model, made[0], tile=32).logits) < 1e-10


def test_opacity_that_is_multiplied_in_already(tmp_path):
    """Associated alpha: the colours are multiplied with the opacity, so white is only added."""
    model, array = small(depth=1), pixels(4)
    solid = (array[..., :3].astype(int) * array[..., 3:] / 255).round()
    write_tiff(tmp_path / "premultiplied.tif", np.concatenate([solid, array[..., 3:]], -1).astype(np.uint8),
               extrasamples=["ASSOCALPHA"])  # fmt: skip
    write_tiff(tmp_path / "plain.tif", array)
    found, expected = (infsa.stream(model, tmp_path / name).logits for name in ("premultiplied.tif", "plain.tif"))
    assert relative(found, expected) < 0.01


def test_white_is_zero_images_are_inverted(tmp_path):
    array = pixels(0)
    write_tiff(tmp_path / "inverted.tif", array, photometric="miniswhite", tile=(32, 32))
    assert np.array_equal(open_source(tmp_path / "inverted.tif").read(0, 0, 101, 150)[..., 0], 255 - array)


@pytest.mark.parametrize("shape", [(1, 100_000, 3), (100_000, 1, 3), (1, 1, 3)])
def test_thin_images(shape, tmp_path):
    array = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    np.save(tmp_path / "thin.npy", array)
    model = small(torch.float32, depth=1)
    with torch.no_grad():
        expected = model(Colours(model)(array))
    assert relative(infsa.stream(model, tmp_path / "thin.npy", tile=4096).logits, expected) < 1e-5


def refusals(folder):
    """Sources that cannot be streamed, each with a part of the line that says why."""
    array = pixels()
    np.save(folder / "empty.npy", array[:0])
    np.save(folder / "signed.npy", array.astype(np.int32))
    np.save(folder / "object.npy", np.array([{}], dtype=object))
    (folder / "text.jpg").write_text("hello")
    (folder / "text.tif").write_text("hello")
    (folder / "text.svs").write_text("hello")
    (folder / "nothing.png").write_bytes(b"")
    (folder / "image.bmp").write_bytes(b"BM")  # the library that pyvips brings along cannot read it
    (folder / "folder").mkdir()
    np.savez(folder / "many.npz", array)
    write_tiff(folder / "wide.tif", array[..., 0].astype(np.uint32))
    write_tiff(folder / "12-bit.tif", array[..., 0].astype(np.uint16), bitspersample=12)
    Image.fromarray(array).convert("LAB").save(folder / "lab.tif")
    Image.fromarray(array).convert("YCbCr").save(folder / "ycbcr.tif")
    group = zarr.open_group(str(folder / "lost.zarr"), mode="w")
    group.attrs["ome"] = {"multiscales": [{"datasets": [{"path": "0"}]}]}
    return {
        np.zeros((0, 5, 3), np.uint8).tobytes: "got builtin_function_or_method",
        folder / "empty.npy": "has no pixels: 0 × 150",
        folder / "signed.npy": "pixels must be uint8 or uint16, got int32",
        folder / "object.npy": "object.npy: ",
        folder / "text.jpg": "text.jpg: ",
        folder / "text.tif": "text.tif: ",
        folder / "text.svs": "text.svs: ",
        folder / "nothing.png": "nothing.png: ",
        folder / "folder": "not a Zarr",
        folder / "many.npz": "unknown image format",
        folder / "missing.tif": "no such file",
        folder / "wide.tif": "pixels must be uint8 or uint16, got uint32",
        folder / "12-bit.tif": "12 bits per value; known: 8 and 16",
        folder / "lab.tif": "colours of kind CIELAB; known: grey, RGB, palette, CMYK, and YCbCr in JPEG",
        folder / "ycbcr.tif": "colours of kind YCBCR with compression NONE; known: in JPEG",
        folder / "lost.zarr": "no OME-Zarr image that can be read: '0'",
        folder / "image.bmp": "unknown image format",
    }


def test_what_is_no_image_is_refused_in_one_line(tmp_path):
    for source, message in refusals(tmp_path).items():
        with pytest.raises((ValueError, TypeError, OSError)) as caught:
            open_source(source)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    (tmp_path / "image.png").write_bytes(b"")

    def without(name, *rest):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", without)
    for name, library in (("image.png", "pyvips"), ("image.tif", "tifffile"), ("image.svs", "openslide")):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ImportError, match=rf"needs {library}.*pip install '\.\[wsi\]' in a checkout"):
            open_source(tmp_path / name)


def test_reading_a_mapped_file_does_not_keep_its_pages(tmp_path):
    from infsa.streaming.memory import resident

    if sys.platform != "linux":
        pytest.skip("resident memory is read from /proc")
    np.save(tmp_path / "large.npy", np.ones((8192, 8192, 1), np.uint8))
    source = open_source(tmp_path / "large.npy")
    source.read(0, 0, 64, 8192)
    before = resident()
    for top in range(0, 8192, 64):
        source.read(top, 0, top + 64, 8192)
    assert resident() - before < 16 * 2**20
