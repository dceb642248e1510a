"""Linformer: softmax over keys and values compressed along the tokens."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from ...ops.checks import check_count
from ...ops.dtypes import cast_output
from ..infsa import merge_heads
from .base import Scaffold
from .core import QKVAttention, exact, factory, upcast
from .layout import Layout, resize


class Linformer(QKVAttention):
    """y = softmax(q (Eᵀk)ᵀ / √d) (Fᵀv), E and F learned, N×r, shared by the heads.

    E and F have one row per token. At another grid their patch rows are resized over the 2-D grid (bicubic)
    and multiplied by h₀w₀ / (h·w), so that a compressed token remains a sum over the whole image and keeps its
    scale; prefix rows stay as they are.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        grid: (h₀, w₀), the grid of E and F.
        rank: r, the number of compressed tokens.
        share_kv: use E for values too.
        **scaffold: see :class:`Attention`.

    Example:
        >>> Linformer(192, 3, grid=(14, 14), rank=64)(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "linformer"
    no_map = "its effective weights over tokens can be negative"
    prefix_table = True

    def __init__(
        self, dim: int, num_heads: int, *, rank: int = 256, share_kv: bool = False, **scaffold: Unpack[Scaffold]
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        check_count(rank, "rank")
        self.rank = rank
        tokens = self.num_prefix + self.grid[0] * self.grid[1]
        self.compress_k = nn.Parameter(torch.empty(tokens, rank, **factory(scaffold)))
        self.compress_v: nn.Parameter | None
        if share_kv:
            self.register_parameter("compress_v", None)
        else:
            self.compress_v = nn.Parameter(torch.empty(tokens, rank, **factory(scaffold)))
        self.reset_own()

    def reset_own(self) -> None:
        """Draw the parameters and buffers that belong to no submodule."""
        bound = 1 / math.sqrt(self.rank)
        nn.init.uniform_(self.compress_k, -bound, bound)
        if self.compress_v is not None:
            nn.init.uniform_(self.compress_v, -bound, bound)

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self._project(x)
        dtype = q.dtype
        with exact(q):
            q, k, v, compress_k = upcast(q, layout.zero_masked(k), layout.zero_masked(v), self.compress_k)
            by_k = self._resized(compress_k, layout)  # (N, r)
            by_v = by_k if self.compress_v is None else self._resized(self.compress_v.to(q.dtype), layout)
            scores = q @ (by_k.mT @ k).mT / math.sqrt(self.head_dim)  # (B, H, N, r)
            y = scores.softmax(-1) @ (by_v.mT @ v)
        return cast_output(merge_heads(y), dtype)

    def _resized(self, compress: Tensor, layout: Layout) -> Tensor:
        """E or F at the grid of the call: (N, r)."""
        (h, w), (base_h, base_w) = layout.grid, self.grid
        prefix, patches = compress[: self.num_prefix], compress[self.num_prefix :]
        table = resize(patches.mT.unflatten(-1, self.grid), layout.grid)  # (r, h, w)
        return torch.cat([prefix, table.flatten(1).mT * (base_h * base_w / (h * w))])
