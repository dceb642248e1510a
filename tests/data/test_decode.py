"""Decoding: every kind of pixel to RGB, every kind of damage to one line."""

import numpy as np
import pytest
from PIL import Image

from infsa.data import UnreadableImage, decode

from .helpers import encoded, write_image


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_modes_become_rgb(mode):
    image = decode(encoded(Image.new("RGB", (5, 4), "white").convert(mode)))
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (5, 4), (255, 255, 255))


def test_cmyk_becomes_rgb():
    red, green, blue = decode(encoded(Image.new("RGB", (8, 8), (200, 30, 60)).convert("CMYK"), "JPEG")).getpixel((4, 4))
    assert abs(red - 200) < 6
    assert abs(green - 30) < 6
    assert abs(blue - 60) < 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_range(kind):
    values = np.array([[0, 0x0100, 0x8000, 0xFFFF]], np.uint16)
    image = decode(encoded(Image.fromarray(values), kind))
    assert np.asarray(image)[0].tolist() == [[0] * 3, [1] * 3, [128] * 3, [255] * 3]


def test_transparency_is_laid_on_white():
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert decode(encoded(half)).getpixel((0, 0)) == (127, 127, 127)
    palette = Image.new("P", (2, 1))
    palette.putpalette([9, 9, 9, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    image = decode(encoded(palette, "GIF", transparency=0))
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 255)]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    corner = {1: (0, 0), 2: (2, 0), 3: (2, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 2), 8: (0, 2)}[orientation]
    image = Image.new("RGB", (3, 2))
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decode(encoded(image, exif=exif))
    assert upright.size == ((3, 2) if orientation < 5 else (2, 3))
    assert upright.getpixel(corner) == (255, 0, 0)


def test_damage_is_one_line_that_names_the_file(tmp_path):
    whole = encoded(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")
    cases = {"cut.jpg": whole[: len(whole) // 2], "empty.jpg": b"", "text.png": b"hello", "head.jpg": whole[:30]}
    cases["float.tiff"] = encoded(Image.new("F", (2, 2)), "TIFF")
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableImage, match=rf"^[^\n]*{name}: [^\n]+$"):
            decode(tmp_path / name)
    with pytest.raises(UnreadableImage, match=r"nowhere.jpg: no such file$"):
        decode(tmp_path / "nowhere.jpg")


def test_large_images_are_refused_and_pillows_limit_stays(tmp_path, monkeypatch):
    path = write_image(tmp_path / "a.png", size=(20, 10))
    assert decode(path, max_pixels=200).size == (20, 10)
    with pytest.raises(UnreadableImage, match=r"a.png: 20 × 10 pixels are more than max_pixels=199"):
        decode(path, max_pixels=199)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(UnreadableImage, match=r"a.png: Image size"):
        decode(path, max_pixels=10**9)
