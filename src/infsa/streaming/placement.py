"""Where the patches of a map lie in the full-resolution image, in pixels and in micrometres."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .source import Source

MICROMETRES = {"nm": 1e-3, "µm": 1.0, "um": 1.0, "micron": 1.0, "micrometer": 1.0, "mm": 1e3, "cm": 1e4, "m": 1e6}
PER_UNIT = {2: 25_400.0, 3: 10_000.0}  # micrometres in an inch and a centimetre, by TIFF's ResolutionUnit


@dataclass(frozen=True)
class Placement:
    """The grid of a map over its image; all pairs are (y, x)."""

    size: tuple[int, int]  # of the level that was streamed, in pixels
    full: tuple[int, int]  # of the image at full resolution
    patch: tuple[int, int]  # in pixels of the level
    pixel_size: tuple[float, float] | None = None  # of the image at full resolution, in µm

    @classmethod
    def of(cls, source: Source, patch: tuple[int, int]) -> "Placement":
        """The placement of a source's map."""
        size = (source.height, source.width)
        return cls(size, source.full_size or size, patch, source.pixel_size)

    def patch_size(self) -> tuple[float, float, str]:
        """Height and width of a patch and their unit: µm if the pixel size is known, else full-resolution pixels."""
        y, x = (p * f / s for p, f, s in zip(self.patch, self.full, self.size, strict=True))
        if self.pixel_size is None:
            return y, x, "pixel"
        return y * self.pixel_size[0], x * self.pixel_size[1], "µm"

    def edges(self, axis: int) -> NDArray[np.int64]:
        """The grid lines along an axis (0: y, 1: x) in full-resolution pixels; the last one ends with the image."""
        size, full, patch = self.size[axis], self.full[axis], self.patch[axis]
        lines = np.minimum(np.arange(0, size + patch, patch), size)
        return np.rint(lines * (full / size)).astype(np.int64)


def micrometres(value: Any, unit: Any = "µm") -> float | None:
    """A length of a file's header in micrometres, or None if it is no length."""
    factor = MICROMETRES.get(str(unit).removesuffix("s"), MICROMETRES.get(str(unit)))
    try:
        length = float(value) * float("nan" if factor is None else factor)
    except (TypeError, ValueError):
        return None
    return length if 0 < length < float("inf") else None


def pair(y: float | None, x: float | None) -> tuple[float, float] | None:
    """Both lengths, or None if one is not known."""
    return None if y is None or x is None else (y, x)


def tiff_pixel_size(file: Any, number: int, page: Any) -> tuple[float, float] | None:
    """The pixel size (y, x) in µm that a TIFF states: in its OME-XML, else in its resolution tags."""
    if file.is_ome:
        return _ome_pixel_size(file.ome_metadata, number)
    unit = page.tags.valueof("ResolutionUnit", default=1)
    lengths = []
    for name in ("YResolution", "XResolution"):
        above, below = page.tags.valueof(name, default=(0, 1))
        lengths.append(micrometres(PER_UNIT.get(int(unit), 0) * below / above if above else None))
    return pair(*lengths)


def _ome_pixel_size(text: str, number: int) -> tuple[float, float] | None:
    from xml.etree import ElementTree

    try:
        found = [element for element in ElementTree.fromstring(text).iter() if element.tag.endswith("}Pixels")]
    except ElementTree.ParseError:
        return None
    if number >= len(found):
        return None
    told = found[number].attrib
    y, x = (
        micrometres(told.get(f"PhysicalSize{axis}"), told.get(f"PhysicalSize{axis}Unit", "µm")) for axis in ("Y", "X")
    )
    return pair(y, x)
