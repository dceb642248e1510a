"""TIFF by tifffile: tiles and strips, one level of a pyramid."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from .file_array import FileArray
from .readers import needed, one_line
from .source import ArraySource, Pixels, Source, check_pixel_type

AXES = ("YX", "YXS", "SYX")


def open_tiff(path: Path, level: int = 0) -> Source:
    """A level of the first image of a TIFF; one that is stored as it is, is read row by row.

    Example:
        >>> open_tiff(Path("slide.tif"), level=2).width
        4500
    """
    tifffile = needed("tifffile", "tifffile", f"reading {path.name}")
    try:
        with tifffile.TiffFile(path) as file:
            if not file.series:
                raise ValueError("no image inside")
            levels = file.series[0].levels
            if level >= len(levels):
                raise ValueError(f"{len(levels)} levels, got level={level}")
            chosen = levels[level]
            if chosen.axes not in AXES or len(chosen.pages) != 1:
                raise ValueError(f"axes {chosen.axes} on {len(chosen.pages)} pages, streaming takes one image (YXS)")
            return TiffSource(path, chosen.keyframe, tifffile)
    except (tifffile.TiffFileError, ValueError, OSError, KeyError, IndexError, TypeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path}: {one_line(error)}") from error


class TiffSource(Source):
    """One page: the segments (tiles or strips) under a window are read, decoded and put together.

    Example:
        >>> open_tiff(Path("slide.tif")).read(0, 0, 512, 512).shape
        (512, 512, 3)
    """

    def __init__(self, path: Path, page: Any, tifffile: Any) -> None:
        self.name, self.page = str(path), page
        self.separate, depth, self.height, self.width, self.contiguous = page.shaped
        self.channels = self.separate * self.contiguous
        check_pixel_type(page.dtype, "this TIFF")
        if depth != 1:
            raise ValueError(f"a depth of {depth}, streaming takes one plane")
        kinds = tifffile.PHOTOMETRIC
        known = {kinds.MINISBLACK, kinds.MINISWHITE, kinds.RGB}
        if page.compression != 1:
            known |= {kinds.YCBCR}  # decoded to RGB by the codec
        if page.photometric not in known:
            raise ValueError(
                f"colours of kind {getattr(page.photometric, 'name', page.photometric)}; known: grey and RGB"
            )
        if page.bitspersample not in (8, 16):
            raise ValueError(f"{page.bitspersample} bits per value; known: 8 and 16")
        self.premultiplied = tifffile.EXTRASAMPLE.ASSOCALPHA in page.extrasamples
        self.inverted = page.photometric == kinds.MINISWHITE
        self.itemsize = page.dtype.itemsize
        tiled = page.is_tiled
        self.segment = (page.tilelength, page.tilewidth) if tiled else (page.rowsperstrip, page.imagewidth)
        self.counts = tuple(
            -(-length // step) for length, step in zip((self.height, self.width), self.segment, strict=True)
        )
        self.rows_on_disk = not tiled and page.compression == 1 and page.is_memmappable and self.separate == 1
        self.bands = not tiled and not self.rows_on_disk
        whole = self.segment[0] * self.segment[1] * self.contiguous * self.itemsize
        self.overhead = (32 << 20) + (0 if self.rows_on_disk else 4 * whole)
        self.jpeg = {"jpegtables": page.jpegtables, "jpegheader": page.jpegheader}
        self.decode = page.decode  # this and the line above while tifffile has the file open
        self.file = os.open(path, os.O_RDONLY)
        if self.rows_on_disk:
            dtype, shape = page.dtype.newbyteorder(page.parent.byteorder), (self.height, self.width, self.contiguous)
            self.array = ArraySource(FileArray(path, dtype, shape, page.dataoffsets[0]))

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window (h, w, c).

        Example:
            >>> source.read(0, 0, 256, 256).shape
            (256, 256, 3)
        """
        if self.rows_on_disk:
            return self._finish(self.array.read(top, left, bottom, right))
        window = np.zeros((bottom - top, right - left, self.separate, self.contiguous), self.page.dtype)
        rows, columns = self.segment
        for plane in range(self.separate):
            for row in range(top // rows, -(-bottom // rows)):
                for column in range(left // columns, -(-right // columns)):
                    index = (plane * self.counts[0] + row) * self.counts[1] + column
                    pixels = self._segment(index, row, column)
                    y, x = row * rows, column * columns
                    if pixels is None:
                        continue
                    high, low = min(bottom, y + pixels.shape[0]), max(top, y)
                    far, near = min(right, x + pixels.shape[1]), max(left, x)
                    window[low - top : high - top, near - left : far - left, plane] = pixels[
                        low - y : high - y, near - x : far - x
                    ]
        return self._finish(window.reshape(bottom - top, right - left, self.channels))

    def _segment(self, index: int, row: int, column: int) -> Pixels | None:
        """A decoded tile or strip (h, w, c), or None where the file leaves it out."""
        offset, length = self.page.dataoffsets[index], self.page.databytecounts[index]
        if length == 0:
            return None
        kind = "tile" if self.page.is_tiled else "strip"
        data = os.pread(self.file, length, offset)
        if len(data) < length:
            raise OSError(f"{kind} ({row}, {column}) of the file is cut off: {len(data)} of {length} bytes")
        try:
            pixels, _, shape = self.decode(data, index, **self.jpeg)
        except Exception as error:  # damaged data raises almost anything from inside a codec
            raise OSError(f"{kind} ({row}, {column}) of the file: {one_line(error)}") from error
        return None if pixels is None else pixels[0, : shape[1], : shape[2]]

    def _finish(self, window: Pixels) -> Pixels:
        return np.iinfo(window.dtype).max - window if self.inverted else window
