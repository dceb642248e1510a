"""Tiles of a source, read and decoded ahead of the computation."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from .source import Colours, Pixels, Source
from .tiles import Tile, Tiling
from .timing import Profile
from .upload import Upload

T = TypeVar("T")
AHEAD = 2  # tiles cut out of a band that wait to be used
BANDS = 4  # bands at once: the one in use, the next, and copies of that one while it is put together
NOTHING: "tuple[tuple[int, int], Any]" = (0, 0), None  # first and last row of what is kept of a band, and its pixels


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    """Reads tiles of a source in the order asked for.

    ``depth`` tiles are read and decoded ahead, by as many threads: one for every processor, or fewer if the plan finds
    no room for them. Readers hand on what they read as it is; numbers become floating on the device.
    """

    def __init__(self, source: Source, tiling: Tiling, colours: Colours) -> None:
        self.source, self.tiling, self.colours = source, tiling, colours
        self.depth = cores()
        self.profile = Profile()
        self.upload = Upload(colours.device)
        self._kept = NOTHING

    def __call__(self, numbers: Sequence[int]) -> Iterator[tuple[Tile, Tensor | BadTile]]:
        """Tiles with what they read on the device, or with the reason why there is nothing."""
        if not numbers:
            return
        self.source.restart()
        self._kept = NOTHING
        with ThreadPoolExecutor(self.depth) as pool:
            if self.source.bands:
                found = self._by_bands(numbers, pool)
            else:
                found = ahead((partial(self._read, self.tiling[number]) for number in numbers), pool, self.depth)
            while True:
                with self.profile.waiting("reading"):
                    tile, pixels = next(found, (None, None))
                if tile is None or pixels is None:
                    return
                if not isinstance(pixels, BadTile):
                    with self.profile.waiting("copying"):
                        pixels = self.upload(pixels)
                yield tile, pixels

    def held(self, depth: int | None = None) -> int:
        """Bytes of pixels that wait or are read at any moment."""
        depth = self.depth if depth is None else depth
        rows, columns = self.tiling.most_read
        readers = max(0, depth - 2) * self.source.per_reader
        if self.source.bands:
            band = rows * self.source.width * self.source.channels * self.source.itemsize
            cut = AHEAD * rows * columns * self.source.channels * self.source.itemsize if self.upload.cuda else 0
            return BANDS * band + cut + (0 if self.source.sequential else readers)
        return (depth + 2) * rows * columns * self.source.channels * self.source.itemsize + readers

    def _read(self, tile: Tile) -> tuple[Tile, Tensor | BadTile]:
        try:
            with self.profile.reading():
                return tile, self.upload.pinned(self.colours.raw(self.source.read(*tile.read)))
        except (OSError, ValueError) as error:
            return tile, BadTile(tile, " ".join(str(error).split()))

    def _by_bands(self, numbers: Sequence[int], pool: ThreadPoolExecutor) -> Iterator[tuple[Tile, Tensor | BadTile]]:
        """Whole bands are read once; their tiles are cut out one by one."""
        per_band = self.tiling.shape[1]
        bands = (list(group) for _, group in groupby(numbers, key=lambda number: number // per_band))
        with ThreadPoolExecutor(1) as readers, ThreadPoolExecutor(1) as cutters:
            jobs = (
                partial(self._cut, self.tiling[number], band)
                for group, band in ahead((partial(self._band, group, pool) for group in bands), readers, 1)
                for number in group
            )
            yield from ahead(jobs, cutters)

    def _band(self, numbers: list[int], pool: ThreadPoolExecutor) -> tuple[list[int], "Pixels | Tensor | str"]:
        top, _, bottom, _ = self.tiling[numbers[0]].read
        try:
            return numbers, self._sequential(top, bottom) if self.source.sequential else self._parts(top, bottom, pool)
        except (OSError, ValueError) as error:
            return numbers, " ".join(str(error).split())

    def _rows(self, top: int, bottom: int) -> "Pixels | Tensor":
        with self.profile.reading():
            return self.source.read(top, 0, bottom, self.source.width)

    def _parts(self, top: int, bottom: int, pool: ThreadPoolExecutor) -> "Pixels | Tensor":
        """Whole rows, read in parts that begin where the reader begins to decode, by all threads."""
        unit = self.source.unit
        units = range(top // unit, -(-bottom // unit))
        cuts = sorted({units[len(units) * part // self.depth] * unit for part in range(1, self.depth)})
        edges = [top, *(cut for cut in cuts if top < cut < bottom), bottom]
        parts = list(pool.map(lambda edge: self._rows(*edge), pairwise(edges)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _sequential(self, top: int, bottom: int) -> "Pixels | Tensor":
        """Whole rows of a source that cannot go back: it is asked for those below the rows before alone."""
        (first, last), kept = self._kept
        self._kept = NOTHING
        parts, start = ([kept[top - first :]], last) if first <= top < last else ([], top)
        if start < bottom:
            parts.append(self._rows(start, bottom))
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        first = max(top, bottom - sum(self.tiling.around[0]) * self.tiling.patch[0])
        self._kept = (first, bottom), np.array(rows[first - top :])  # without the rest of the band
        return rows

    def _cut(self, tile: Tile, band: "Pixels | Tensor | str") -> tuple[Tile, Tensor | BadTile]:
        if isinstance(band, str):
            return tile, BadTile(tile, band)
        _, left, _, right = tile.read
        return tile, self.upload.pinned(self.colours.raw(band[:, left:right]))
