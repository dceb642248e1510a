"""Small files that the tests of the page share."""

import struct
import zlib

import numpy as np
from PIL import Image


def promise(path, width, height):
    """A PNG that has a header and no pixels: whoever refuses it by its size has not decoded it."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, data, b"IEND")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


def photograph(width=96, height=64, seed=0):
    """A smooth picture without symmetry."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
