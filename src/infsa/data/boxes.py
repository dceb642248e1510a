"""Boxes that follow an image: arrays (n, 4) of x0, y0, x1, y1 in pixels, x1 and y1 exclusive.

Sizes are (width, height), as in Pillow; grids are (h, w), as in the models.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sample import BoxArray


def as_boxes(values: Any) -> BoxArray:
    """Boxes as float32 (n, 4), checked: four finite corners, x0 ≤ x1 and y0 ≤ y1. A single box gives (1, 4)."""
    boxes = np.asarray(values, np.float32)
    boxes = boxes.reshape(-1, 4) if boxes.ndim == 1 and boxes.size in (0, 4) else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must have the shape (n, 4), got {boxes.shape}")
    wrong = ~(np.isfinite(boxes).all(1) & (boxes[:, :2] <= boxes[:, 2:]).all(1))
    if wrong.any():
        raise ValueError(f"a box must be finite with x0 ≤ x1 and y0 ≤ y1, got {boxes[wrong][0].tolist()}")
    return boxes


def resize(boxes: BoxArray, old: tuple[float, float], new: tuple[float, float]) -> BoxArray:
    """Boxes of an image resized from ``old`` to ``new``, both (width, height)."""
    scale = np.array([new[0] / old[0], new[1] / old[1]] * 2)
    return (boxes * scale).astype(np.float32)


def crop(boxes: BoxArray, left: float, top: float, width: float, height: float) -> BoxArray:
    """Boxes of a crop, clipped to it; a box outside becomes empty."""
    return clip(boxes - np.array([left, top, left, top], np.float32), (width, height))


def centre_corner(old: tuple[int, int], new: tuple[int, int]) -> tuple[int, int]:
    """Left and top of a centre crop, rounded as torchvision rounds them."""
    return round((old[0] - new[0]) / 2), round((old[1] - new[1]) / 2)


def flip(boxes: BoxArray, width: float) -> BoxArray:
    """Boxes of the mirror image, left and right exchanged."""
    x0, y0, x1, y1 = boxes.T
    return np.stack([width - x1, y0, width - x0, y1], 1).astype(np.float32)


def clip(boxes: BoxArray, size: tuple[float, float]) -> BoxArray:
    """Boxes cut at the border of an image of size (width, height)."""
    return np.clip(boxes, 0, np.array([*size, *size], np.float32))


def area(boxes: BoxArray) -> NDArray[np.float32]:
    """The area of each box, (n,)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def drop_empty(boxes: BoxArray) -> BoxArray:
    """The boxes that have an area."""
    return boxes[area(boxes) > 0]


def visible_fraction(boxes: BoxArray, size: tuple[float, float]) -> NDArray[np.float32]:
    """The part of each box that lies inside an image of size (width, height), (n,); 0 for an empty box."""
    whole = area(boxes)
    return np.divide(area(clip(boxes, size)), whole, out=np.zeros_like(whole), where=whole > 0)


def patch_coverage(boxes: BoxArray, size: tuple[float, float], grid: tuple[int, int]) -> NDArray[np.float32]:
    """The fraction of each patch that the union of the boxes covers, (h, w), exactly.

    Args:
        boxes: (n, 4); overlaps count once.
        size: (width, height) of the image.
        grid: (h, w) patches.
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
    """Which patches have their centre inside a box, (h, w)."""
    (width, height), (h, w) = size, grid
    x, y = (np.arange(w) + 0.5) * (width / w), (np.arange(h) + 0.5) * (height / h)
    inside_x = (boxes[:, 0:1] <= x) & (x < boxes[:, 2:3])  # (n, w)
    inside_y = (boxes[:, 1:2] <= y) & (y < boxes[:, 3:4])  # (n, h)
    return np.einsum("nh,nw->hw", inside_y, inside_x)  # boolean: a union
