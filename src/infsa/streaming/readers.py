"""Image files: which reader opens which, and the readers of strips (pyvips) and whole slides (openslide)."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from .file_array import FileArray
from .source import ArraySource, Pixels, Source, check_pixel_type, from_array

STRIPS = (".jpg", ".jpeg", ".png", ".webp")
SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".czi", ".dcm")


def needed(module: str, package: str, for_what: str) -> Any:
    """Import an optional module, or say in one line how to get it."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"{for_what} needs {package}: pip install 'infsa[wsi]' (importing {module} failed: {reason})"
        ) from error


def open_file(path: Path, level: int = 0) -> Source:
    """The reader of a file, by its ending.

    Example:
        >>> open_file(Path("photo.jpg")).sequential
        True
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if path.is_dir():
        from .zarr_reader import open_zarr

        return open_zarr(path, str(path), level)
    if suffix in (".tif", ".tiff"):
        from .tiff_reader import open_tiff

        return open_tiff(path, level)
    if suffix in SLIDES:
        return SlideSource(path, level)
    if level:
        raise ValueError(f"{path} has no pyramid, got level={level}")
    if suffix in STRIPS:
        return StripSource(path)
    if suffix == ".npy":
        return open_npy(path)
    known = (".npy", *STRIPS, ".tif", ".tiff", ".zarr", *SLIDES)
    raise ValueError(f"{path}: unknown kind of image; known: {' '.join(known)}")


def open_npy(path: Path) -> Source:
    """An array on disk, read window by window.

    Example:
        >>> open_npy(Path("image.npy")).height
        18000
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        if path.stat().st_size and _empty_npy(path):
            return ArraySource(np.load(path, allow_pickle=False), str(path))
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if array.flags.c_contiguous:
        shape = array.shape[1:] if array.ndim == 4 and array.shape[0] == 1 else array.shape
        array = FileArray(path, array.dtype, shape, array.offset)
    return from_array(array, str(path))


def _empty_npy(path: Path) -> bool:
    """Whether a file holds an array without entries, which cannot be mapped."""
    try:
        return np.load(path, allow_pickle=False).size == 0
    except (ValueError, OSError, EOFError):
        return False


class StripSource(Source):
    """JPEG, PNG and other images that decode from the top down, in bounded memory, by pyvips.

    Images that are stored progressively or turned by an EXIF tag decode as a whole, into a temporary file.

    Example:
        >>> StripSource(Path("orion.jpg")).width
        18000
    """

    bands = sequential = True

    def __init__(self, path: Path) -> None:
        self.name, self.path = str(path), path
        self.vips = needed("pyvips", "pyvips", f"reading {path.name}")
        self.image = self._open()
        check_pixel_type({"uchar": "u1", "ushort": "u2"}.get(self.image.format, "f4"), self.name)
        self.height, self.width, self.channels = self.image.height, self.image.width, self.image.bands
        self.itemsize = 2 if self.image.format == "ushort" else 1
        self.next_row = 0
        pixels = self.height * self.width * self.channels * self.itemsize
        self.overhead = (96 << 20) + (2 * pixels if self.whole else 64 * self.width * self.channels * self.itemsize)

    def _open(self) -> Any:
        try:
            image = self.vips.Image.new_from_file(self.name, access="sequential", fail_on="truncated")
            fields = image.get_fields()
            turned = "orientation" in fields and image.get("orientation") != 1
            self.whole = turned or ("interlaced" in fields and bool(image.get("interlaced")))
            if turned:
                image = self.vips.Image.new_from_file(self.name, access="random", fail_on="truncated").autorot()
            if image.interpretation not in ("srgb", "rgb", "b-w", "grey16", "rgb16", "multiband"):
                image = image.colourspace("srgb")
            return image
        except self.vips.Error as error:
            raise ValueError(f"{self.path}: {one_line(error)}") from error

    def restart(self) -> None:
        """Begin at the top again.

        Example:
            >>> source.restart()
        """
        if self.next_row:
            self.image, self.next_row = self._open(), 0

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window of a band; the next one must lie at the same height or lower.

        Example:
            >>> source.read(0, 0, 64, source.width).shape
            (64, 18000, 3)
        """
        if top < self.next_row:
            self.restart()
        self.next_row = bottom
        try:
            window = self.image.crop(left, top, right - left, bottom - top).write_to_memory()
        except self.vips.Error as error:
            raise OSError(one_line(error)) from error
        pixels = np.frombuffer(window, np.uint16 if self.itemsize == 2 else np.uint8)
        return pixels.reshape(bottom - top, right - left, self.channels)


class SlideSource(Source):
    """Whole-slide images by openslide; what a slide does not cover is transparent, that is, white.

    Example:
        >>> SlideSource(Path("slide.svs"), level=0).channels
        4
    """

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

    def _open(self) -> Any:
        try:
            return self.library.OpenSlide(self.name)
        except (self.library.OpenSlideError, OSError) as error:
            raise ValueError(f"{self.path}: {one_line(error)}") from error

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window (h, w, 4).

        Example:
            >>> source.read(0, 0, 256, 256).shape
            (256, 256, 4)
        """
        corner = round(left * self.scale), round(top * self.scale)
        try:
            return np.asarray(self.slide.read_region(corner, self.level, (right - left, bottom - top)))
        except self.library.OpenSlideError as error:
            self.slide = self._open()  # after an error a slide answers nothing but that error
            raise OSError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
