"""The patch grid of an image, cut into tiles."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A rectangle of the patch grid, and the pixels that it covers."""

    number: int
    row: int  # in patches, as the next three
    column: int
    rows: int
    columns: int
    pixels: tuple[int, int, int, int]  # top, left, bottom, right; inside the image

    @property
    def tokens(self) -> int:
        """The number of patches."""
        return self.rows * self.columns


class Tiling:
    """The tiles of an image, numbered row by row; only whole patches are kept together, and edges may be cut short.

    Args:
        size: (height, width) in pixels.
        patch: (height, width) of a patch.
        tile: side of a tile in pixels; as many whole patches as fit, at least one.
    """

    def __init__(self, size: tuple[int, int], patch: tuple[int, int], tile: int) -> None:
        if isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
            raise ValueError(f"tile must be a number of pixels, 1 or more, got {tile!r}")
        self.size, self.patch = size, patch
        self.grid = (-(-size[0] // patch[0]), -(-size[1] // patch[1]))
        self.step = tuple(min(max(1, tile // p), g) for p, g in zip(patch, self.grid, strict=True))
        self.shape = tuple(-(-g // s) for g, s in zip(self.grid, self.step, strict=True))

    def __len__(self) -> int:
        return self.shape[0] * self.shape[1]

    def __getitem__(self, number: int) -> Tile:
        row, column = (i * s for i, s in zip(divmod(number, self.shape[1]), self.step, strict=True))
        rows, columns = min(self.step[0], self.grid[0] - row), min(self.step[1], self.grid[1] - column)
        return Tile(number, row, column, rows, columns, self._pixels(row, column, rows, columns))

    def window(self, top: int, left: int, bottom: int, right: int) -> Tile:
        """The patches that a box of pixels touches, as a tile without a number."""
        height, width = self.size
        if not (0 <= top < bottom <= height and 0 <= left < right <= width):
            raise ValueError(
                f"a region is (top, left, bottom, right) inside {self.size}, got {(top, left, bottom, right)}"
            )
        row, column = top // self.patch[0], left // self.patch[1]
        rows, columns = -(-bottom // self.patch[0]) - row, -(-right // self.patch[1]) - column
        return Tile(-1, row, column, rows, columns, self._pixels(row, column, rows, columns))

    def _pixels(self, row: int, column: int, rows: int, columns: int) -> tuple[int, int, int, int]:
        (height, width), (ph, pw) = self.size, self.patch
        return row * ph, column * pw, min((row + rows) * ph, height), min((column + columns) * pw, width)
