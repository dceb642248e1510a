"""Agent attention: a few pooled queries stand between all queries and all keys."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from ...ops.checks import check_count
from ...ops.dtypes import cast_output
from ..infsa import merge_heads, split_heads
from .base import Scaffold
from .core import QKVAttention, depthwise_kernel, exact, factory, upcast
from .layout import Grid, Layout, depthwise, masked_softmax, pool, resize

TABLE = (7, 7)  # the coarse table of a position bias


class AgentBias(nn.Module):
    """A learned bias between n agents and all tokens: (H, n, N).

    For a patch it is the sum of a 7×7 table resized to the grid, a row term and a column term, all resized
    linearly to the grid of the call; each prefix token has its own entry.
    """

    def __init__(
        self,
        num_heads: int,
        agents: int,
        grid: Grid,
        num_prefix: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()

        def terms(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(num_heads, agents, *shape, device=device, dtype=dtype))

        self.table = terms(*TABLE)
        self.rows = terms(grid[0], 1)
        self.columns = terms(1, grid[1])
        self.prefix = terms(num_prefix) if num_prefix else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all terms from a truncated normal distribution."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        """The bias at this grid."""

        def resized(terms: Tensor, size: Grid) -> Tensor:
            return resize(terms.to(dtype).flatten(0, 1), size, "bilinear").unflatten(0, terms.shape[:2])

        h, w = grid
        patches = resized(self.table, grid) + resized(self.rows, (h, 1)) + resized(self.columns, (1, w))
        bias = patches.flatten(2)
        return bias if self.prefix is None else torch.cat([self.prefix.to(dtype), bias], -1)


class AgentAttention(QKVAttention):
    """y = softmax(q aᵀ / √d + B₂) softmax(a kᵀ / √d + B₁) v, plus a convolution of v over the patches.

    The agents a are the patches' queries, average-pooled to √n×√n, whatever the grid. Masked patches are left
    out of the averages; an agent without a real patch is left out of the first softmax. The map is the product
    of the two softmax matrices.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        grid: (h, w), the size of the row and column terms of the biases.
        agents: n, a square number.
        position_bias: whether B₁ and B₂ exist.
        kernel_size: of the depthwise convolution, odd.
        **scaffold: see :class:`Attention`.

    Example:
        >>> AgentAttention(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "agent"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        agents: int = 49,
        position_bias: bool = True,
        kernel_size: int = 3,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        self.prefix_table = position_bias
        check_count(agents, "agents")
        if math.isqrt(agents) ** 2 != agents:
            raise ValueError(f"agents must be a square number, got {agents!r}")
        self.side = math.isqrt(agents)
        self.conv = depthwise_kernel(dim, kernel_size, scaffold)
        sizes = (num_heads, agents, self.grid, self.num_prefix)
        self.bias_k = AgentBias(*sizes, **factory(scaffold)) if position_bias else None
        self.bias_q = AgentBias(*sizes, **factory(scaffold)) if position_bias else None

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        with exact(q):
            from_agents, to_agents = self._softmaxes(q, k, layout)
            value = layout.zero_masked(v).to(to_agents.dtype)
            y = from_agents @ (to_agents @ split_heads(value, self.num_heads))
            return cast_output(merge_heads(y) + depthwise(self.conv, value, layout), q.dtype)

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        """Without the convolution, which is not a weighting of all tokens."""
        q, k, _ = self.qkv(x).chunk(3, -1)
        with exact(q):
            from_agents, to_agents = self._softmaxes(q, k, layout)
            return from_agents @ to_agents

    def _softmaxes(self, q: Tensor, k: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Queries over agents (B, H, N, n), agents over keys (B, H, n, N)."""
        q, k = upcast(q, k)
        mask = None if layout.key_mask is None else layout.image(layout.key_mask.unsqueeze(-1))
        pooled, filled = pool(layout.image(layout.zero_masked(q)), (self.side, self.side), mask)
        agents = split_heads(pooled.flatten(2).mT, self.num_heads) / math.sqrt(self.head_dim)
        q, k = split_heads(q, self.num_heads), split_heads(k, self.num_heads)
        to_agents, from_agents = agents @ k.mT, q @ agents.mT
        if self.bias_k is not None and self.bias_q is not None:
            to_agents = to_agents + self.bias_k(layout.grid, q.dtype)
            from_agents = from_agents + self.bias_q(layout.grid, q.dtype).mT
        some = None if filled is None else filled.flatten(2).unsqueeze(2)  # (B, 1, 1, n)
        return masked_softmax(from_agents, some), masked_softmax(to_agents, layout.real_keys())
