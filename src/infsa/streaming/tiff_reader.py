"""TIFF by tifffile: which image of a file is read."""

import logging
import warnings
from pathlib import Path
from typing import Any

from .readers import needed, one_line
from .source import Source
from .tiff_page import TiffSource

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # what it finds wrong is said by the one error


def open_tiff(path: Path, level: int = 0, series: int | None = None, page: int | None = None) -> Source:
    """A level of one image of a TIFF; of several the first, which a warning says.

    Args:
        path: of the file.
        level: of a pyramid.
        series: the image, as tifffile groups the pages of a file.
        page: of the series, or of the file if no series is given.

    Example:
        >>> open_tiff(Path("slide.tif"), level=2).width
        4500
    """
    tifffile = needed("tifffile", "tifffile", f"reading {path.name}")
    try:
        with tifffile.TiffFile(path) as file:
            chosen, said = _choose(file, level, series, page)
            source = TiffSource(path, chosen, tifffile)
    except Exception as error:  # a damaged file raises almost anything from inside tifffile
        raise ValueError(f"{path}: {one_line(error)}") from error
    if said:
        warnings.warn(f"{path} has {said}", stacklevel=2)
    return source


def _choose(file: Any, level: int, series: int | None, page: int | None) -> tuple[Any, str]:
    """The page to read, and what to say of those that are not."""
    count = len(file.series)
    if not count:
        raise ValueError("no image inside")
    if page is not None and series is None and count > 1:
        if level:
            raise ValueError(f"level={level} is one of a series: name the series of page={page}")
        return _page(list(file.pages), page, "the file"), ""
    if series is not None and series >= count:
        raise ValueError(f"{count} series, got series={series}")
    said = [f"{count} series: taking series=0"] if series is None and count > 1 else []
    levels = file.series[series or 0].levels
    if level >= len(levels):
        raise ValueError(f"{len(levels)} levels, got level={level}")
    chosen = levels[level]
    if page is None and max(len(chosen.pages), _planes(chosen)) > 1:
        said.append(f"{_planes(chosen)} pages (axes {chosen.axes}): taking page=0")
    return _page(chosen.pages, page or 0, "the series"), " and ".join(said)


def _planes(series: Any) -> int:
    """The number of images in a series: ImageJ lists only the first of a large stack as a page."""
    return max(len(series.pages), int(series.size) // max(1, int(series.keyframe.size)))


def _page(pages: Any, number: int, where: str) -> Any:
    """A page of some."""
    if number >= len(pages):
        raise ValueError(f"{len(pages)} page{'s' * (len(pages) > 1)} in {where}, got page={number}")
    page = pages[number]
    if page is None:
        raise ValueError(f"page={number} is missing")
    return page
