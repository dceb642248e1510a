"""Boxes that follow an image: arrays (n, 4) of x0, y0, x1, y1 in pixels, x1 and y1 exclusive.

Sizes are (width, height), as in Pillow; grids are (h, w), as in the models.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sample import BoxArray


def as_boxes(values: Any) -> BoxArray:
    """Boxes as float32 (n, 4), checked: four finite corners, x0 ≤ x1 and y0 ≤ y1. A single box gives (1, 4).

    Example:
        >>> as_boxes([0, 10, 64, 59]).shape
        (1, 4)
    """
    boxes = np.asarray(values, np.float32)
    boxes = boxes.reshape(-1, 4) if boxes.ndim == 1 and boxes.size in (0, 4) else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must have the shape (n, 4), got {boxes.shape}")
    wrong = ~(np.isfinite(boxes).all(1) & (boxes[:, :2] <= boxes[:, 2:]).all(1))
    if wrong.any():
        raise ValueError(f"a box must be finite with x0 ≤ x1 and y0 ≤ y1, got {boxes[wrong][0].tolist()}")
    return boxes


def resize(boxes: BoxArray, old: tuple[float, float], new: tuple[float, float]) -> BoxArray:
    """Boxes of an image resized from ``old`` to ``new``, both (width, height).

    Example:
        >>> resize(as_boxes([0, 0, 32, 64]), (64, 64), (128, 64)).tolist()
        [[0.0, 0.0, 64.0, 64.0]]
    """
    scale = np.array([new[0] / old[0], new[1] / old[1]] * 2)
    return (boxes * scale).astype(np.float32)


def crop(boxes: BoxArray, left: float, top: float, width: float, height: float) -> BoxArray:
    """Boxes of a crop, clipped to it; a box outside becomes empty.

    Example:
        >>> crop(as_boxes([10, 10, 30, 30]), left=20, top=0, width=32, height=32).tolist()
        [[0.0, 10.0, 10.0, 30.0]]
    """
    return clip(boxes - np.array([left, top, left, top], np.float32), (width, height))


def centre_crop(boxes: BoxArray, old: tuple[int, int], new: tuple[int, int]) -> BoxArray:
    """Boxes of the crop of size ``new`` in the middle of an image of size ``old``, both (width, height).

    Example:
        >>> centre_crop(as_boxes([0, 0, 64, 64]), (64, 64), (32, 32)).tolist()
        [[0.0, 0.0, 32.0, 32.0]]
    """
    return crop(boxes, *centre_corner(old, new), *new)


def centre_corner(old: tuple[int, int], new: tuple[int, int]) -> tuple[int, int]:
    """Left and top of a centre crop, rounded as torchvision rounds them.

    Example:
        >>> centre_corner((65, 64), (32, 32))
        (16, 16)
    """
    return round((old[0] - new[0]) / 2), round((old[1] - new[1]) / 2)


def flip(boxes: BoxArray, width: float) -> BoxArray:
    """Boxes of the mirror image, left and right exchanged.

    Example:
        >>> flip(as_boxes([0, 0, 10, 20]), width=64).tolist()
        [[54.0, 0.0, 64.0, 20.0]]
    """
    x0, y0, x1, y1 = boxes.T
    return np.stack([width - x1, y0, width - x0, y1], 1).astype(np.float32)


def clip(boxes: BoxArray, size: tuple[float, float]) -> BoxArray:
    """Boxes cut at the border of an image of size (width, height).

    Example:
        >>> clip(as_boxes([-5, 0, 70, 20]), (64, 64)).tolist()
        [[0.0, 0.0, 64.0, 20.0]]
    """
    return np.clip(boxes, 0, np.array([*size, *size], np.float32))


def area(boxes: BoxArray) -> NDArray[np.float32]:
    """The area of each box, (n,).

    Example:
        >>> area(as_boxes([0, 0, 4, 5])).tolist()
        [20.0]
    """
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def drop_empty(boxes: BoxArray) -> BoxArray:
    """The boxes that have an area.

    Example:
        >>> drop_empty(as_boxes([[0, 0, 4, 5], [3, 3, 3, 9]])).tolist()
        [[0.0, 0.0, 4.0, 5.0]]
    """
    return boxes[area(boxes) > 0]


def visible_fraction(boxes: BoxArray, size: tuple[float, float]) -> NDArray[np.float32]:
    """The part of each box that lies inside an image of size (width, height), (n,); 0 for an empty box.

    Example:
        >>> visible_fraction(as_boxes([-10, 0, 10, 10]), (64, 64)).tolist()
        [0.5]
    """
    whole = area(boxes)
    return np.divide(area(clip(boxes, size)), whole, out=np.zeros_like(whole), where=whole > 0)


def patch_coverage(boxes: BoxArray, size: tuple[float, float], grid: tuple[int, int]) -> NDArray[np.float32]:
    """The fraction of each patch that the union of the boxes covers, (h, w), exactly.

    Args:
        boxes: (n, 4); overlaps count once.
        size: (width, height) of the image.
        grid: (h, w) patches.

    Example:
        >>> patch_coverage(as_boxes([0, 0, 12, 8]), size=(16, 16), grid=(2, 2)).tolist()
        [[1.0, 0.5], [0.0, 0.0]]
    """
    boxes = clip(boxes, size).astype(np.float64)
    (width, height), (h, w) = size, grid
    xs, ys = np.unique([0, width, *boxes[:, [0, 2]].flat]), np.unique([0, height, *boxes[:, [1, 3]].flat])
    inside_x = (boxes[:, 0:1] <= xs[:-1]) & (xs[1:] <= boxes[:, 2:3])  # (n, cells): the edges cut the plane in cells
    inside_y = (boxes[:, 1:2] <= ys[:-1]) & (ys[1:] <= boxes[:, 3:4])
    covered = np.einsum("ny,nx->yx", inside_y, inside_x)  # (cells, cells), boolean: a union
    areas = _overlap(ys, h, height) @ covered @ _overlap(xs, w, width).T  # (h, w)
    return (areas * (h * w) / (width * height)).astype(np.float32)


def _overlap(edges: NDArray[np.float64], patches: int, length: float) -> NDArray[np.float64]:
    """Length shared by each patch and each cell of an axis, (patches, cells)."""
    bounds = np.arange(patches + 1) * (length / patches)
    upper, lower = np.minimum(bounds[1:, None], edges[1:]), np.maximum(bounds[:-1, None], edges[:-1])
    return np.maximum(upper - lower, 0)


def patch_centres(boxes: BoxArray, size: tuple[float, float], grid: tuple[int, int]) -> NDArray[np.bool_]:
    """Which patches have their centre inside a box, (h, w).

    Example:
        >>> patch_centres(as_boxes([0, 0, 12, 8]), size=(16, 16), grid=(2, 2)).tolist()
        [[True, False], [False, False]]
    """
    (width, height), (h, w) = size, grid
    x, y = (np.arange(w) + 0.5) * (width / w), (np.arange(h) + 0.5) * (height / h)
    inside_x = (boxes[:, 0:1] <= x) & (x < boxes[:, 2:3])  # (n, w)
    inside_y = (boxes[:, 1:2] <= y) & (y < boxes[:, 3:4])  # (n, h)
    return np.einsum("nh,nw->hw", inside_y, inside_x)  # boolean: a union
