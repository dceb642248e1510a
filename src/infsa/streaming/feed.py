"""Tiles of a source, read and decoded ahead of the computation."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .source import Colours, Pixels, Source, is_opaque
from .tiles import Tile, Tiling
from .timing import Profile
from .upload import RING, Upload, pinned_bytes

T = TypeVar("T")
Window = tuple["Tile", "Tensor | BadTile"]  # what a tile reads, or why there is nothing
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


def ahead(jobs: Iterator[Callable[[], T]], pool: ThreadPoolExecutor, depth: int = AHEAD) -> Generator[T, None, None]:
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

    ``depth`` threads read and decode: one for every processor, or fewer if the plan finds no room for them. Each takes
    a tile, or all take the next one together where tiles are few and large, as on a GPU. Readers hand on what they read
    as it is; numbers become floating on the device.
    """

    def __init__(self, source: Source, tiling: Tiling, colours: Colours) -> None:
        self.source, self.tiling, self.colours = source, tiling, colours
        self.depth = cores()
        self.profile = Profile()
        self.upload = Upload(colours.device)
        self.together = self.upload.cuda and not source.model_input
        self._kept = NOTHING

    def __call__(self, numbers: Sequence[int]) -> Generator[Window, None, None]:
        """Tiles with what they read on the device, or with the reason why there is nothing."""
        if not numbers:
            return
        self.source.restart()
        self._kept = NOTHING
        with ThreadPoolExecutor(self.depth) as pool, ThreadPoolExecutor(AHEAD) as leaders:
            if self.source.bands:
                found = self._by_bands(numbers, pool)
            elif self.together:
                found = ahead((partial(self._shared, self.tiling[number], pool) for number in numbers), leaders)
            else:
                found = ahead((partial(self._read, self.tiling[number]) for number in numbers), pool, self.depth)
            with closing(found):  # so that nothing more is read for a stream that ends early
                while True:
                    with self.profile.waiting("reading"):
                        tile, pixels = next(found, (None, None))
                    if tile is None or pixels is None:
                        return
                    if not isinstance(pixels, BadTile):
                        self.upload.turn()
                        with self.profile.waiting("copying"):
                            pixels = self.upload(pixels)
                    yield tile, pixels

    def held(self, depth: int | None = None) -> int:
        """Bytes of pixels that wait or are read at any moment."""
        depth = self.depth if depth is None else depth
        rows, columns = self.tiling.most_read
        pixel = self.source.channels * self.source.itemsize
        one = rows * columns * pixel
        pinned = (AHEAD + RING) * pinned_bytes(one) if self.upload.cuda else 0
        readers = max(0, depth - 2) * self.source.per_reader
        if self.source.bands:
            return BANDS * rows * self.source.width * pixel + pinned + (0 if self.source.sequential else readers)
        if self.together:
            return AHEAD * one + pinned + readers
        return (depth + 2) * one + pinned + readers

    def _read(self, tile: Tile) -> Window:
        try:
            with self.profile.reading():
                return tile, self.upload.pinned(self.colours.raw(self.source.read(*tile.read)))
        except (OSError, ValueError) as error:
            return tile, BadTile(tile, " ".join(str(error).split()))

    def _shared(self, tile: Tile, pool: ThreadPoolExecutor) -> Window:
        """A tile that all threads read, put together where a GPU copies from."""
        try:
            top, left, bottom, right = tile.read
            edges = self._edges(top, bottom)
            parts: list[Any] = list(pool.map(lambda edge: self._rows(edge[0], edge[1], left, right), edges))
        except (OSError, ValueError) as error:
            return tile, BadTile(tile, " ".join(str(error).split()))
        count = parts[0].shape[2]
        if self.colours.has_opacity(count) and all(pool.map(is_opaque, parts)):
            count -= 1
        kind = torch.from_numpy(np.empty(0, parts[0].dtype.newbyteorder("="))).dtype
        whole = torch.empty(bottom - top, right - left, count, dtype=kind, pin_memory=self.upload.cuda)
        target = whole.numpy()

        def place(edge: tuple[int, int], part: Pixels) -> None:
            target[edge[0] - top : edge[1] - top] = part[..., :count]

        list(pool.map(place, edges, parts))
        return tile, whole

    def _by_bands(self, numbers: Sequence[int], pool: ThreadPoolExecutor) -> Generator[Window, None, None]:
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

    def _rows(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> "Pixels | Tensor":
        with self.profile.reading():
            return self.source.read(top, left, bottom, self.source.width if right is None else right)

    def _edges(self, top: int, bottom: int) -> list[tuple[int, int]]:
        """Rows in a part for each thread; parts begin where the reader begins to decode."""
        unit = self.source.unit
        units = range(top // unit, -(-bottom // unit))
        cuts = sorted({units[len(units) * part // self.depth] * unit for part in range(1, self.depth)})
        return list(pairwise([top, *(cut for cut in cuts if top < cut < bottom), bottom]))

    def _parts(self, top: int, bottom: int, pool: ThreadPoolExecutor) -> "Pixels | Tensor":
        """Whole rows, read by all threads."""
        parts = list(pool.map(lambda edge: self._rows(*edge), self._edges(top, bottom)))
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

    def _cut(self, tile: Tile, band: "Pixels | Tensor | str") -> Window:
        if isinstance(band, str):
            return tile, BadTile(tile, band)
        _, left, _, right = tile.read
        return tile, self.upload.pinned(self.colours.raw(band[:, left:right]))
