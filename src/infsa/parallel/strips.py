"""An image cut into horizontal strips, one per rank, and what a strip must know of the whole."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ops.checks import check_count
from .ranks import Group, Ranks


@dataclass(frozen=True)
class Strips:
    """The patch rows of every rank, from the top of the image down, and which rank this is.

    Example:
        >>> Strips(rows=(8, 8, 4), columns=14, rank=2, num_prefix=1).tokens
        (113, 112, 56)
    """

    rows: tuple[int, ...]
    columns: int
    rank: int
    num_prefix: int  # prefix tokens, which live on rank 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of every rank."""
        prefixes = [self.num_prefix, *[0] * (len(self.rows) - 1)]
        return tuple(prefix + rows * self.columns for prefix, rows in zip(prefixes, self.rows, strict=True))

    @property
    def grid(self) -> tuple[int, int]:
        """The patch grid of the whole image."""
        return sum(self.rows), self.columns

    @property
    def own(self) -> slice:
        """This rank's patch rows."""
        first = sum(self.rows[: self.rank])
        return slice(first, first + self.rows[self.rank])


def strip_of(height: int, patch: int, group: Group) -> slice:
    """The pixel rows of an image that this rank should read: whole patches, split as evenly as possible."""
    check_count(height, "height")
    check_count(patch, "patch")
    ranks = Ranks.of(group)
    rows, more = divmod(-(-height // patch), ranks.size)
    first = ranks.rank * rows + min(ranks.rank, more)
    stop = first + rows + (ranks.rank < more)
    return slice(min(first * patch, height), min(stop * patch, height))


def check_heights(heights: Sequence[int], patch: int, pads: bool) -> tuple[int, ...]:
    """Patch rows per rank; only the lowest strip may end inside a patch, and only if the model pads."""
    filled = [rank for rank, height in enumerate(heights) if height]
    if not filled:
        raise ValueError(f"at least one rank must hold a part of the image, got strips of heights {list(heights)}")
    for rank in filled:
        if heights[rank] % patch and not (pads and rank == filled[-1]):
            hint = "" if pads else "; dynamic_img_pad=True pads the lowest one"
            raise ValueError(f"strip heights must be multiples of the patch {patch}, got {list(heights)}{hint}")
    return tuple(-(-height // patch) for height in heights)
