"""Outlines and textures as functions of the plane.

Only sums, products, quotients, square roots and comparisons are used. IEEE arithmetic rounds each of them in one
way, so every machine draws the same bits.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float32]
Mask = NDArray[np.bool_]

REACH = 1.4  # every outline lies within this many radii of its centre
STAR = ((0.0, 1.0), (0.9510565, 0.3090170), (0.5877853, -0.8090170), (-0.5877853, -0.8090170), (-0.9510565, 0.3090170))


def _disc(u: Plane, v: Plane) -> Mask:
    return u * u + v * v <= 1


def _square(u: Plane, v: Plane) -> Mask:
    return np.maximum(abs(u), abs(v)) <= 0.7071068


def _triangle(u: Plane, v: Plane) -> Mask:
    v = v - 0.168
    return np.maximum(1.7320508 * abs(u) - v, 2 * v) <= 1


def _cross(u: Plane, v: Plane) -> Mask:
    u, v = abs(u), abs(v)
    return (np.minimum(u, v) <= 0.3) & (np.maximum(u, v) <= 1)


def _ring(u: Plane, v: Plane) -> Mask:
    square = u * u + v * v
    return (square <= 1) & (square >= 0.25)


def _half(u: Plane, v: Plane) -> Mask:
    v = v + 0.451
    return (u * u + v * v <= 1) & (v >= 0)


def _crescent(u: Plane, v: Plane) -> Mask:
    u = u - 0.077
    shifted = u - 0.5
    return (u * u + v * v <= 1) & (shifted * shifted + v * v >= 0.5)


def _star(u: Plane, v: Plane) -> Mask:
    """Five tips: the points on the inner side of at least four of the pentagram's five lines."""
    v = v + 0.032
    inside = [(x * u + y * v <= 0.3090170).view(np.uint8) for x, y in STAR]
    return inside[0] + inside[1] + inside[2] + inside[3] + inside[4] >= 4


# Each outline with the factors on u and v that make its mean box, when it leans by up to 22°, a square of side 2.
# The shifts above centre that box. So neither the place nor the size of a box tells the class.
OUTLINES: dict[str, tuple[Callable[[Plane, Plane], Mask], float, float]] = {
    "triangle": (_triangle, 0.843, 0.812),
    "cross": (_cross, 1.033, 1.033),
    "disc": (_disc, 1.0, 1.0),
    "star": (_star, 0.928, 0.937),
    "square": (_square, 0.828, 0.828),
    "ring": (_ring, 1.0, 1.0),
    "half": (_half, 1.017, 0.543),
    "crescent": (_crescent, 0.922, 1.005),
}


def _fraction(s: Plane) -> Plane:
    return s - np.floor(s)


def _stripes(s: Plane, t: Plane) -> Mask:
    return _fraction(s) < 0.5


def _checks(s: Plane, t: Plane) -> Mask:
    return (_fraction(s) < 0.5) ^ (_fraction(t) < 0.5)


def _dots(s: Plane, t: Plane) -> Mask:
    s, t = _fraction(s) - 0.5, _fraction(t) - 0.5
    return s * s + t * t < 0.159


def _rings(s: Plane, t: Plane) -> Mask:
    return _fraction(np.sqrt(s * s + t * t)) < 0.5


def _zigzag(s: Plane, t: Plane) -> Mask:
    return _fraction(s + 2 * abs(_fraction(0.5 * t) - 0.5)) < 0.5


def _bricks(s: Plane, t: Plane) -> Mask:
    row = np.floor(t)
    return (t - row < 0.3) | (_fraction(0.5 * (s + row)) < 0.3)


TEXTURES: dict[str, Callable[[Plane, Plane], Mask]] = {
    "striped": _stripes,
    "checked": _checks,
    "dotted": _dots,
    "ringed": _rings,
    "zigzag": _zigzag,
    "brick": _bricks,
}


def direction(rng: np.random.Generator) -> tuple[float, float]:
    """A random unit vector, uniform on the circle."""
    while True:
        x, y = (2 * rng.random(2) - 1).tolist()
        if 0.01 < x * x + y * y <= 1:
            length = math.sqrt(x * x + y * y)
            return x / length, y / length


def rotated(x: Plane, y: Plane, unit: tuple[float, float], scale: float) -> tuple[Plane, Plane]:
    """Coordinates along ``unit`` and across it, in multiples of ``scale``; x (1, w) and y (h, 1) give two (h, w)."""
    cos, sin = unit[0] / scale, unit[1] / scale
    return x * cos + y * sin, y * cos - x * sin


def outline_mask(name: str, x: Plane, y: Plane, unit: tuple[float, float], radius: float) -> Mask:
    """Which pixels lie inside an outline around the origin; x (1, w), y (h, 1), mask (h, w)."""
    inside, across, down = OUTLINES[name]
    u, v = rotated(x, y, unit, radius)
    return inside(across * u, down * v)


def texture_mask(name: str, x: Plane, y: Plane, unit: tuple[float, float], period: float) -> Mask:
    """Which pixels of a two-coloured texture take the first colour; x (1, w), y (h, 1), mask (h, w)."""
    return TEXTURES[name](*rotated(x, y, unit, period))
