"""An image too large for a page: streamed once for its map, then shown in tiles read from its file."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..evaluate import likeliest
from ..streaming import Progress, Source, open_source, stream
from ..streaming.readers import needed
from .model_cache import borrow

OVERVIEW = 2048  # longest side of the small copy that is kept, in pixels
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
    model: str
    source: Source  # reads windows in any order
    factor: int  # how much smaller the overview is: a power of 2

    @cached_property
    def top(self) -> float:
        """The value that the page shows brightest: the 99.9th percentile of the map."""
        return float(np.percentile(self.map, 99.9)) or 1.0


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
            f"{max_megapixels:,.0f} that this page accepts; `infsa app --max-megapixels` sets another limit"
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
        factor = 2 ** max(0, math.ceil(math.log2(max(source.width, source.height) / OVERVIEW)))
        small = shrink(source, (0, 0, source.height, source.width), factor)
        shown = source if factor == 1 else any_order(source)
    seconds = time.perf_counter() - began
    size = (source.width, source.height)
    facts = (predictions, result.passes, seconds, mechanism, shown, factor)
    return Scene(Path(path), size, patch, result.map, small, *facts)


def any_order(source: Source) -> Source:
    """The source itself, or a copy in tiles of one that decodes from the top down; the copy goes with the object."""
    if not source.sequential:
        return source
    tifffile = needed("tifffile", "tifffile", "showing a large image")

    def tiles() -> Iterator[NDArray[np.uint8]]:
        source.restart()
        for row in range(0, source.height, 256):
            band = rgb(np.asarray(source.read(row, 0, min(source.height, row + 256), source.width)))
            band = np.pad(band, ((0, 256 - len(band)), (0, -source.width % 256), (0, 0)), mode="edge")
            yield from (np.ascontiguousarray(part) for part in np.split(band, band.shape[1] // 256, axis=1))

    with TemporaryDirectory(prefix="infsa-copy-", dir=os.environ.get("GRADIO_TEMP_DIR")) as folder:
        copy = Path(folder) / "copy.tif"
        shape = (source.height, source.width, 3)
        options = {"photometric": "rgb", "compression": "jpeg", "compressionargs": {"level": 92}}
        big = source.height * source.width > 2**31
        tifffile.imwrite(copy, tiles(), shape=shape, dtype=np.uint8, tile=(256, 256), bigtiff=big, **options)
        return open_source(copy)  # it stays open when the folder goes


def shrink(source: Source, box: Box, factor: int) -> Image.Image:
    """A window, ``factor`` times smaller, read in bands from the top, each averaged as soon as it is there."""
    top, left, bottom, right = box
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
