"""One page of a TIFF: its tiles or strips, and what its numbers mean as colours."""

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from .colour_spaces import rgb_of_cmyk, rgb_of_palette
from .file_array import FileArray
from .readers import one_line
from .source import Pixels, Source, check_pixel_type
from .timing import from_disk

COLOURS = {"MINISBLACK": 1, "MINISWHITE": 1, "RGB": 3, "YCBCR": 3, "PALETTE": 1, "SEPARATED": 4}  # values per pixel
DECODE_TO_RGB = ("OJPEG", "JPEG", "ALT_JPEG", "JPEG_LOSSY", "JPEG2000", "APERIO_JP2000_YCBC", "WEBP", "JPEGXL")
INK_SET = 332  # the tag of a page whose inks may be others than CMYK


class TiffSource(Source):
    """One page: the segments (tiles or strips) under a window are read, decoded and put together.

    Grey is scaled to 8 bits where it has fewer, and inverted where white is 0. Palettes and CMYK become RGB. Floating
    pixels must lie in [0, 1]. Only a channel that the file declares as opacity is taken as that.
    """

    def __init__(self, path: Path, frame: Any, tifffile: Any, plane: int = 0) -> None:
        page = frame.keyframe  # pages of a stack share the tags of the first
        self.name, self.page, self.place = str(path), page, frame.offset
        self.offsets = [offset + plane * page.nbytes for offset in frame.dataoffsets]  # planes follow one another
        self.lengths = frame.databytecounts
        self.separate, depth, self.height, self.width, self.contiguous = page.shaped
        if depth != 1:
            raise ValueError(f"a depth of {depth}, streaming takes one plane")
        self.kind = check_colours(page)
        self.samples = self.separate * self.contiguous
        self.colours = min(COLOURS[self.kind], self.samples)
        shown = 3 if self.kind in ("PALETTE", "SEPARATED") else self.colours
        self.channels = shown + self.samples - self.colours
        alpha = (tifffile.EXTRASAMPLE.ASSOCALPHA, tifffile.EXTRASAMPLE.UNASSALPHA)
        self.opacity = len(page.extrasamples) == self.samples - self.colours == 1 and page.extrasamples[0] in alpha
        self.premultiplied = self.opacity and page.extrasamples[0] == alpha[0]
        self.palette = page.colormap.T if self.kind == "PALETTE" else None  # (colours, 3)
        self.itemsize = 1 if self.kind == "PALETTE" else page.dtype.itemsize
        self.jpeg = {"jpegtables": frame.jpegtables, "jpegheader": page.jpegheader}
        self.decode = page.decode  # this and the line above while tifffile has the file open
        self._find_segments(path)

    def _find_segments(self, path: Path) -> None:
        """Where the tiles or strips lie, and whether the rows of the image simply follow each other."""
        page = self.page
        tiled = page.is_tiled
        self.segment = (page.tilelength, page.tilewidth) if tiled else (page.rowsperstrip, page.imagewidth)
        self.counts = tuple(
            -(-length // step) for length, step in zip((self.height, self.width), self.segment, strict=True)
        )
        wanted = self.separate * self.counts[0] * self.counts[1]
        if min(len(self.offsets), len(self.lengths)) < wanted:
            raise ValueError(f"{wanted} {'tiles' if tiled else 'strips'} expected, {len(self.offsets)} listed")
        ends = [offset + length for offset, length in zip(self.offsets, self.lengths, strict=False)]
        plain = not tiled and page.compression == 1 and page.is_memmappable and self.separate == 1
        self.rows_on_disk = plain and self.offsets[1:] == ends[:-1]
        self.bands = not tiled and not self.rows_on_disk
        whole = self.segment[0] * self.segment[1] * self.contiguous * page.dtype.itemsize
        self.overhead = (32 << 20) + (0 if self.rows_on_disk else 4 * whole)
        self.per_reader, self.unit = (0, 1) if self.rows_on_disk else (2 * whole, self.segment[0])
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        if self.rows_on_disk:
            dtype, shape = page.dtype.newbyteorder(page.parent.byteorder), (self.height, self.width, self.contiguous)
            self.array = FileArray(path, dtype, shape, self.offsets[0])

    def describe(self) -> str:
        """What tells this image from another, and its place among the pages of the file."""
        return f"{super().describe()} at {self.place} {self.offsets[:1]}"

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window (h, w, c)."""
        if self.rows_on_disk:
            return self._finish(self.array[top:bottom, left:right])
        shape = (bottom - top, right - left, self.separate, self.contiguous)
        window = np.full(shape, self.page.nodata, self.page.dtype)
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
        return self._finish(window.reshape(bottom - top, right - left, self.samples))

    def _segment(self, index: int, row: int, column: int) -> Pixels | None:
        """A decoded tile or strip (h, w, c), or None where the file leaves it out."""
        offset, length = self.offsets[index], self.lengths[index]
        if length == 0:
            return None
        kind = "tile" if self.page.is_tiled else "strip"
        left = max(0, os.fstat(self.file).st_size - offset)
        if left < length:
            raise OSError(f"{kind} ({row}, {column}) of the file is cut off: {left} of {length} bytes")
        try:
            with from_disk():
                data = os.pread(self.file, length, offset)
            pixels, _, shape = self.decode(data, index, **self.jpeg)
        except Exception as error:  # damaged data raises almost anything from inside a codec
            raise OSError(f"{kind} ({row}, {column}) of the file: {one_line(error)}") from error
        return None if pixels is None else pixels[0, : shape[1], : shape[2]]

    def _finish(self, window: Pixels) -> Pixels:
        """Stored numbers (h, w, samples) as colours, and what comes with them: (h, w, channels)."""
        colours, others = window[..., : self.colours], window[..., self.colours :]
        if self.palette is not None:
            return rgb_of_palette(colours.astype(np.uint16), self.palette)
        if window.dtype.kind == "f":
            outside = window[~((window >= 0) & (window <= 1))]
            if outside.size:
                raise ValueError(f"floating pixels must lie in [0, 1], got {outside[0]:g}")
        elif self.page.bitspersample < 8:
            scale = 255 // (2**self.page.bitspersample - 1)
            colours, others = (values.astype(np.uint8) * np.uint8(scale) for values in (colours, others))
        if self.kind == "MINISWHITE":
            colours = (1 if colours.dtype.kind == "f" else np.iinfo(colours.dtype).max) - colours
        if self.kind == "SEPARATED":
            colours = rgb_of_cmyk(colours)
        return np.concatenate([colours, others], -1) if others.shape[-1] else colours


def check_colours(page: Any) -> str:
    """Refuse numbers whose colours are not known, by their name; the kind of the others."""
    kind = getattr(page.photometric, "name", str(page.photometric))
    codec = getattr(page.compression, "name", str(page.compression))
    if kind not in COLOURS:
        raise ValueError(f"colours of kind {kind}; known: grey, RGB, palette, CMYK, and YCbCr in JPEG")
    if kind == "YCBCR" and codec not in DECODE_TO_RGB:
        raise ValueError(f"colours of kind YCBCR with compression {codec}; known: in JPEG")
    if page.dtype is None:
        raise ValueError(f"pixels of {page.bitspersample} bits and sample format {page.sampleformat} are not known")
    if kind == "SEPARATED":
        ink_set = page.tags.valueof(INK_SET, default=1)
        if ink_set != 1 or page.samplesperpixel < COLOURS[kind] or page.dtype.kind != "u":
            raise ValueError(f"{page.samplesperpixel} inks of {page.dtype}; known: CMYK of uint8 or uint16")
    if page.dtype.kind not in "bf":
        check_pixel_type(page.dtype, "this TIFF")
        if page.bitspersample not in (1, 2, 4, 8, 16):
            raise ValueError(f"{page.bitspersample} bits per value; known: 8 and 16, or 1, 2 and 4")
    if kind == "PALETTE":
        found, one = getattr(page.colormap, "shape", None), page.samplesperpixel == 1 and page.dtype.kind in "ub"
        if not one or found != (3, 2**page.bitspersample):
            raise ValueError(f"a palette of shape {found} for {page.samplesperpixel} channels of {page.dtype}")
    return kind
