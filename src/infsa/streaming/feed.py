"""Tiles of a source as model input, read and decoded ahead of the computation."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from .source import Colours, Pixels, Source
from .tiles import Tile, Tiling

T = TypeVar("T")
READERS = 2  # threads that read tiles
AHEAD = 2  # results that wait to be used
NOTHING: "tuple[tuple[int, int], Any]" = (0, 0), None  # first and last row of what is kept of a band, and its pixels


class BadTile(NamedTuple):
    """A tile that could not be read, and why."""

    tile: Tile
    reason: str

    def __str__(self) -> str:
        top, left, bottom, right = self.tile.pixels
        return f"tile {self.tile.number} (pixels {top}:{bottom}, {left}:{right}): {self.reason}"


def ahead(jobs: Iterator[Callable[[], T]], pool: ThreadPoolExecutor, depth: int = AHEAD) -> Iterator[T]:
    """The results of jobs in their order, of which ``depth`` are under way while one is used."""
    waiting: deque[Future[T]] = deque()
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class Feed:
    """Reads tiles of a source in the order asked for."""

    def __init__(self, source: Source, tiling: Tiling, colours: Colours) -> None:
        self.source, self.tiling, self.colours = source, tiling, colours
        self._kept = NOTHING

    def __call__(self, numbers: Sequence[int]) -> Iterator[tuple[Tile, Tensor | BadTile]]:
        """Tiles with their pixels (1, C, h, w), or with the reason why there are none."""
        if not numbers:
            return
        self.source.restart()
        self._kept = NOTHING
        with ThreadPoolExecutor(1 if self.source.sequential else READERS) as pool:
            if self.source.bands:
                yield from self._by_bands(numbers, pool)
            else:
                yield from ahead((partial(self._read, self.tiling[number]) for number in numbers), pool)

    def held(self) -> int:
        """Bytes of pixels and model input that wait at any moment."""
        rows, columns = self.tiling.most_read
        tile = rows * columns * self.source.channels
        raw = self.source.itemsize * (tile if not self.source.bands else tile // columns * self.source.width)
        converted = 3 * tile * self.colours.itemsize  # with the copies that scaling makes
        return (AHEAD + 2) * raw + (0 if self.source.model_input else (AHEAD + 1) * converted)

    def _read(self, tile: Tile) -> tuple[Tile, Tensor | BadTile]:
        try:
            return tile, self.colours(self.source.read(*tile.read))
        except (OSError, ValueError) as error:
            return tile, BadTile(tile, " ".join(str(error).split()))

    def _by_bands(self, numbers: Sequence[int], pool: ThreadPoolExecutor) -> Iterator[tuple[Tile, Tensor | BadTile]]:
        """Whole bands are read once; their tiles are cut out and converted one by one."""
        per_band = self.tiling.shape[1]
        bands = (list(group) for _, group in groupby(numbers, key=lambda number: number // per_band))
        with ThreadPoolExecutor(1) as converters:
            jobs = (
                partial(self._cut, self.tiling[number], band)
                for group, band in ahead((partial(self._band, group) for group in bands), pool, 1)
                for number in group
            )
            yield from ahead(jobs, converters)

    def _band(self, numbers: list[int]) -> tuple[list[int], "Pixels | Tensor | str"]:
        top, _, bottom, _ = self.tiling[numbers[0]].read
        try:
            return numbers, self._rows(top, bottom)
        except (OSError, ValueError) as error:
            return numbers, " ".join(str(error).split())

    def _rows(self, top: int, bottom: int) -> "Pixels | Tensor":
        """Whole rows; a source that cannot go back is asked for those below the rows before alone."""
        if not self.source.sequential:
            return self.source.read(top, 0, bottom, self.source.width)
        (first, last), kept = self._kept
        self._kept = NOTHING
        parts, start = ([kept[top - first :]], last) if first <= top < last else ([], top)
        if start < bottom:
            parts.append(self.source.read(start, 0, bottom, self.source.width))
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        first = max(top, bottom - sum(self.tiling.around[0]) * self.tiling.patch[0])
        self._kept = (first, bottom), np.array(rows[first - top :])  # without the rest of the band
        return rows

    def _cut(self, tile: Tile, band: "Pixels | Tensor | str") -> tuple[Tile, Tensor | BadTile]:
        if isinstance(band, str):
            return tile, BadTile(tile, band)
        _, left, _, right = tile.read
        return tile, self.colours(band[:, left:right])
