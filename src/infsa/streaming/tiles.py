"""The patch grid of an image, cut into tiles."""

from dataclasses import dataclass

from ..models import InfViT
from ..models.stem import margin
from ..nn.peers.layout import Grid

Box = tuple[int, int, int, int]  # top, left, bottom, right, in pixels


@dataclass(frozen=True)
class Tile:
    """A rectangle of the patch grid, and the pixels that it covers."""

    number: int
    row: int  # in patches, as the next three
    column: int
    rows: int
    columns: int
    pixels: Box  # inside the image
    read: Box  # with the margin around them that their tokens see
    lead: Grid  # patches of the margin above and to the left

    @property
    def tokens(self) -> int:
        """The number of patches."""
        return self.rows * self.columns

    @property
    def in_grid(self) -> tuple[slice, slice]:
        """Its rows and columns in the grid of the image."""
        return slice(self.row, self.row + self.rows), slice(self.column, self.column + self.columns)

    @property
    def in_read(self) -> tuple[slice, slice]:
        """Its rows and columns in the grid of what is read."""
        above, left = self.lead
        return slice(above, above + self.rows), slice(left, left + self.columns)


class Tiling:
    """The tiles of an image, numbered row by row; only whole patches are kept together, and edges may be cut short.

    Args:
        size: (height, width) in pixels.
        patch: (height, width) of a patch.
        tile: side of a tile in pixels; as many whole patches as fit, at least one.
        around: the margin of a tile in patches: above and below, left and right.
    """

    def __init__(self, size: Grid, patch: Grid, tile: int, around: tuple[Grid, Grid] = ((0, 0), (0, 0))) -> None:
        if isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
            raise ValueError(f"tile must be a number of pixels, 1 or more, got {tile!r}")
        self.size, self.patch, self.around = size, patch, around
        self.grid = (-(-size[0] // patch[0]), -(-size[1] // patch[1]))
        self.step = tuple(min(max(1, tile // p), g) for p, g in zip(patch, self.grid, strict=True))
        self.shape = tuple(-(-g // s) for g, s in zip(self.grid, self.step, strict=True))

    @classmethod
    def of(cls, model: InfViT, size: Grid, tile: int) -> "Tiling":
        """The tiles of an image for a model."""
        rows, columns = model.patch_embed.patch_size
        return cls(size, (rows, columns), tile, margin(model.patch_embed))

    def __len__(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def most_read(self) -> Grid:
        """Height and width of the most pixels that a tile reads."""
        sides = zip(self.step, self.around, self.patch, self.size, strict=True)
        rows, columns = (min((step + sum(around)) * patch, size) for step, around, patch, size in sides)
        return rows, columns

    def __getitem__(self, number: int) -> Tile:
        row, column = (i * s for i, s in zip(divmod(number, self.shape[1]), self.step, strict=True))
        rows, columns = min(self.step[0], self.grid[0] - row), min(self.step[1], self.grid[1] - column)
        return self._tile(number, row, column, rows, columns)

    def window(self, top: int, left: int, bottom: int, right: int) -> Tile:
        """The patches that a box of pixels touches, as a tile without a number."""
        height, width = self.size
        if not (0 <= top < bottom <= height and 0 <= left < right <= width):
            raise ValueError(
                f"a region is (top, left, bottom, right) inside {self.size}, got {(top, left, bottom, right)}"
            )
        row, column = top // self.patch[0], left // self.patch[1]
        rows, columns = -(-bottom // self.patch[0]) - row, -(-right // self.patch[1]) - column
        return self._tile(-1, row, column, rows, columns)

    def _tile(self, number: int, row: int, column: int, rows: int, columns: int) -> Tile:
        (above, below), (left, right) = self.around
        above, left = min(above, row), min(left, column)
        pixels = self._pixels(row, column, row + rows, column + columns)
        read = self._pixels(row - above, column - left, row + rows + below, column + columns + right)
        return Tile(number, row, column, rows, columns, pixels, read, (above, left))

    def _pixels(self, top: int, left: int, bottom: int, right: int) -> Box:
        """The pixels of a box of patches, as far as the image goes."""
        (height, width), (rows, columns) = self.size, self.patch
        return top * rows, left * columns, min(bottom * rows, height), min(right * columns, width)
