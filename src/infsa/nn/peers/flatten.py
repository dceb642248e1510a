"""FLatten: linear attention with focused features and a depthwise convolution that restores rank."""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.dtypes import cast_output
from ..infsa import merge_heads, split_heads
from .base import Scaffold
from .core import QKVAttention, depthwise_kernel, exact, factory, upcast
from .layout import Layout, depthwise, resize

EPS = 1e-6


class FLatten(QKVAttention):
    """y_i = f(q_i) Σ_j f(k_j)ᵀ v_j / N ÷ (f(q_i) · mean_j f(k_j) + ε), plus a convolution of v over the patches.

    f(x) = ‖u‖ u^p / ‖u^p‖ with u = (ReLU(x) + ε) / softplus(s): same norm, sharper direction. Norms run over
    all D channels, before the heads are split. Keys get a learned position term first, resized (bicubic) to
    the grid. The convolution's d kernels are shared by the heads.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        grid: (h, w), the grid of the position table.
        power: p.
        kernel_size: of the convolution, odd.
        **scaffold: see :class:`Attention`.

    Example:
        >>> FLatten(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "flatten"

    def __init__(
        self, dim: int, num_heads: int, *, power: float = 3, kernel_size: int = 5, **scaffold: Unpack[Scaffold]
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        if not power >= 1:
            raise ValueError(f"power must be at least 1, got {power!r}")
        self.power = power
        self.scale = nn.Parameter(torch.empty(dim, **factory(scaffold)))
        self.position = nn.Parameter(torch.empty(dim, *self.grid, **factory(scaffold)))
        self.conv = depthwise_kernel(self.head_dim, kernel_size, scaffold)
        self.reset_own()

    def reset_own(self) -> None:
        """Draw the parameters and buffers that belong to no submodule."""
        nn.init.zeros_(self.scale)
        nn.init.zeros_(self.position)

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        with exact(q):
            phi_q, phi_k = self._kernel(q, k, layout)
            value = split_heads(layout.zero_masked(v).to(phi_k.dtype), self.num_heads)
            y = phi_q @ (phi_k.mT @ value / layout.count(phi_k)) / self._mass(phi_q, phi_k, layout)
            local = depthwise(self.conv, value.flatten(0, 1), layout).unflatten(0, value.shape[:2])
            return cast_output(merge_heads(y + local), q.dtype)

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        """The linear part only: the convolution is not a weighting of all tokens."""
        q, k, _ = self.qkv(x).chunk(3, -1)
        with exact(q):
            phi_q, phi_k = self._kernel(q, k, layout)
            return phi_q @ (phi_k / layout.count(phi_k)).mT / self._mass(phi_q, phi_k, layout)

    def _kernel(self, q: Tensor, k: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """f(q) and f(k), the latter zero at masked keys: (B, H, N, d)."""
        q, k, scale, position = upcast(q, k, self.scale, self.position)
        k = k + layout.tokens(resize(position, layout.grid).unsqueeze(0))
        focused_q, focused_k = self._focus(q, scale), self._focus(k, scale)
        phi_k = split_heads(layout.zero_masked(focused_k), self.num_heads)
        return split_heads(focused_q, self.num_heads), phi_k

    def _focus(self, x: Tensor, scale: Tensor) -> Tensor:
        u = (F.relu(x) + EPS) / F.softplus(scale)  # (B, N, D)
        # f does not depend on the scale of u^p; dividing by the maximum keeps the power in range
        sharp = (u / u.detach().amax(-1, keepdim=True)).pow(self.power)
        return u.norm(dim=-1, keepdim=True) * sharp / sharp.norm(dim=-1, keepdim=True)

    def _mass(self, phi_q: Tensor, phi_k: Tensor, layout: Layout) -> Tensor:
        return phi_q @ layout.token_mean(phi_k).mT + EPS
