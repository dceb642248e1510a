"""Bytes to RGB, or one line that says why not."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

MAX_PIXELS = 2**26  # 67 megapixels, below the 89 at which Pillow warns


class UnreadableImage(ValueError):
    """An image that cannot be decoded; the message is one line and names the file.

    Example:
        >>> try:
        ...     decode(b"not an image", name="cat.jpg")
        ... except UnreadableImage as error:
        ...     print(error)
        cat.jpg: not an image in a known format
    """


def decode(
    source: bytes | str | Path | Image.Image, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """Decode a file, its bytes or an image that Pillow has opened to an upright RGB image.

    The EXIF orientation is applied. Grayscale, palette, CMYK and 16-bit images are converted; transparent ones are
    laid on white. An animation gives its first frame. Pillow's own limit on the number of pixels stays in force.

    Args:
        source: the path of a file, the bytes of one, or an opened image.
        max_pixels: larger images are refused before their pixels are read.
        name: what errors call the image; the path if not given.

    Example:
        >>> decode("photo.jpg").mode
        'RGB'
    """
    if max_pixels < 1:
        raise ValueError(f"max_pixels must be 1 or more, got {max_pixels}")
    if name is None:
        name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        with _opened(source) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise ValueError(f"{width} × {height} pixels are more than max_pixels={max_pixels}")
            image.load()
            return _rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError as error:
        raise UnreadableImage(f"{name}: no such file") from error
    except Image.UnidentifiedImageError as error:
        raise UnreadableImage(f"{name}: not an image in a known format") from error
    except Exception as error:  # damaged files raise almost anything from inside a codec
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"{name}: {reason}") from error


def _opened(source: bytes | str | Path | Image.Image) -> Image.Image:
    if isinstance(source, Image.Image):
        return source
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range, 8 or 16 bits are accepted")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255
        values = np.asarray(image).astype(np.int64)
        if values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
            raise ValueError("32-bit pixels have no fixed range, 8 or 16 bits are accepted")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
