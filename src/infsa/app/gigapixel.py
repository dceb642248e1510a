"""An image too large for a page: streamed once for its map, then seen through windows read from its file."""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..evaluate import likeliest
from ..report.panels import overlay
from ..streaming import Progress, Source, open_source, stream
from .model_cache import borrow

OVERVIEW = 2048  # longest side of the small copy that is kept, in pixels
WINDOW = 900  # longest side of what is shown of a window, in pixels
MAX_MEGAPIXELS = 400

Box = tuple[int, int, int, int]  # top, left, bottom, right, in pixels


@dataclass(frozen=True)
class Scene:
    """A streamed image: what stays of it in memory, and where the rest is."""

    path: Path
    size: tuple[int, int]  # width, height
    patch: int
    map: NDArray[np.float32]  # (h, w) patches
    overview: Image.Image
    predictions: list[tuple[str, float]]
    passes: int
    seconds: float
    model: str = "Linear-InfSA"


@dataclass(frozen=True)
class View:
    """A window of a scene."""

    box: Box
    picture: Image.Image
    overlaid: Image.Image


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Failures that name the file by its name alone: where an uploaded file lies is no business of the page."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        name = Path(path).name
        text = str(error).replace(str(path), name).partition("; on_error")[0]  # the page has no such option
        text = re.sub(r"unable to load from file b'.*?'\s+\w+: ", "", text)  # libvips says it twice
        raise ValueError(text if name in text else f"{name}: {text}") from error


def open_checked(path: str | Path, max_megapixels: float = MAX_MEGAPIXELS) -> Source:
    """An image file, refused by its header if it is larger than allowed or has no colours to show."""
    with named(path):
        source = open_source(path)
    megapixels = source.width * source.height / 1e6
    if megapixels > max_megapixels:
        raise ValueError(
            f"{Path(path).name} has {source.width} × {source.height} = {megapixels:,.0f} megapixels, more than the "
            f"{max_megapixels:,.0f} that this page takes; `infsa app --max-megapixels` sets another limit"
        )
    if source.model_input or source.channels > 4:
        raise ValueError(f"{Path(path).name} has no colours to show: {source.channels} channels of {source.itemsize} B")
    return source


def stream_scene(
    path: str | Path,
    max_megapixels: float = MAX_MEGAPIXELS,
    progress: Callable[[float, str], Any] | None = None,
    mechanism: str = "Linear-InfSA",
) -> Scene:
    """Stream an image through a Linear-InfSA model, unshrunk; ``progress`` gets the share done and a word."""
    source, began = open_checked(path, max_megapixels), time.perf_counter()

    def report(at: Progress) -> None:
        if progress is not None:
            progress(0.9 * (at.passed + at.done / at.tiles) / at.passes, f"pass {at.passed + 1} of {at.passes}")

    with named(path), borrow(mechanism, padded=True) as model:
        result = stream(model, source, map=True, progress=report)
        predictions = likeliest(model, result.logits, 3)[0]
        patch = int(model.patch_embed.patch_size[0])
    if progress is not None:
        progress(0.95, "drawing the overview")
    with named(path):
        small = shrink(source, (0, 0, source.height, source.width), OVERVIEW)
    seconds = time.perf_counter() - began
    size = (source.width, source.height)
    return Scene(Path(path), size, patch, result.map, small, predictions, result.passes, seconds, mechanism)


def view(scene: Scene, x: float = 0.5, y: float = 0.5, zoom: float = 1.0) -> View:
    """The window of a scene around (x, y), from 0 to 1, that is ``zoom`` times smaller than the image."""
    if not zoom >= 1:
        raise ValueError(f"zoom must be 1 or more, got {zoom!r}")
    width, height = scene.size
    top, bottom = _span(y, height, zoom, scene.patch)
    left, right = _span(x, width, zoom, scene.patch)
    box = (top, left, bottom, right)
    factor = scene.overview.width / width
    if max(right - left, bottom - top) * factor >= WINDOW or factor == 1:
        x0, y0, x1, y1 = (round(edge * factor) for edge in (left, top, right, bottom))
        picture = scene.overview.crop((x0, y0, x1, y1))
    else:
        with named(scene.path):
            picture = shrink(open_source(scene.path), box, 2 * WINDOW)
    scale = WINDOW / max(picture.size)
    shown = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    part = scene.map[top // scene.patch : -(-bottom // scene.patch), left // scene.patch : -(-right // scene.patch)]
    return View(box, shown, overlay(shown, part))


def _span(centre: float, length: int, zoom: float, patch: int) -> tuple[int, int]:
    """A stretch of whole patches around a centre, inside the image."""
    share = max(patch, min(length, math.ceil(length / zoom / patch) * patch))
    start = min(max(0.0, centre * length - share / 2), max(0, length - share))
    start = int(start) // patch * patch
    return start, min(length, start + share)


def shrink(source: Source, box: Box, side: int) -> Image.Image:
    """A window at no more than ``side`` pixels, read in bands from the top, each averaged as soon as it is there."""
    top, left, bottom, right = box
    factor = max(1, math.ceil(max(bottom - top, right - left) / side))
    source.restart()
    bands = []
    for row in range(top, bottom, 64 * factor):
        band = rgb(np.asarray(source.read(row, left, min(bottom, row + 64 * factor), right)))
        bands.append(np.asarray(Image.fromarray(band).reduce(factor)))
    return Image.fromarray(np.concatenate(bands))


def rgb(window: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels (h, w, c), grey or colour, opaque or laid on white, as (h, w, 3) of 8 bits.

    They have 8 or 16 bits, or are floating in [0, 1].
    """
    if window.dtype.kind == "f":
        window = (window * 255).round().astype(np.uint8)
    values = window if window.dtype == np.uint8 else (window >> 8).astype(np.uint8)
    if values.shape[2] in (2, 4):
        opacity = values[..., -1:].astype(np.float32) / 255
        values = (values[..., :-1] * opacity + 255 * (1 - opacity)).round().astype(np.uint8)
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else np.ascontiguousarray(values)
