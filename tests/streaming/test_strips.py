"""Images that decode from the top down: every tile and patch size, every kind of pixel, and damage."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.streaming import open_source
from infsa.streaming.source import Colours
from infsa.streaming.strip_reader import StripSource

from .helpers import relative, small
from .test_sources import pixels

pyvips = pytest.importorskip("pyvips")
SIZE = {"height": 149, "width": 45}  # several steps of the decoder, and no multiple of anything


def write(path, array, **options):
    """A file, and the pixels (h, w, c) that a library of another make finds in it."""
    if array.dtype == np.uint16:
        space = "rgb16" if array.ndim == 3 else "grey16"
        pyvips.Image.new_from_array(array, interpretation=space).write_to_file(str(path), **options)
        return array.reshape(*array.shape[:2], -1)
    Image.fromarray(array).save(path, **options)
    return np.atleast_3d(np.asarray(Image.open(path)))


def write_interlaced(path, array):
    pyvips.Image.new_from_array(array).write_to_file(str(path), interlace=True)
    return array


def write_palette(path, array, transparent=()):
    options = {"transparency": 7} if transparent else {}
    Image.fromarray(array).quantize(50).save(path, **options)
    return np.asarray(Image.open(path).convert("RGBA" if transparent else "RGB"))


FILES = {
    "rgb.png": lambda path: write(path, pixels(**SIZE)),
    "grey.png": lambda path: write(path, pixels(0, **SIZE)),
    "alpha.png": lambda path: write(path, pixels(4, **SIZE)),
    "grey and alpha.png": lambda path: write(path, pixels(2, **SIZE)),
    "bilevel.png": lambda path: 255 * write(path, pixels(0, **SIZE) > 127).astype(np.uint8),
    "16 bits.png": lambda path: write(path, pixels(dtype=np.uint16, **SIZE)),
    "16 bits of grey.png": lambda path: write(path, pixels(0, dtype=np.uint16, **SIZE)),
    "interlaced.png": lambda path: write_interlaced(path, pixels(**SIZE)),
    "interlaced of 16 bits.png": lambda path: write(path, pixels(dtype=np.uint16, **SIZE), interlace=True),
    "palette.png": lambda path: write_palette(path, pixels(**SIZE)),
    "transparent palette.png": lambda path: write_palette(path, pixels(**SIZE), transparent=True),
    "rgb.webp": lambda path: write(path, pixels(**SIZE), lossless=True),
    "alpha.webp": lambda path: write(path, pixels(4, **SIZE), lossless=True, exact=True),
    "palette.gif": lambda path: write_palette(path, pixels(**SIZE)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_pixel_in_every_band(name, tmp_path):
    array = FILES[name](tmp_path / name)
    source = open_source(tmp_path / name)
    assert (source.height, source.width, source.channels) == array.shape
    for rows in (7, 14, 24, 112, 144, 149):
        source.restart()
        found = [source.read(top, 5, min(149, top + rows), 43) for top in range(0, 149, rows)]
        assert np.array_equal(np.concatenate(found), array[:, 5:43])


@pytest.mark.parametrize("name", ["rgb.png", "alpha.png", "interlaced of 16 bits.png", "palette.gif"])
@pytest.mark.parametrize(("patch", "tiles"), [(8, (24, 200)), (14, (14, 98, 1024)), (3, (50,))])
def test_streamed_equals_in_memory_for_every_tile_and_patch(name, patch, tiles, tmp_path):
    array = FILES[name](tmp_path / name)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        model = small(dtype, patch_size=patch, img_size=4 * patch, depth=1)
        with torch.no_grad():
            expected = model(Colours(model)(array))
        for tile in tiles:
            found = infsa.stream(model, tmp_path / name, tile=tile, strategy="recompute").logits
            assert relative(found, expected) < bound


@pytest.mark.parametrize("name", ["rgb.png", "alpha.png"])
def test_a_margin_across_bands_is_decoded_once(name, tmp_path, monkeypatch):
    """A convolutional stem sees rows of the bands above and below; every pass still goes down the file once."""
    array, opened = FILES[name](tmp_path / name), []
    model = small(patch_size=(8, 4), img_size=32, depth=1, stem="conv")
    with torch.no_grad():
        expected = model(Colours(model)(array))
    beginning = StripSource._open
    monkeypatch.setattr(StripSource, "_open", lambda source: opened.append(source) or beginning(source))
    for tile in (8, 24, 88, 1024):
        opened.clear()
        found = infsa.stream(model, tmp_path / name, tile=tile, strategy="recompute")
        assert relative(found.logits, expected) < 1e-12
        assert len(opened) == found.passes


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
def test_jpeg_tiles_of_every_size_show_the_same_pixels(options, tmp_path):
    Image.fromarray(pixels(**SIZE)).save(tmp_path / "image.jpg", **options)
    array = open_source(tmp_path / "image.jpg").read(0, 0, 149, 45)
    model = small(patch_size=14, img_size=56, depth=1)
    with torch.no_grad():
        expected = model(Colours(model)(array))
    for tile in (14, 30, 98, 1024):
        assert relative(infsa.stream(model, tmp_path / "image.jpg", tile=tile).logits, expected) < 1e-12


def test_cmyk_jpeg_as_pillow_converts_it(tmp_path):
    smooth = Image.fromarray(pixels(height=8, width=8)).resize((45, 149)).convert("CMYK")
    smooth.save(tmp_path / "inks.jpg", quality=95)
    found = open_source(tmp_path / "inks.jpg").read(0, 0, 149, 45).astype(int)
    assert abs(found - np.asarray(Image.open(tmp_path / "inks.jpg").convert("RGB"))).max() <= 2


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_tiles_above_the_damage_are_kept(ending, tmp_path):
    """Of a file that is cut off in the middle, with tiles of every height: only tiles near the damage are lost."""
    path = tmp_path / f"cut.{ending}"
    array = FILES["rgb.png"](tmp_path / "whole.png")
    Image.fromarray(array).save(path)
    whole = open_source(path).read(0, 0, 149, 45)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = open_source(path)
    with pytest.raises(OSError, match=r".") as caught:
        source.read(0, 0, 149, 45)
    assert "\n" not in str(caught.value)
    assert 48 <= source.end <= 80
    source.restart()
    assert np.array_equal(source.read(0, 0, source.end, 45), whole[: source.end])
    for tile in (8, 24, 40):
        skipped = infsa.stream(small(depth=1), path, tile=tile, on_error="skip").skipped
        assert all(bad.tile.pixels[2] > source.end for bad in skipped)
        assert len({bad.tile.pixels[0] for bad in skipped}) == -(-149 // tile) - source.end // tile


def test_a_file_that_is_gone_in_a_later_pass_is_named(tmp_path):
    FILES["rgb.png"](tmp_path / "rgb.png")
    with pytest.raises(ValueError, match=r"rgb\.png") as caught:
        infsa.stream(small(), tmp_path / "rgb.png", tile=64, strategy="recompute",
                     progress=lambda _: (tmp_path / "rgb.png").unlink(missing_ok=True))  # fmt: skip
    assert "\n" not in str(caught.value)


def test_frames_are_chosen_and_the_first_is_said(tmp_path):
    frames = [Image.fromarray(pixels(0, **SIZE) // (n + 1)) for n in range(3)]
    for name, options in (("moving.gif", {}), ("moving.webp", {"lossless": True})):
        path = tmp_path / name
        frames[0].save(path, save_all=True, append_images=frames[1:], **options)
        with pytest.warns(UserWarning, match=r"has 3 frames: taking page=0"):
            first = open_source(path).read(0, 0, 149, 45)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for page, frame in enumerate(frames):
                found = open_source(path, page=page).read(0, 0, 149, 45)
                assert abs(found[..., 0].astype(int) - np.asarray(frame)).max() <= 1
            assert np.array_equal(open_source(path, page=0).read(0, 0, 149, 45), first)
            with pytest.raises(ValueError, match="has 3 frames, got page=3"):
                open_source(path, page=3)
    frames[0].save(tmp_path / "still.png")
    with pytest.raises(ValueError, match="has 1 frame, got page=1"):
        open_source(tmp_path / "still.png", page=1)


@pytest.mark.parametrize("name", ["image.jpg", "image.png"])
def test_a_file_that_becomes_shorter_while_it_is_read_is_named(name, tmp_path):
    """A mapped file would end the process."""
    Image.fromarray(pixels(height=900, width=900)).save(tmp_path / name)
    source = open_source(tmp_path / name)
    source.read(0, 0, 16, 900)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:4000])
    with pytest.raises(OSError, match=r"\w"):
        source.read(16, 0, 900, 900)
