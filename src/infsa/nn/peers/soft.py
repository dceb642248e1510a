"""SOFT: a Gaussian kernel instead of softmax, low rank through landmarks."""

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.checks import check_count
from ...ops.dtypes import cast_output
from ..infsa import merge_heads, split_heads
from .base import Scaffold
from .core import CoreAttention, depthwise_kernel, exact, factory, linear_options, upcast
from .layout import Grid, Layout, affine, depthwise, pool

RIDGE = 0.01  # added to the diagonal of the landmarks' kernel


class SOFT(CoreAttention):
    """y = K₁ M K₁ᵀ v, plus a convolution of v over the patches; K₁ = G(q, l), G(a, b) = exp(−‖a − b‖² / 2).

    Queries and keys are one projection, scaled by d^{-1/4}. M is the Newton inverse K₂⁺ of K₂ + 0.01·I,
    K₂ = G(l, l), or D^{-1/2} K₂⁺ D^{-1/2} with D the row sums of K₂. The gradient takes the inverse as exact.

    The landmarks l are GELU(LayerNorm(convolution of the patches' queries)), with a kernel of r = grid / 7 and
    the same stride: 7×7 of them at the grid of construction (fewer along a side shorter than 7). At another
    grid the queries are average-pooled to 7·r first, so their number stays and the cost is linear in N.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        grid: (h, w), which fixes r.
        landmarks: landmarks along each side.
        normalize: divide by D. Without it the result grows with the number of tokens.
        newton_steps: steps of Y ← 2Y − YAY.
        kernel_size: of the convolution of v, odd; one kernel per head.
        **scaffold: see :class:`Attention`.

    Example:
        >>> SOFT(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "soft"
    no_map = "the inverse of its landmark kernel makes weights negative"
    no_mask = "its landmarks are convolutions over the whole grid"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        landmarks: int = 7,
        normalize: bool = True,
        newton_steps: int = 20,
        kernel_size: int = 3,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        check_count(landmarks, "landmarks")
        check_count(newton_steps, "newton_steps")
        self.normalize, self.newton_steps = normalize, newton_steps
        sides = min(landmarks, self.grid[0]), min(landmarks, self.grid[1])
        stride = self.grid[0] // sides[0], self.grid[1] // sides[1]
        self.pooled: Grid = (sides[0] * stride[0], sides[1] * stride[1])
        width = self.head_dim
        self.q = nn.Linear(dim, dim, **linear_options(scaffold))
        self.v = nn.Linear(dim, dim, **linear_options(scaffold))
        self.landmark_conv = nn.Conv2d(width, width, stride, stride=stride, **factory(scaffold))
        self.landmark_norm = nn.LayerNorm(width, **factory(scaffold))
        self.conv = depthwise_kernel(num_heads, kernel_size, scaffold, bias=False)

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, v = split_heads(self.q(x), self.num_heads), split_heads(self.v(x), self.num_heads)
        dtype = q.dtype
        with exact(q):
            q, v = upcast(q, v)
            q = q * self.head_dim**-0.25
            landmarks = self._landmarks(q, layout)  # (B, H, m, d)
            to_landmarks = torch.exp(-squared_distances(q, landmarks) / 2)  # K₁, (B, H, N, m)
            y = to_landmarks @ (self._inverse(landmarks) @ (to_landmarks.mT @ v))
            by_channel = v.permute(0, 3, 2, 1)  # (B, d, N, H): a head's kernel serves all its channels
            local = depthwise(self.conv, by_channel.flatten(0, 1), layout)
            y = y + local.unflatten(0, by_channel.shape[:2]).permute(0, 3, 2, 1)
        return cast_output(merge_heads(y), dtype)

    def _landmarks(self, q: Tensor, layout: Layout) -> Tensor:
        """q (B, H, N, d) -> (B, H, m, d)."""
        image = layout.image(q.flatten(0, 1))  # (B·H, d, h, w)
        image, _ = pool(image, self.pooled)
        conv, norm = self.landmark_conv, self.landmark_norm
        rows = F.conv2d(image, *affine(conv, q.dtype), stride=conv.stride).flatten(2).mT  # (B·H, m, d)
        rows = F.layer_norm(rows, (self.head_dim,), *affine(norm, q.dtype), norm.eps)
        return F.gelu(rows).unflatten(0, q.shape[:2])

    def _inverse(self, landmarks: Tensor) -> Tensor:
        """M: (B, H, m, m)."""
        # distances do not see a shift, and small norms cancel less; a landmark is at distance 0 from itself
        centred = landmarks - landmarks.mean(-2, keepdim=True)
        identity = torch.eye(landmarks.shape[-2], dtype=landmarks.dtype, device=landmarks.device)
        kernel = torch.exp(-squared_distances(centred, centred) * (1 - identity) / 2)
        degree = kernel.sum(-1, keepdim=True)  # >= 1
        inverse = newton_inverse(kernel, degree.amax(-2, keepdim=True), identity, self.newton_steps)
        if not self.normalize:
            return inverse
        return inverse * degree.rsqrt() * degree.rsqrt().mT


def newton_inverse(kernel: Tensor, largest_degree: Tensor, identity: Tensor, steps: int) -> Tensor:
    """Y ≈ (K + 0.01·I)⁻¹ by Y ← 2Y − YAY; its gradient is that of the exact inverse, −Yᵀ G Yᵀ."""
    matrix = kernel + RIDGE * identity
    fixed = matrix.detach()
    inverse = 1.8 / largest_degree.detach().square() * fixed
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ fixed @ inverse
    return inverse - inverse @ (matrix - fixed) @ inverse


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² for all pairs: (..., n, d), (..., m, d) -> (..., n, m)."""
    squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT
    return (squares - 2 * a @ b.mT).clamp_min(0)
