"""Many images at once, each with every model's map."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from infsa.evaluate.maps import Explanation
from infsa.report.panels import overlay, picture


def draw_gallery(
    images: Sequence[Image.Image],
    explanations: Sequence[Mapping[str, Explanation]],
    path: str | Path,
    captions: Sequence[str],
) -> None:
    """Write many images at once: a row for each, the image and every model's overlay with its prediction."""
    columns = 1 + len(explanations[0])
    figure = Figure(figsize=(2.0 * columns, 2.3 * len(images)), layout="constrained")
    grid = figure.subplots(len(images), columns, squeeze=False)
    for image, found, caption, row in zip(images, explanations, captions, grid, strict=True):
        large = image.resize((160, round(160 * image.height / image.width)), Image.Resampling.BICUBIC)
        picture(row[0], large, textwrap.shorten(caption, 28))
        for (name, explanation), axes in zip(found.items(), row[1:], strict=True):
            label, probability = explanation.predictions[0]
            picture(axes, overlay(large, explanation.map), f"{name}\n{textwrap.shorten(label, 22)} {probability:.0%}")
    figure.savefig(path, dpi=80)
