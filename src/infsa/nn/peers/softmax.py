"""Softmax attention: the baseline."""

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from ...ops.checks import check_dropout
from ...ops.dtypes import cast_output
from ..infsa import merge_heads
from .base import Scaffold
from .core import QKVAttention, exact, upcast
from .layout import Layout, masked_softmax


class SoftmaxAttention(QKVAttention):
    """y = softmax(q kᵀ / √d) v.

    Args:
        dim, num_heads, **scaffold: see :class:`Attention`; ``grid`` changes nothing.
        fused: use ``scaled_dot_product_attention``; otherwise the N×N matrix is formed, in float32. Fused kernels
            recompute probabilities in the backward pass; scores above about 1e6 make their gradients explode.
        dropout: on the attention weights, in training.

    Example:
        >>> SoftmaxAttention(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "softmax"

    def __init__(
        self, dim: int, num_heads: int, *, fused: bool = True, dropout: float = 0.0, **scaffold: Unpack[Scaffold]
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        check_dropout(dropout, "dropout")
        self.fused, self.dropout = fused, dropout

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self._project(x)
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=layout.real_keys(), dropout_p=dropout)
            return merge_heads(y)
        with exact(q):
            weights = torch.dropout(_probabilities(q, k, layout), dropout, self.training)
            y = weights @ v.to(weights.dtype)
        return cast_output(merge_heads(y), q.dtype)

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, _ = self._project(x)
        with exact(q):
            return _probabilities(q, k, layout)


def _probabilities(q: Tensor, k: Tensor, layout: Layout) -> Tensor:
    """softmax(q kᵀ / √d) in the accumulation dtype: (B, H, N, N)."""
    q, k = upcast(q, k)
    return masked_softmax(q @ k.mT / math.sqrt(q.shape[-1]), layout.real_keys())
