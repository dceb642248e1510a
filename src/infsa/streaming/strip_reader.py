"""JPEG, PNG, WebP and GIF by pyvips: images that decode from the top down."""

import contextlib
import os
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from .colour_spaces import rgb_of_cmyk
from .readers import needed, one_line
from .source import Pixels, Source, check_pixel_type

STRIPS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif")
UNIT = 16  # rows that every decoder hands out together: a decoder cannot begin between two of them
STEP = 8 * UNIT  # rows that are decoded at a time
KNOWN = ("srgb", "rgb", "b-w", "grey16", "rgb16", "multiband", "cmyk")


class OpenFile:
    """A file for libvips to read from, closed when nobody needs it."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many."""
        return os.read(self.file, size)

    def seek(self, offset: int, whence: int) -> int:
        """Stand at another place, and say which."""
        return os.lseek(self.file, offset, whence)


class StripSource(Source):
    """An image that is decoded a few rows at a time; the rows decoded last are kept for the next window.

    WebP, GIF and images that are stored progressively or turned by an EXIF tag decode as a whole, in memory or into a
    temporary file. Of several frames one is read.
    """

    bands = sequential = True

    def __init__(self, path: Path, page: int | None = None) -> None:
        self.name, self.path, self.page = str(path), path, page
        self.vips = needed("pyvips", "pyvips", f"reading {path.name}")
        self.origins: list[Any] = []  # what libvips reads from, which has to live as long as its images
        self.image = self._open()
        form = {"uchar": np.uint8, "ushort": np.uint16}.get(self.image.format, np.float32)
        check_pixel_type(form, self.name)
        self.dtype = np.dtype(form)
        self.inks = self.image.interpretation == "cmyk"
        self.height, self.width = self.image.height, self.image.width
        self.channels = 3 if self.inks else self.image.bands
        self.opacity, self.itemsize = bool(self.image.hasalpha()), self.dtype.itemsize
        self.end, self.reason = self.height, ""  # the first row that cannot be decoded, and why
        self._begin()
        row = self.width * self.image.bands * self.itemsize
        self.overhead = (96 << 20) + (2 * self.height * row if self.whole else (STEP + 64) * row)

    def _open(self) -> Any:
        image = self._load("sequential")
        fields = image.get_fields()
        frames = image.get("n-pages") if "n-pages" in fields else 1
        self._check_page(frames)
        turned = "orientation" in fields and image.get("orientation") != 1
        interlaced = "interlaced" in fields and bool(image.get("interlaced"))
        self.whole = turned or interlaced or frames > 1 or image.get("vips-loader") in ("webpload", "gifload")
        if self.whole:
            image = self._load("random", **({"page": self.page or 0} if frames > 1 else {}))
        image = image.autorot() if turned else image
        return image if image.interpretation in KNOWN else image.colourspace("srgb")

    def _load(self, access: str, **options: int) -> Any:
        """The image by a file of our own: libvips would map it, and end the process if it became shorter."""
        origin = self.vips.SourceCustom()
        try:
            file = OpenFile(self.path)
            origin.on_read(file.read)
            origin.on_seek(file.seek)
            self.origins = [*self.origins[-3:], origin]
            return self.vips.Image.new_from_source(origin, "", access=access, fail_on="error", **options)
        except (self.vips.Error, OSError) as error:
            raise ValueError(f"{self.path}: {one_line(error)}") from error

    def _check_page(self, frames: int) -> None:
        if self.page is not None and self.page >= frames:
            raise ValueError(f"{self.path} has {frames} frame{'s' * (frames > 1)}, got page={self.page}")
        if self.page is None and frames > 1:
            warnings.warn(f"{self.path} has {frames} frames: taking page=0", stacklevel=2)
            self.page = 0

    def _begin(self) -> None:
        """Stand before the first row."""
        self.first = self.next = 0  # the rows that are kept
        self.rows = np.empty((0, self.width, self.channels), self.dtype)

    def restart(self) -> None:
        """Begin at the top again."""
        if self.next:
            self.image = self.image if self.whole else self._open()
            self._begin()

    def describe(self) -> str:
        """What tells this image from another."""
        return super().describe() + ("" if self.page is None else f" page {self.page}")

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window; one that begins higher than the one before decodes the image from its top again."""
        if top < self.first:
            self.restart()
        window = np.empty((bottom - top, right - left, self.channels), self.dtype)
        while True:
            low, high = max(top, self.first), min(bottom, self.next)
            if low < high:
                window[low - top : high - top] = self.rows[low - self.first : high - self.first, left:right]
            if self.next >= bottom:
                return window
            if max(self.next, top) >= self.end:
                raise OSError(self.reason)
            self._advance(max(self.next, top // STEP * STEP))

    def _advance(self, start: int) -> None:
        """Decode the next rows; if that fails, find the last ones that can be had, and begin again."""
        stop = min(start + STEP, self.end)
        try:
            self.rows, self.first, self.next = self._decode(start, stop), start, stop
        except self.vips.Error as error:
            self.reason = one_line(error).removeprefix("unable to write to memory ")  # what was asked of libvips
            self.end = self._damaged(start, stop)
            self.next = stop
            self.restart()

    def _damaged(self, start: int, stop: int) -> int:
        """The first row between two that cannot be decoded, counted in units."""
        self.image = self._open()
        row = start
        with contextlib.suppress(self.vips.Error):
            while row < stop - UNIT:
                self._decode(row, row + UNIT)
                row += UNIT
        return row

    def _decode(self, start: int, stop: int) -> Pixels:
        data = self.image.crop(0, start, self.width, stop - start).write_to_memory()
        rows = np.frombuffer(data, self.dtype).reshape(stop - start, self.width, -1)
        return rgb_of_cmyk(rows) if self.inks else rows
