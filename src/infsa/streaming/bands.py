"""Some channels of an image instead of all."""

import operator
from typing import Any

from torch import Tensor

from .source import Pixels, Source


class ChosenBands(Source):
    """Some channels of another source, in an order of choice; none of them is opacity."""

    opacity = False

    def __init__(self, source: Source, bands: Any) -> None:
        self.source, self.chosen = source, _checked_bands(bands, source)
        self.name, self.height, self.width, self.channels = source.name, source.height, source.width, len(self.chosen)
        self.itemsize, self.model_input, self.overhead = source.itemsize, source.model_input, source.overhead
        self.bands, self.sequential = source.bands, source.sequential
        self.unit, self.per_reader = source.unit, source.per_reader
        self.full_size, self.pixel_size = source.full_size, source.pixel_size

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels | Tensor:
        """A window of the chosen channels."""
        window = self.source.read(top, left, bottom, right)
        return window[self.chosen] if self.model_input else window[..., self.chosen]

    def restart(self) -> None:
        """Called before each pass over the image."""
        self.source.restart()

    def describe(self) -> str:
        """What tells this image from another, and the channels."""
        return f"{self.source.describe()} bands {self.chosen}"


def _checked_bands(bands: Any, source: Source) -> list[int]:
    try:
        chosen = [operator.index(band) for band in bands]
    except TypeError as error:
        raise TypeError(f"bands are whole numbers such as (0, 1, 2), got {bands!r}") from error
    if not chosen or not all(0 <= band < source.channels for band in chosen):
        raise ValueError(f"{source.name} has bands 0 to {source.channels - 1}, got bands={bands!r}")
    return chosen
