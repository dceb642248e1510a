"""Colours that files keep in other ways than as grey or RGB."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def rgb_of_cmyk(inks: NDArray[Any]) -> NDArray[Any]:
    """Ink amounts (h, w, 4) of 8 or 16 bits to RGB of the same type, (1 − ink)(1 − black), as Pillow converts them."""
    full = np.iinfo(inks.dtype).max
    light = full - inks[..., 3:].astype(np.uint64)
    return (light - (inks[..., :3] * light + full // 2) // full).astype(inks.dtype)


def rgb_of_palette(indices: NDArray[Any], palette: NDArray[Any]) -> NDArray[np.uint8]:
    """Places (h, w, 1) in a palette (colours, 3) of 16 bits to RGB of 8 bits, as Pillow converts them.

    Some writers fill a palette with values of 8 bits; one without a larger value is taken as that.
    """
    colours = palette if palette.max(initial=0) < 256 else palette >> 8
    return colours.astype(np.uint8)[indices[..., 0]]
