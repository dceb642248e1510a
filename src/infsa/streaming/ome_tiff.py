"""A map as a pyramidal OME-TIFF, whose physical pixel size lets viewers lay it over the image."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..files import write_atomically
from .placement import Placement
from .places import MARK
from .readers import needed

BLOCK = 256  # side of the tiles; the smallest level fits into one

Map = NDArray[np.float32]


def is_ome(path: Path) -> bool:
    """Whether a name asks for an OME-TIFF."""
    return path.name.lower().endswith((".ome.tif", ".ome.tiff"))


def write_ome(path: Path, blocks: Iterable[Map], grid: tuple[int, int], placement: Placement) -> None:
    """Write a map as it comes: float32 in tiles, and SubIFD levels of half the size each, by means of 2 × 2 cells.

    Args:
        path: ``.ome.tif`` or ``.ome.tiff``.
        blocks: of ``BLOCK`` whole rows from the top; the last may be shorter.
        grid: rows and columns of the map.
        placement: of its cells in the image.
    """
    tifffile = needed("tifffile", "tifffile", f"writing {path.name}")
    y, x, unit = placement.patch_size()
    metadata = {
        "axes": "YX",
        "Name": "attention map",
        "PhysicalSizeY": y,
        "PhysicalSizeYUnit": unit,
        "PhysicalSizeX": x,
        "PhysicalSizeXUnit": unit,
    }
    shapes = level_shapes(grid)

    def write(aside: Path) -> None:
        with ExitStack() as open_files:
            levels = [Level(s, open_files.enter_context(tempfile.TemporaryFile(dir=path.parent))) for s in shapes[1:]]
            options: dict[str, Any] = {
                "dtype": np.float32,
                "tile": (BLOCK, BLOCK),
                "compression": "zlib",
                "photometric": "minisblack",
            }
            with tifffile.TiffWriter(aside, bigtiff=grid[0] * grid[1] * 6 > 2**31, ome=True) as file:
                below = {"subifds": len(levels)} if levels else {}
                tiles = as_tiles(_passed_on(blocks, levels, grid[0]))
                file.write(tiles, shape=grid, metadata=metadata, software=MARK, **below, **options)
                for level in levels:
                    file.write(as_tiles(level.blocks()), shape=level.shape, subfiletype=1, metadata=None, **options)

    write_atomically(path, write)


def level_shapes(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """The grid and its halves, rounded up, until one fits into a tile."""
    shapes = [grid]
    while max(shapes[-1]) > BLOCK:
        rows, columns = shapes[-1]
        shapes.append((-(-rows // 2), -(-columns // 2)))
    return shapes


class Level:
    """A level below the map: kept in a file until the levels above it are written."""

    def __init__(self, shape: tuple[int, int], file: IO[bytes]) -> None:
        self.shape, self.file = shape, file

    def add(self, block: Map) -> Map:
        """The next rows of the level above, an even number unless they are the last; return their halves."""
        rows, columns = block.shape
        padded = np.pad(block.astype(np.float64), ((0, rows % 2), (0, columns % 2)), mode="edge")
        means = padded.reshape(-(-rows // 2), 2, -(-columns // 2), 2).mean((1, 3)).astype(np.float32)
        self.file.write(means.tobytes())
        return means

    def blocks(self) -> Iterator[Map]:
        """The level in blocks of whole rows."""
        self.file.seek(0)
        rows, columns = self.shape
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            yield np.frombuffer(self.file.read(4 * count * columns), np.float32).reshape(count, columns)


def _passed_on(blocks: Iterable[Map], levels: list[Level], rows: int) -> Iterator[Map]:
    """The blocks of a map of so many rows, each of which goes to the levels below as it passes."""
    waiting: list[list[Map]] = [[] for _ in levels]

    def down(number: int, block: Map) -> None:
        if number == len(levels):
            return
        found = np.concatenate([*waiting[number], block])
        even = len(found) // 2 * 2
        waiting[number] = [found[even:]]
        if even:
            down(number + 1, levels[number].add(found[:even]))

    left = rows
    for block in blocks:
        down(0, block)
        left -= len(block)
        for number, level in enumerate(levels if left == 0 else []):  # an odd last row, before the last tiles go out
            if len(waiting[number][0]):
                down(number + 1, level.add(waiting[number].pop()))
        yield block


def as_tiles(blocks: Iterable[Map]) -> Iterator[Map]:
    """Blocks of rows as tiles, filled up with zeros at the edges."""
    for block in blocks:
        rows, columns = block.shape
        padded = np.pad(block, ((0, BLOCK - rows), (0, -columns % BLOCK)))
        yield from np.split(padded, padded.shape[1] // BLOCK, axis=1)
