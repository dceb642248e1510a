"""TIFF: what its numbers mean as colours, which of its images is read, and which bands."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.streaming import open_source
from infsa.streaming.source import Colours

from .helpers import relative, small
from .test_sources import pixels, write_tiff

tifffile = pytest.importorskip("tifffile")
pyvips = pytest.importorskip("pyvips")
WINDOWS = [(0, 0, 101, 150), (17, 9, 90, 140), (99, 149, 101, 150)]


def by_pillow(path, image, mode, **options):
    """Save an image; what Pillow finds in the file."""
    image.save(path, **options)
    with Image.open(path) as found:
        return np.atleast_3d(np.asarray(found.convert(mode)))


def by_tifffile(path, array, expected=None, **options):
    write_tiff(path, array, **options)
    return np.atleast_3d(array if expected is None else expected)


def by_palette(path, places, bits, scale=257):
    """Places in a palette of random colours, which are stored as ``scale`` times 8 bits."""
    colours = np.random.default_rng(1).integers(0, 256, (2**bits, 3), np.uint8)
    palette = (colours.T.astype(np.uint16) * scale).ravel()
    tag = (320, "H", palette.size, palette.tolist(), True)
    write_tiff(path, places, bitspersample=bits, photometric="minisblack", extratags=[tag])
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["PhotometricInterpretation"].overwrite(3)
    return colours[places.astype(int)]


PHOTO, GREY = Image.fromarray(pixels()), pixels(0)
BITS = {bits: GREY >> 8 - bits for bits in (1, 2, 4)}
FLOATS = pixels().astype(np.float32) / 255
KINDS = {
    "palette": lambda path: by_pillow(path, PHOTO.convert("P"), "RGB"),
    "palette, packbits": lambda path: by_pillow(path, PHOTO.convert("P"), "RGB", compression="packbits"),
    "palette of 1 bit": lambda path: by_palette(path, BITS[1].astype(bool), 1),
    "palette of 4 bits": lambda path: by_palette(path, BITS[4], 4),
    "palette of 8-bit colours": lambda path: by_palette(path, GREY, 8, scale=1),
    "CMYK": lambda path: by_pillow(path, PHOTO.convert("CMYK"), "RGB"),
    "CMYK, LZW": lambda path: by_pillow(path, PHOTO.convert("CMYK"), "RGB", compression="tiff_lzw"),
    "bilevel": lambda path: by_pillow(path, PHOTO.convert("1"), "L"),
    "bilevel, group 4": lambda path: by_pillow(path, PHOTO.convert("1"), "L", compression="group4"),
    "bilevel, white is 0": lambda path: by_tifffile(
        path, BITS[1].astype(bool), 255 * (1 - BITS[1]), photometric="miniswhite"
    ),
    "2 bits": lambda path: by_tifffile(path, BITS[2], 85 * BITS[2], bitspersample=2, photometric="minisblack"),
    "4 bits": lambda path: by_tifffile(path, BITS[4], 17 * BITS[4], bitspersample=4, photometric="minisblack"),
    "4 bits, white is 0": lambda path: by_tifffile(
        path, BITS[4], 255 - 17 * BITS[4], bitspersample=4, photometric="miniswhite", tile=(32, 32)
    ),
    "float16": lambda path: by_tifffile(path, FLOATS.astype(np.float16)),
    "float32, predicted": lambda path: by_tifffile(path, FLOATS, compression="zlib", predictor=True, tile=(32, 32)),
    "float64, big-endian": lambda path: by_tifffile(path, FLOATS.astype(np.float64), byteorder=">"),
    "float, white is 0": lambda path: by_tifffile(path, FLOATS[..., 0], 1 - FLOATS[..., 0], photometric="miniswhite"),
    "BigTIFF": lambda path: by_tifffile(path, pixels(), bigtiff=True, tile=(32, 32), compression="packbits"),
    "16 bits, white is 0": lambda path: by_tifffile(
        path, pixels(0, np.uint16), 65535 - pixels(0, np.uint16), photometric="miniswhite", byteorder=">"
    ),
    "16 bits in planes": lambda path: by_tifffile(
        path, pixels(3, np.uint16).transpose(2, 0, 1).copy(), pixels(3, np.uint16), planarconfig="separate",
        rowsperstrip=7, compression="lzw",
    ),
    "JPEG": lambda path: by_pillow(path, PHOTO, "RGB", compression="jpeg"),
    "grey and opacity": lambda path: by_pillow(path, PHOTO.convert("LA"), "LA"),
    "opacity": lambda path: by_pillow(path, Image.fromarray(pixels(4)), "RGBA", compression="tiff_deflate"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_colours_of_every_kind(kind, tmp_path):
    """As Pillow or tifffile finds them, in any window, and streamed as in memory."""
    path = tmp_path / "image.tif"
    expected = KINDS[kind](path)
    source = open_source(path)
    assert (source.height, source.width, source.channels) == expected.shape
    for top, left, bottom, right in WINDOWS:
        assert np.array_equal(source.read(top, left, bottom, right), expected[top:bottom, left:right])
    model = small(depth=1)
    with torch.no_grad():
        whole = model(Colours(model)(expected))
    assert relative(infsa.stream(model, path, tile=40).logits, whole) < 1e-12


def test_sixteen_bits_of_cmyk(tmp_path):
    inks = pixels(4, np.uint16)
    write_tiff(tmp_path / "inks.tif", inks, photometric="separated", tile=(32, 32))
    ink, black = inks[..., :3] / 65535, inks[..., 3:] / 65535
    found = open_source(tmp_path / "inks.tif").read(0, 0, 101, 150) / 65535
    assert abs(found - (1 - ink) * (1 - black)).max() < 1 / 65535


def test_ycbcr_in_jpeg_is_decoded_to_rgb(tmp_path):
    smooth = np.asarray(Image.fromarray(pixels(height=8, width=8)).resize((150, 101)))
    path = str(tmp_path / "image.tif")
    pyvips.Image.new_from_array(smooth).tiffsave(path, compression="jpeg", Q=80, tile=True, rgbjpeg=False)
    with tifffile.TiffFile(path) as file:
        assert file.pages[0].photometric.name == "YCBCR"
    assert abs(open_source(path).read(0, 0, 101, 150).astype(int) - np.asarray(Image.open(path))).max() <= 8


@pytest.mark.parametrize("value", [255.0, -0.5, np.nan, np.inf])
def test_floating_pixels_outside_0_to_1_are_refused(value, tmp_path):
    array = FLOATS.copy()
    array[70, 80, 1] = value
    write_tiff(tmp_path / "image.tif", array)
    with pytest.raises(ValueError, match=rf"tile 4 .*floating pixels must lie in \[0, 1\], got {value:g}"):
        infsa.stream(small(depth=1), tmp_path / "image.tif", tile=64)


@pytest.mark.parametrize("options", [{"extrasamples": ["unspecified"]}, {"tag": "none"}, {"planarconfig": "separate"}])
def test_a_fourth_band_that_is_not_declared_as_opacity_is_not_taken_as_that(options, tmp_path):
    array, path, model = pixels(4), tmp_path / "satellite.tif", small(depth=1)
    if "tag" in options:
        by_vips = pyvips.Image.new_from_array(array, interpretation="multiband")
        by_vips.copy(interpretation="rgb").tiffsave(str(path))
        _undeclare(path)
    else:
        stored = array.transpose(2, 0, 1).copy() if "planarconfig" in options else array
        write_tiff(path, stored, **{"extrasamples": ["unspecified"], **options})
    with pytest.raises(ValueError, match="has 4 channels, none of them opacity, the model takes 3: choose") as caught:
        infsa.stream(model, path)
    assert "bands=(0, 1, 2), counted from 0" in str(caught.value)
    for bands in ((0, 1, 2), (3, 0, 1), (3,), [2, 2, 2]):
        expected = infsa.stream(model, array[..., list(bands)], tile=32).logits
        assert torch.equal(infsa.stream(model, path, tile=32, bands=bands).logits, expected)


def _undeclare(path):
    """Turn the tag of extra samples into one that nobody knows."""
    with tifffile.TiffFile(path, mode="r+b") as file:
        tag = file.pages[0].tags["ExtraSamples"]
        file.filehandle.seek(tag.offset)
        file.filehandle.write((65000).to_bytes(2, "little" if file.byteorder == "<" else "big"))


def test_a_model_of_many_channels_takes_all_bands(tmp_path):
    array = pixels(8, np.uint16)
    write_tiff(tmp_path / "bands.tif", array, photometric="minisblack", planarconfig="contig")
    model = small(depth=1, in_chans=8)
    model.pretrained_cfg = {"mean": (0.5,) * 8, "std": (0.25,) * 8}
    values = torch.from_numpy((array / 65535 - 0.5) / 0.25).permute(2, 0, 1)
    found = infsa.stream(model, tmp_path / "bands.tif", tile=32).logits
    assert relative(found, infsa.stream(model, values, tile=32).logits) < 1e-12


def test_bands_without_a_mean_each_are_refused_with_what_to_do(tmp_path):
    write_tiff(tmp_path / "bands.tif", pixels(4), photometric="minisblack", planarconfig="contig")
    model = small(depth=1, in_chans=4)
    with pytest.raises(ValueError, match=r"means of 3: .*infsa\.models\.describe_data\(model, mean="):
        infsa.stream(model, tmp_path / "bands.tif", tile=32)
    infsa.models.describe_data(model, mean=(0.5,) * 4, std=(0.2,) * 4)
    normal = (torch.from_numpy(pixels(4)).permute(2, 0, 1) / 255 - 0.5) / 0.2
    expected = infsa.stream(model, normal.to(next(model.parameters()).dtype), tile=32).logits
    assert relative(infsa.stream(model, tmp_path / "bands.tif", tile=32).logits, expected) < 1e-6


@pytest.mark.parametrize("bands", [(), (4,), (-1,), (0, 1.5), "0,1", 3])
def test_bands_that_do_not_exist_are_refused(bands):
    with pytest.raises((ValueError, TypeError), match="bands") as caught:
        open_source(pixels(4), bands=bands)
    assert "\n" not in str(caught.value)


def test_bands_of_model_input():
    x = torch.randn(5, 40, 30, dtype=torch.float64)
    chosen = infsa.stream(small(depth=1), x, bands=(4, 0, 2), tile=16).logits
    assert torch.equal(chosen, infsa.stream(small(depth=1), x[[4, 0, 2]], tile=16).logits)


def write_series(path):
    """Two stacks and one photograph: (series, page, page of the file) of each image."""
    images = {(0, 0, 0): pixels(), (1, 0, 1): pixels(0, height=40), (1, 1, 2): 255 - pixels(0, height=40)}
    with tifffile.TiffWriter(path) as file:
        file.write(images[0, 0, 0], photometric="rgb", tile=(32, 32))
        file.write(np.stack([images[1, 0, 1], images[1, 1, 2]]), photometric="minisblack")
    return images


def test_series_and_pages_are_chosen(tmp_path):
    path = tmp_path / "several.tif"
    images = write_series(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for (series, page, of_file), image in images.items():
            for choice in ({"series": series, "page": page}, {"page": of_file}):
                source = open_source(path, **choice)
                found = source.read(0, 0, source.height, source.width)
                assert np.array_equal(found, np.atleast_3d(image))
        model = small(depth=1)
        expected = infsa.stream(model, images[1, 1, 2], tile=32).logits
        assert torch.equal(infsa.stream(model, path, tile=32, series=1, page=1).logits, expected)
        assert torch.equal(infsa.stream(model, open_source(path, page=2), tile=32).logits, expected)


@pytest.mark.parametrize(
    "options", [{"compression": "jpeg", "tile": (32, 32)}, {"compression": "zlib", "rowsperstrip": 16}, {},
                {"truncate": True}, {"byteorder": ">", "truncate": True}], ids=str,
)  # fmt: skip
def test_pages_of_stacks(options, tmp_path):
    """Listed one by one, with the tags of the first, or not at all: a truncated stack lists its first page only."""
    path, stack = tmp_path / "stack.tif", np.stack([pixels() // (n + 1) for n in range(3)])
    tifffile.imwrite(path, stack, photometric="rgb", **options)
    expected = tifffile.imread(path)
    for page in range(3):
        found = open_source(path, page=page)
        assert np.array_equal(found.read(0, 0, 101, 150), expected[page])
        assert np.array_equal(found.read(17, 9, 90, 140), expected[page, 17:90, 9:140])
    with pytest.raises(ValueError, match="3 pages in the series, got page=3"):
        open_source(path, page=3)
    assert len({open_source(path, page=page).describe() for page in range(3)}) == 3


def test_the_default_is_said(tmp_path):
    write_series(tmp_path / "several.tif")
    with pytest.warns(UserWarning, match=r"several.tif has 2 series: taking series=0$"):
        assert open_source(tmp_path / "several.tif").height == 101
    with pytest.warns(UserWarning, match=r"several.tif has 2 pages \(axes .*YX\): taking page=0$"):
        assert open_source(tmp_path / "several.tif", series=1).height == 40
    frames = [PHOTO, PHOTO.transpose(Image.Transpose.FLIP_TOP_BOTTOM)]
    frames[0].save(tmp_path / "frames.tif", save_all=True, append_images=frames[1:])
    with pytest.warns(UserWarning, match=r"frames.tif has 2 pages"):
        assert np.array_equal(open_source(tmp_path / "frames.tif").read(0, 0, 101, 150), np.asarray(frames[0]))
    assert np.array_equal(open_source(tmp_path / "frames.tif", page=1).read(0, 0, 101, 150), np.asarray(frames[1]))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"series": 2}, "2 series, got series=2"),
        ({"series": 1, "page": 2}, "2 pages in the series, got page=2"),
        ({"page": 3}, "3 pages in the file, got page=3"),
        ({"series": -1}, "series must be 0 or more, got -1"),
        ({"page": 1.0}, "page must be 0 or more, got 1.0"),
        ({"page": 1, "level": 1}, "name the series of page=1"),
        ({"series": 1, "level": 1}, "1 levels, got level=1"),
    ],
)
def test_series_and_pages_that_do_not_exist_are_refused(choice, message, tmp_path):
    write_series(tmp_path / "several.tif")
    with pytest.raises(ValueError, match=message) as caught:
        open_source(tmp_path / "several.tif", **choice)
    assert "\n" not in str(caught.value)


def test_series_and_pages_are_refused_where_there_are_none(tmp_path):
    np.save(tmp_path / "image.npy", pixels())
    for source in (pixels(), tmp_path / "image.npy"):
        for choice in ({"series": 0}, {"page": 0}):
            with pytest.raises(ValueError, match=f"{next(iter(choice))}"):
                open_source(source, **choice)


def test_a_state_of_another_page_is_refused(tmp_path):
    """Two pages of one size in one file."""
    write_series(tmp_path / "several.tif")
    states = {open_source(tmp_path / "several.tif", series=1, page=page).describe() for page in (0, 1)}
    chosen = {open_source(pixels(4), bands=bands).describe() for bands in ((0, 1, 2), (2, 1, 0))}
    assert len(states) == len(chosen) == 2


def test_pyramids_of_pages_without_sub_images(tmp_path):
    """As libvips and slide scanners write them."""
    array = np.kron(pixels(height=40, width=50), np.ones((8, 8, 1), np.uint8))
    pyvips.Image.new_from_array(array).tiffsave(str(tmp_path / "slide.tif"), tile=True, tile_width=64, tile_height=64,
                                                pyramid=True, compression="deflate")  # fmt: skip
    levels = [open_source(tmp_path / "slide.tif", level=level) for level in (0, 1, 2)]
    assert [(level.height, level.width) for level in levels] == [(320, 400), (160, 200), (80, 100)]
    assert np.array_equal(levels[0].read(0, 0, 320, 400), array)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_refused_in_one_line_or_read(seed, tmp_path):
    """Bytes of the header and the tags are changed at random; nothing but a one-line error may come of it."""
    path, draw = tmp_path / "damaged.tif", np.random.default_rng(seed)
    write_tiff(path, pixels(height=24, width=20), tile=(16, 16), compression="zlib")
    data = path.read_bytes()
    for _ in range(60):
        places = draw.integers(2, 400, draw.integers(1, 4))
        changed = bytearray(data)
        for place in places:
            changed[place] = draw.integers(0, 256)
        path.write_bytes(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                source = open_source(path)
            if source.height * source.width < 1e5:
                source.read(0, 0, min(16, source.height), min(16, source.width))
        except (ValueError, OSError) as error:
            assert "\n" not in str(error)  # noqa: PT017
