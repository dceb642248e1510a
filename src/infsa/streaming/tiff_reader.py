"""TIFF by tifffile: which image of a file is read."""

import logging
import warnings
from pathlib import Path
from typing import Any

from .placement import tiff_pixel_size
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
    """
    tifffile = needed("tifffile", "tifffile", f"reading {path.name}")
    try:
        with tifffile.TiffFile(path) as file:
            chosen, plane, said = _choose(file, level, series, page)
            source = TiffSource(path, chosen, tifffile, plane)
            if page is None or series is not None or len(file.series) == 1:
                whole = file.series[series or 0]
                source.full_size = whole.levels[0].keyframe.shaped[2:4]
                source.pixel_size = tiff_pixel_size(file, series or 0, whole.keyframe)
    except Exception as error:  # a damaged file raises almost anything from inside tifffile
        raise ValueError(f"{path}: {one_line(error)}") from error
    if said:
        warnings.warn(f"{path} has {said}", stacklevel=2)
    return source


def _choose(file: Any, level: int, series: int | None, page: int | None) -> tuple[Any, int, str]:
    """The page to read, the plane behind it that is meant, and what to say of the images that are not read."""
    count = len(file.series)
    if not count:
        raise ValueError("no image inside")
    if page is not None and series is None and count > 1:
        if level:
            raise ValueError(f"level={level} is one of a series: name the series of page={page}")
        return *_page(list(file.pages), page, len(file.pages), "the file"), ""
    if series is not None and series >= count:
        raise ValueError(f"{count} series, got series={series}")
    said = [f"{count} series: taking series=0"] if series is None and count > 1 else []
    levels = file.series[series or 0].levels
    if level >= len(levels):
        raise ValueError(f"{len(levels)} levels, got level={level}")
    chosen = levels[level]
    count = max(len(chosen.pages), chosen.size // max(1, chosen.keyframe.size))
    if page is None and count > 1:
        said.append(f"{count} pages (axes {chosen.axes}): taking page=0")
    return *_page(chosen.pages, page or 0, count, "the series"), " and ".join(said)


def _page(pages: Any, number: int, count: int, where: str) -> tuple[Any, int]:
    """A page of some, or the first and the plane behind it: of a large stack ImageJ lists the first page only."""
    if number >= count:
        raise ValueError(f"{count} page{'s' * (count > 1)} in {where}, got page={number}")
    unlisted = len(pages) == 1 < count
    page = pages[0 if unlisted else number]
    if page is None:
        raise ValueError(f"page={number} is missing")
    if unlisted and page.compression != 1:
        raise ValueError(f"one of {count} pages is listed, and compressed: the others cannot be found")
    return page, number if unlisted else 0
