"""RandAugment with boxes that follow, every choice drawn from a given generator.

The fifteen changes and their ranges are those of timm's ``rand-m9-mstd0.5-inc1``, the setting of DeiT. The moving
ones (rotation, shears, shifts) are a third of that recipe, so they are kept and the boxes follow: a box becomes the
smallest upright one around its moved corners. It still holds the whole object, is exact for a shift, and grows a little
under a rotation or shear. Both are about the centre of the image, and posterizing keeps at least one bit.
"""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageChops, ImageEnhance, ImageOps

from . import boxes as geometry
from .sample import BoxArray

PROBABILITY = 0.5  # that a chosen change is made
DEVIATION = 0.5  # of the magnitude
LAYERS = 2
Colour = tuple[int, int, int]
GREY = (128, 128, 128)
ColourChange = Callable[[Image.Image, float, float], Image.Image]  # of image, level 0 to 1 and sign
Matrix = tuple[float, float, float, float, float, float]  # a, b, c, d, e, f: x' = ax + by + c, y' = dx + ey + f


def rand_augment(
    rng: np.random.Generator,
    image: Image.Image,
    boxes: BoxArray,
    layers: int = LAYERS,
    magnitude: float = 9.0,
    fill: Colour = GREY,
) -> tuple[Image.Image, BoxArray]:
    """Change an image ``layers`` times, each time in a random way of strength about ``magnitude``.

    Args:
        rng: the source of every choice.
        image: RGB.
        boxes: (n, 4); clipped to the image, so one that leaves it becomes empty.
        layers: how many changes are drawn; each is made with probability a half.
        magnitude: 0 to 10; normal noise of deviation a half is added to it.
        fill: the colour where a move leaves nothing of the image.
    """
    if layers < 0 or not 0 <= magnitude <= 10:
        raise ValueError(f"layers must be 0 or more and magnitude from 0 to 10, got {layers} and {magnitude}")
    for which in rng.choice(len(COLOURS) + len(MOVES), layers).tolist():
        made, noise, sign = rng.random() < PROBABILITY, rng.normal(0, DEVIATION), float(rng.choice((-1, 1)))
        level = min(max(magnitude + noise, 0.0), 10.0) / 10  # 0 to 1
        if not made:
            continue
        if which < len(COLOURS):
            image = list(COLOURS.values())[which](image, level, sign)
        else:
            matrix = list(MOVES.values())[which - len(COLOURS)](level * sign, image.size)
            image, boxes = moved(image, boxes, matrix, fill)
    return image, boxes


def moved(image: Image.Image, boxes: BoxArray, matrix: Matrix, fill: Colour = GREY) -> tuple[Image.Image, BoxArray]:
    """Image and boxes under an affine map of the plane whose origin is the centre of the image."""
    a, b, c, d, e, f = matrix
    x, y = image.width / 2, image.height / 2
    linear, shift = np.array([[a, b], [d, e]]), np.array([c + x, f + y])
    back = np.linalg.inv(linear)  # Pillow wants the map from the result to the image
    origin = np.array([x, y]) - back @ shift
    data = (*back[0], origin[0], *back[1], origin[1])
    image = image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=fill)
    corners = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]] - (x, y)  # (n, 4, 2)
    corners = corners @ linear.T + shift
    hull = np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)
    return image, geometry.clip(hull, image.size)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> ColourChange:
    return lambda image, level, sign: kind(image).enhance(max(0.1, 1 + 0.9 * level * sign))


def _solarize_add(image: Image.Image, level: float, sign: float) -> Image.Image:
    """Add up to 110 to the dark half of every channel."""
    return image.point([min(255, value + int(110 * level)) if value < 128 else value for value in range(256)] * 3)


def _rotation(amount: float, size: tuple[int, int]) -> Matrix:
    angle = math.radians(30 * amount)
    return math.cos(angle), -math.sin(angle), 0, math.sin(angle), math.cos(angle), 0


COLOURS: dict[str, ColourChange] = {
    "autocontrast": lambda image, level, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, level, sign: ImageOps.equalize(image),
    "invert": lambda image, level, sign: ImageChops.invert(image),
    "posterize": lambda image, level, sign: ImageOps.posterize(image, max(1, 4 - int(4 * level))),
    "solarize": lambda image, level, sign: ImageOps.solarize(image, 256 - int(256 * level)),
    "solarize add": _solarize_add,
    "colour": _enhanced(ImageEnhance.Color),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
}
MOVES: dict[str, Callable[[float, tuple[int, int]], Matrix]] = {  # of amount -1 to 1 and size
    "rotate": _rotation,
    "shear x": lambda amount, size: (1, 0.3 * amount, 0, 0, 1, 0),
    "shear y": lambda amount, size: (1, 0, 0, 0.3 * amount, 1, 0),
    "shift x": lambda amount, size: (1, 0, 0.45 * amount * size[0], 0, 1, 0),
    "shift y": lambda amount, size: (1, 0, 0, 0, 1, 0.45 * amount * size[1]),
}
