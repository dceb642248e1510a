"""Maps as pictures: heatmaps, overlays at an image's own resolution, and panels with models side by side."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from ..evaluate.maps import Explanation

COLOURS = "inferno"
OPACITY = 0.6
SHOWN = 1200  # longest side of a picture inside a panel, in pixels


def heatmap(scores: NDArray[np.float32], size: tuple[int, int], smooth: bool = False) -> Image.Image:
    """A map (h, w) as a picture of ``size`` (width, height): its lowest score dark, its highest bright.

    Patches have edges, unless they are to be blended into each other.
    """
    low, high = float(scores.min()), float(scores.max())
    scaled = (scores - low) / (high - low) if high > low else np.zeros_like(scores)
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return coloured(np.asarray(Image.fromarray(scaled.astype(np.float32)).resize(size, how)))


def coloured(shares: NDArray[np.floating[Any]]) -> Image.Image:
    """Numbers (h, w) from 0, dark, to 1, bright, as a picture; those outside take the colour of the nearer end."""
    table = (matplotlib.colormaps[COLOURS](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
    return Image.fromarray(table[np.clip(shares * 255, 0, 255).astype(np.uint8)])


def overlay(image: Image.Image, scores: NDArray[np.float32], opacity: float = OPACITY) -> Image.Image:
    """A map over the image in grey, at the image's own resolution."""
    return Image.blend(image.convert("L").convert("RGB"), heatmap(scores, image.size, smooth=True), opacity)


def draw_panel(image: Image.Image, explanations: Mapping[str, Explanation], path: str | Path, title: str = "") -> None:
    """Write one picture: the image, and for every model its heatmap above its overlay and what it predicts.

    Maps lie over the part of the image that the model saw.
    """
    image = scaled(image, min(SHOWN, max(image.size)))
    columns = 1 + len(explanations)
    tall = image.height / image.width
    figure = Figure(figsize=(3 * columns, 6 * min(max(tall, 0.4), 2.0) + 1.1), layout="constrained")
    grid = figure.subplots(2, columns, squeeze=False)
    picture(grid[0, 0], image, "image")
    grid[1, 0].axis("off")
    for (name, found), (above, below) in zip(explanations.items(), grid.T[1:], strict=True):
        label, probability = found.predictions[0]
        seen = scaled(found.picture, min(SHOWN, max(found.picture.size)))
        picture(above, heatmap(found.map, seen.size), f"{name}\n{found.map.shape[0]} × {found.map.shape[1]} patches")
        picture(below, overlay(seen, found.map), f"{textwrap.shorten(label, 34)}\n{probability:.0%}")
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def scaled(image: Image.Image, longest: int, how: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Image:
    """A copy whose longer side has so many pixels."""
    scale = longest / max(image.size)
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), how)


def picture(axes: Axes, image: Any, title: str, fontsize: int = 9) -> None:
    """Show an image with a title and without axes."""
    axes.imshow(np.asarray(image))
    axes.set_title(title, fontsize=fontsize)
    axes.axis("off")


def short(label: str) -> str:
    """The first of the names of a class."""
    return label.split(",")[0]
