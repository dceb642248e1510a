"""What is known of a file before its pixels are read: whether it changed, how large its image is, how to read it."""

import contextlib
import hashlib
import io
import os
import stat as kinds
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from ..data.decode import UnreadableImage
from ..streaming import open_source
from ..streaming.readers import SLIDES
from .items import Item

ORIENTATION = 0x0112  # the EXIF tag
BLOCK = 1 << 22


class Stat(NamedTuple):
    """What a file system says of a file: equal if nothing was written since."""

    bytes: int
    modified: int  # nanoseconds
    changed: int  # likewise; unlike the one before, no program can set it


class Header(NamedTuple):
    """The upright size of an image, and whether only the readers of :mod:`infsa.streaming` can read it."""

    width: int
    height: int
    by_tiles: bool = False


class Unread(Exception):
    """Why an image has no result; ``final`` if that will not change as long as the file does not."""

    def __init__(self, reason: object, final: bool = False) -> None:
        super().__init__(" ".join(str(reason).split()) or type(reason).__name__)
        self.final = final


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep what decoders say about single files off the screen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def stat_of(item: Item) -> Stat:
    """The state of the item's file, or :class:`Unread`."""
    if item.reason:
        raise Unread(item.reason)
    try:
        found = os.stat(item.place)
    except (OSError, ValueError) as error:
        link = os.path.islink(item.place) if isinstance(error, OSError) else False
        missing = "a broken link" if link else "no such file"
        raise Unread(missing if isinstance(error, FileNotFoundError) else _system(error)) from error
    if not kinds.S_ISREG(found.st_mode):
        raise Unread("neither a file nor a folder" if not kinds.S_ISDIR(found.st_mode) else "a folder")
    return Stat(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read(item: Item, limit: int) -> bytes:
    """The bytes of an image; more than ``limit`` are not read."""
    length = item.length if item.offset >= 0 else os.stat(item.place).st_size
    if length > limit:
        raise Unread(f"a file of {length} bytes is more than half of the memory")
    try:
        with open(item.place, "rb", buffering=0) as file:
            file.seek(max(item.offset, 0))
            return file.read(length) if length else b""
    except OSError as error:
        raise Unread(_system(error)) from error


def digest(data: bytes) -> str:
    """What tells the content of a file from all others."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def file_digest(item: Item) -> str:
    """The digest of a file that need not fit into memory."""
    found = hashlib.blake2b(digest_size=16)
    left = item.length if item.offset >= 0 else None
    try:
        with open(item.place, "rb") as file:
            file.seek(max(item.offset, 0))
            while block := file.read(BLOCK if left is None else min(BLOCK, left)):
                found.update(block)
                left = None if left is None else left - len(block)
    except OSError as error:
        raise Unread(_system(error)) from error
    return found.hexdigest()


def header_of(item: Item, limit: int, tiles: bool) -> Header:
    """The size of an image from its header, or :class:`Unread`.

    Args:
        item: whose file is there.
        limit: bytes that may be read of a file inside a tar.
        tiles: whether an image that Pillow does not read may be streamed.
    """
    inside = item.offset >= 0
    if not (item.length if inside else os.path.getsize(item.place)):
        raise Unread("an empty file", final=True)
    if not inside and os.path.splitext(item.place)[1].lower() in SLIDES:
        return _by_tiles(item, tiles, "a whole slide, which only Linear-InfSA at --resolution native reads")
    data = io.BytesIO(read(item, limit)) if inside else item.place
    try:
        with Image.open(data) as image:
            width, height = image.size
            return Header(height, width) if _lies(image) else Header(width, height)
    except (Image.DecompressionBombError, Image.UnidentifiedImageError) as error:
        known = isinstance(error, Image.DecompressionBombError)
        return _by_tiles(item, tiles, error if known else "not an image in a known format")
    except Exception as error:  # damaged headers raise almost anything
        raise Unread(_system(error), final=not getattr(error, "errno", None)) from error


def _lies(image: Image.Image) -> bool:
    """Whether an image is stored on its side; a PNG would be decoded to find that out where it is said at the end."""
    if image.format == "PNG" and "exif" not in image.info:
        return False
    try:
        return image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    except Exception:  # damaged EXIF data
        return False


def _by_tiles(item: Item, tiles: bool, reason: object) -> Header:
    """The size of an image that only streaming reads; ``reason`` is why Pillow does not."""
    if item.offset >= 0 or not tiles:
        raise Unread(reason, final=True)
    try:
        source = open_source(item.place)
    except ImportError as error:
        raise Unread(error) from error
    except Exception as error:  # damaged headers raise almost anything
        raise Unread(reason, final=True) from error
    return Header(source.width, source.height, by_tiles=True)


def why(error: Exception) -> Unread:
    """Any error about one image as :class:`Unread`."""
    if isinstance(error, Unread):
        return error
    if isinstance(error, UnreadableImage) and not isinstance(error.__cause__, MemoryError):
        return Unread(str(error).removeprefix("image: "), final=True)
    return Unread(_system(error))


def _system(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
