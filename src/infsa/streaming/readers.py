"""Image files: which reader opens which, and that of whole slides (openslide)."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from .placement import micrometres, pair
from .source import Pixels, Source

TIFFS = (".tif", ".tiff", ".btf", ".tf2", ".tf8", ".ptif")
SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".czi", ".dcm")


def needed(module: str, package: str, for_what: str, extra: str = "wsi") -> Any:
    """Import an optional module, or say in one line how to get it."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"{for_what} needs {package}: pip install '.[{extra}]' in a checkout (importing {module} failed: {reason})"
        ) from error


def open_file(path: Path, level: int = 0, series: int | None = None, page: int | None = None) -> Source:
    """The reader of a file, by its ending; what it does not offer (``level``, ``series``, ``page``) is refused."""
    from .npy_reader import open_npy
    from .strip_reader import STRIPS, StripSource
    from .tiff_reader import open_tiff
    from .zarr_reader import open_zarr

    _check_file(path)
    suffix = path.suffix.lower()
    if suffix in TIFFS and not path.is_dir():
        return open_tiff(path, level, series, page)
    if series is not None:
        raise ValueError(f"{path}: series chooses an image of a TIFF, got series={series}")
    if suffix in STRIPS and not level:
        return StripSource(path, page)
    if page is not None:
        raise ValueError(f"{path}: page chooses an image of a TIFF, GIF or WebP, got page={page}")
    if path.is_dir():
        return open_zarr(path, str(path), level)
    if suffix in SLIDES:
        return SlideSource(path, level)
    if level:
        raise ValueError(f"{path} has no pyramid, got level={level}")
    if suffix == ".npy":
        return open_npy(path)
    known = (".npy", *STRIPS, *TIFFS, ".zarr", *SLIDES)
    raise ValueError(f"{path}: unknown image format; known: {' '.join(known)}")


def _check_file(path: Path) -> None:
    """Refuse what could not be read from its beginning to its end, or not without waiting."""
    if path.is_dir():
        return
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file")
    path.open("rb").close()


class SlideSource(Source):
    """Whole-slide images by openslide; what a slide does not cover is transparent, that is, white."""

    channels, itemsize = 4, 1
    overhead = 160 << 20  # its cache of decoded tiles, and the codecs

    def __init__(self, path: Path, level: int = 0) -> None:
        self.name, self.path, self.level = str(path), path, level
        self.library = needed("openslide", "openslide-python and openslide-bin", f"reading {path.name}")
        self.slide = self._open()
        if level >= self.slide.level_count:
            raise ValueError(f"{path} has {self.slide.level_count} levels, got level={level}")
        self.width, self.height = self.slide.level_dimensions[level]
        self.scale = self.slide.level_downsamples[level]
        self.unit = self.height if level else 1  # where a level's rows begin at full resolution is rounded
        self.full_size = self.slide.dimensions[::-1]
        told = self.slide.properties.get
        self.pixel_size = pair(*(micrometres(told(f"openslide.mpp-{axis}")) for axis in ("y", "x")))

    def _open(self) -> Any:
        try:
            return self.library.OpenSlide(self.name)
        except (self.library.OpenSlideError, OSError) as error:
            raise ValueError(f"{self.path}: {one_line(error)}") from error

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window (h, w, 4)."""
        corner = round(left * self.scale), round(top * self.scale)
        try:
            return np.asarray(self.slide.read_region(corner, self.level, (right - left, bottom - top)))
        except self.library.OpenSlideError as error:
            self.slide = self._open()  # after an error a slide answers nothing but that error
            raise OSError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
