"""An array on disk that is read, not mapped: mapped pages would count as memory of the process."""

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .timing import from_disk


class FileArray:
    """A C-ordered array (H, W), (H, W, C) or (C, H, W) at some place of a file, cut like an array."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> None:
        self.dtype, self.shape, self.ndim, self.offset = dtype, shape, len(shape), offset
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)

    def __getitem__(self, window: tuple[slice, ...]) -> NDArray[Any]:
        """Rows and columns of all planes, ``[y, x]`` for (H, W[, C]) and ``[:, y, x]`` for (C, H, W)."""
        planes_first = len(window) == 3
        planes, height, width = self.shape if planes_first else (1, *self.shape[:2])
        inner = 1 if planes_first else int(np.prod(self.shape[2:]))
        rows, columns = (range(*cut.indices(length)) for cut, length in zip(window[-2:], (height, width), strict=True))
        found = np.empty((planes, len(rows), len(columns) * inner), self.dtype)
        step = inner * self.dtype.itemsize
        with from_disk():
            for plane in range(planes):
                if len(columns) == width and rows:  # whole rows lie one after the other
                    self._fill(found[plane], (plane * height + rows[0]) * width * step)
                    continue
                for index, row in enumerate(rows):
                    self._fill(found[plane, index], ((plane * height + row) * width + columns.start) * step)
        shape = (planes,) if planes_first else ()
        return found.reshape(*shape, len(rows), len(columns), *(() if planes_first else self.shape[2:]))

    def _fill(self, target: NDArray[Any], start: int) -> None:
        left = memoryview(target.reshape(-1).view(np.uint8).data)
        place = self.offset + start
        while left:
            count = os.preadv(self.file, [left], place)
            if count == 0:
                raise OSError(f"the file is cut off after {os.fstat(self.file).st_size} bytes")
            left, place = left[count:], place + count
