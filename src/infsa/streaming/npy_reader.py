"""Numpy's ``.npy`` files, read window by window and never as a whole."""

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from .file_array import FileArray
from .readers import one_line
from .source import ArraySource, Source, from_array


def open_npy(path: Path) -> Source:
    """An array on disk; a file that is shorter or longer than its header says is refused."""
    with path.open("rb") as file:
        try:
            shape, in_columns, dtype = _header(file)
        except Exception as error:  # a damaged header raises almost anything from inside numpy's parser
            raise ValueError(f"{path}: not a .npy file: {one_line(error)}") from error
        offset, found = file.tell(), path.stat().st_size
    if dtype.hasobject:
        raise ValueError(f"{path}: holds Python objects, which are never unpickled; pixels must be uint8 or uint16")
    expected = offset + math.prod(shape) * dtype.itemsize
    if found != expected:
        kind = "cut off" if found < expected else "longer than its header says"
        raise ValueError(f"{path}: {kind}: {expected} bytes expected for {shape} of {dtype}, {found} found")
    if 0 in shape:  # nothing to read, and nothing that could be mapped
        return ArraySource(np.empty(shape, dtype), str(path))
    shape = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    if in_columns and len(shape) > 1:
        return from_array(np.memmap(path, dtype, "r", offset, shape, order="F"), str(path))
    return from_array(FileArray(path, dtype, shape, offset), str(path))


def _header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, whether the order is Fortran's, and the type; the file is then at its first entry."""
    version = npy.read_magic(file)
    # version 3 is version 2 with names in UTF-8, which no array of numbers has
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, in_columns, dtype = read(file)
    if any(length < 0 for length in shape):
        raise ValueError(f"the shape must not be negative, got {shape}")
    return shape, in_columns, dtype
