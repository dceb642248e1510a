"""Where tokens lie: prefix tokens first, then the patches of a grid, row by row."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.tracing import surely

Grid = tuple[int, int]
MANY_CHANNELS = 512  # of a table that is resized


@dataclass(frozen=True)
class Layout:
    """The grid of the patches, the number of tokens before them, and which tokens are real (None: all)."""

    grid: Grid
    num_prefix: int
    key_mask: Tensor | None  # (B, N)

    def image(self, x: Tensor) -> Tensor:
        """The patches as an image, a view: (B, N, C) -> (B, C, h, w)."""
        return x[:, self.num_prefix :].mT.unflatten(-1, self.grid)

    def tokens(self, image: Tensor) -> Tensor:
        """The inverse of ``image``, with zero prefix tokens: (B, C, h, w) -> (B, N, C)."""
        return F.pad(image.flatten(2).mT, (0, 0, self.num_prefix, 0))

    def zero_masked(self, x: Tensor) -> Tensor:
        """Zero the rows of masked tokens, NaN included: x (B, N, C) or (B, H, N, C)."""
        if self.key_mask is None:
            return x
        mask = self.key_mask if x.dim() == 3 else self.key_mask[:, None]
        return x.masked_fill(~mask.unsqueeze(-1), 0)

    def real_keys(self) -> Tensor | None:
        """The mask for scores (B, H, N, N): (B, 1, 1, N)."""
        return None if self.key_mask is None else self.key_mask[:, None, None]

    def token_mean(self, x: Tensor) -> Tensor:
        """The mean over real tokens of x (B, H, N, C), whose masked rows are zero: (B, H, 1, C)."""
        return x.sum(-2, keepdim=True) / self.count(x)

    def count(self, like: Tensor) -> Tensor:
        """The number of real tokens, at least 1, to divide sums (B, H, N, C) by: (B or 1, 1, 1, 1)."""
        if self.key_mask is None:
            return like.new_ones(1, 1, 1, 1) * like.shape[-2]
        return self.key_mask.sum(-1).clamp_min(1).to(like.dtype)[:, None, None, None]


def has_size(image: Tensor, size: Grid) -> bool:
    """Whether an image (..., h, w) certainly has this size; asking leaves dynamic sizes dynamic."""
    h, w = image.shape[-2:]
    if torch.jit.is_tracing():  # sizes are tensors then
        return (int(h), int(w)) == tuple(size)
    return surely(h == size[0]) and surely(w == size[1])


def resize(table: Tensor, grid: Grid, mode: str = "bicubic") -> Tensor:
    """Resize a learned table (C, h0, w0) to the grid, pixel areas aligned: (C, h, w).

    On a GPU, PyTorch's kernel has one thread per pixel for all channels, and its gradient adds atomically: there, many
    channels and gradients are left to matrix products.
    """
    if has_size(table, grid):
        return table
    if table.is_cuda and (torch.is_grad_enabled() or table.shape[0] >= MANY_CHANNELS):
        return resize_by_products(table, grid, mode)
    return F.interpolate(table.unsqueeze(0), size=grid, mode=mode, align_corners=False).squeeze(0)


def resize_by_products(table: Tensor, grid: Grid, mode: str = "bicubic") -> Tensor:
    """The same as two matrix products."""
    rows, columns = table.shape[1:]
    if not surely(rows == grid[0]):
        table = resizing(grid[0], rows, table, mode) @ table
    return table if surely(columns == grid[1]) else table @ resizing(grid[1], columns, table, mode).mT


def resizing(size: int, base: int, like: Tensor, mode: str = "bicubic") -> Tensor:
    """The matrix (size, base) that resizes an axis: what PyTorch makes of the identity."""
    identity = torch.eye(base, dtype=like.dtype, device=like.device)[None, :, :, None]
    return F.interpolate(identity, size=(size, 1), mode=mode, align_corners=False)[0, :, :, 0].mT


def bins(length: int, count: int, like: Tensor) -> Tensor:
    """Membership of positions in the bins of adaptive pooling: (count, length), zeros and ones.

    Bin i covers ⌊i·length/count⌋ to ⌈(i+1)·length/count⌉, so bins overlap where count does not divide length.
    """
    bin_ = torch.arange(count, device=like.device)[:, None]
    position = torch.arange(length, device=like.device)
    member = (position >= bin_ * length // count) & (position * count < (bin_ + 1) * length)
    return member.to(like.dtype)


def pool(image: Tensor, size: Grid, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Adaptive average pooling over real patches: (B, C, h, w) -> (B, C, *size), and which bins have any.

    ``mask`` is (B, 1, h, w); patches outside it must be zero. As two small matrix products it is deterministic
    and takes a mask and any size.
    """
    if mask is None and has_size(image, size):
        return image, None
    rows = bins(image.shape[-2], size[0], image)
    columns = bins(image.shape[-1], size[1], image)
    sums = rows @ image @ columns.mT
    if mask is None:
        return sums / (rows.sum(-1)[:, None] * columns.sum(-1)), None
    count = rows @ mask.to(image.dtype) @ columns.mT  # (B, 1, *size)
    return sums / count.clamp_min(1), count > 0


def depthwise(conv: nn.Conv2d, x: Tensor, layout: Layout) -> Tensor:
    """A depthwise convolution of the patches in the type of x; prefix tokens get zero: (B, N, C) -> (B, N, C).

    Masked rows of x must be zero: they then count as much as what lies outside the image.
    """
    weight, bias = affine(conv, x.dtype)
    padding = weight.shape[-1] // 2
    return layout.tokens(F.conv2d(layout.image(x), weight, bias, padding=padding, groups=conv.groups))


def affine(module: nn.Linear | nn.Conv2d | nn.LayerNorm, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a module in another type."""
    return module.weight.to(dtype), None if module.bias is None else module.bias.to(dtype)


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the last axis among allowed entries; zero where none is allowed."""
    if allowed is None:
        return scores.softmax(-1)
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~allowed, 0)
