"""Pictures of the page: those that come with installed packages, and those that are dropped on it."""

import base64
import io
from pathlib import Path

from PIL import Image

from ..data import UnreadableImage, decode
from ..data.decode import MAX_PIXELS

KEPT = 1600  # longest side that the page keeps of a picture, in pixels; the models see far less
LARGER = {"Retina": ("skimage", "data/retina.jpg"), "Deep field": ("skimage", "data/hubble_deep_field.jpg")}


def read_picture(path: str | Path) -> Image.Image:
    """A file as an RGB image of at most ``KEPT`` pixels on its longer side; its size is read before its pixels.

    Example:
        >>> read_picture(infsa.app.examples()["Portrait"]).mode
        'RGB'
    """
    path = Path(path)
    try:
        image = decode(path, name=path.name)
    except UnreadableImage as error:
        if too_large(path):
            raise UnreadableImage(
                f"{path.name} has more than the {MAX_PIXELS / 1e6:.0f} megapixels that this tab accepts; "
                "the Gigapixel tab and `infsa stream` read larger images tile by tile"
            ) from error
        raise
    image.thumbnail((KEPT, KEPT), Image.Resampling.BICUBIC)
    return image


def too_large(path: Path) -> bool:
    """Whether the header of an image promises more pixels than are decoded."""
    try:
        with Image.open(path) as image:
            return image.width * image.height > MAX_PIXELS
    except Image.DecompressionBombError:  # Pillow's own limit is higher than ours
        return True
    except (OSError, ValueError, SyntaxError):
        return False


def data_uri(image: Image.Image) -> str:
    """A picture as text that a page can hold."""
    stream = io.BytesIO()
    photo = image.width * image.height > 2**16
    image.save(stream, "JPEG" if photo else "PNG", **({"quality": 88} if photo else {}))
    kind = "jpeg" if photo else "png"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
