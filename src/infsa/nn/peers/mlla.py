"""MLLA: linear attention with rotary positions and the block design of Mamba."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.checks import check_count
from ...ops.dtypes import cast_output
from ..infsa import merge_heads, project_out, split_heads
from .base import Scaffold, reset_submodules
from .core import CoreAttention, depthwise_kernel, exact, factory, linear_options, upcast
from .layout import Grid, Layout, depthwise

EPS = 1e-6


class MLLACore(CoreAttention):
    """y_i = R(q_i) Σ_j R(k_j)ᵀ v_j / N ÷ (q_i · mean_j k_j + ε), plus a 3×3 depthwise convolution of v.

    q and k are ELU + 1 of one projection; v is the input itself. R rotates adjacent channel pairs, before the
    heads are split: the first half of all D channels by the patch's row, the second half by its column, prefix
    tokens by nothing. The divisor takes q and k unrotated.

    Args:
        dim: width D of the tokens, a multiple of 4.
        num_heads: H; must divide ``dim``.
        grid: (h, w); nothing depends on it.
        **scaffold: see :class:`Attention`.

    Example:
        >>> MLLACore(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "mlla"
    no_map = "rotated queries and keys make its weights negative"

    def __init__(self, dim: int, num_heads: int, **scaffold: Unpack[Scaffold]) -> None:
        super().__init__(dim, num_heads, **scaffold)
        if dim % 4:
            raise ValueError(f"dim must be a multiple of 4 for rows, columns and pairs, got {dim}")
        self.qk = nn.Linear(dim, 2 * dim, **linear_options(scaffold))
        self.conv = depthwise_kernel(dim, 3, scaffold)

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        dtype = q.dtype
        with exact(x):
            q, k, v = upcast(q, k, layout.zero_masked(x))
            q, k = F.elu(q) + 1, layout.zero_masked(F.elu(k) + 1)
            cos, sin = rotation(layout, self.dim, q)
            turned_q, turned_k = (split_heads(rotate(t, cos, sin), self.num_heads) for t in (q, k))
            q, k, value = (split_heads(t, self.num_heads) for t in (q, k, v))
            y = turned_q @ (turned_k.mT @ value / layout.count(value))
            y = y / (q @ layout.token_mean(k).mT + EPS)
            return cast_output(merge_heads(y) + depthwise(self.conv, v, layout), dtype)


class MLLABlock(nn.Module):
    """The whole MLLA block: it replaces a transformer block, not only its attention.

        x ← x + CPE₁(x);  n = LN(x);  u = SiLU(conv(n W_in));  x ← x + W_o (core(u) ⊙ SiLU(n W_g))
        x ← x + CPE₂(x);  x ← x + MLP(LN(x))

    The convolutions are 3×3 and depthwise; prefix tokens pass them by.

    Args:
        dim: width D of the tokens, a multiple of 4.
        num_heads: H; must divide ``dim``.
        grid: (h, w); nothing depends on it.
        mlp_ratio: hidden width of the MLP over D.
        **scaffold: see :class:`Attention`; ``bias`` is that of the attention's five projections.

    Example:
        >>> MLLABlock(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    def __init__(self, dim: int, num_heads: int, *, mlp_ratio: float = 4.0, **scaffold: Unpack[Scaffold]) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        check_count(hidden, f"the MLP's width dim * {mlp_ratio!r}")
        options = factory(scaffold)
        self.core = MLLACore(dim, num_heads, **scaffold)
        self.position_1 = depthwise_kernel(dim, 3, scaffold)
        self.norm_1 = nn.LayerNorm(dim, **options)
        self.gate = nn.Linear(dim, dim, **linear_options(scaffold))
        self.enter = nn.Linear(dim, dim, **linear_options(scaffold))
        self.conv = depthwise_kernel(dim, 3, scaffold)
        self.position_2 = depthwise_kernel(dim, 3, scaffold)
        self.norm_2 = nn.LayerNorm(dim, **options)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden, **options), nn.GELU(), nn.Linear(hidden, dim, **options))

    def reset_parameters(self) -> None:
        """Draw every parameter again, for instance after ``to_empty`` on a meta module."""
        reset_submodules(self)

    def forward(self, x: Tensor, grid: Grid, num_prefix: int = 1, key_mask: Tensor | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D); the arguments are those of :meth:`Attention.forward`."""
        layout = self.core._layout(x, grid, num_prefix, key_mask)
        x = layout.zero_masked(x)
        x = x + self._convolved(self.position_1, x, layout)
        normed = self.norm_1(x)
        entered = self.enter(normed)
        # prefix tokens enter as they are, patches convolved
        u = torch.cat([entered[:, :num_prefix], self._convolved(self.conv, entered, layout)[:, num_prefix:]], 1)
        y = self.core._mix(F.silu(u), layout) * F.silu(self.gate(normed))
        x = x + project_out(y, self.core.extra, self.core.proj)
        x = x + self._convolved(self.position_2, x, layout)
        return x + self.mlp(self.norm_2(x))

    def _convolved(self, conv: nn.Conv2d, x: Tensor, layout: Layout) -> Tensor:
        with exact(x):
            (source,) = upcast(layout.zero_masked(x))
            return cast_output(depthwise(conv, source, layout), x.dtype)


def rotation(layout: Layout, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each channel pair's angle at each token, in the type of ``like``: (N, D/2)."""
    count = dim // 4
    options: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
    frequencies = 10000.0 ** (-torch.arange(count, **options) / count)
    h, w = layout.grid
    by_row = (torch.arange(h, **options)[:, None] * frequencies)[:, None].expand(h, w, count)
    by_column = (torch.arange(w, **options)[:, None] * frequencies).expand(h, w, count)
    angles = F.pad(torch.cat([by_row, by_column], -1).flatten(0, 1), (0, 0, layout.num_prefix, 0))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn adjacent channel pairs: x (B, N, D) by angles (N, D/2)."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
