"""Attention operators on (B, H, N, d) tensors. Torch only."""

from .linear import Pooled, central_pool, linear_attention, linear_weights, spread
from .linear.projected import projected_pool, projected_values
from .linear.state import LinearState, energies, key_scores
from .pure import pure_attention, pure_weights
from .pure.decode import PureDecodeState

__all__ = [
    "LinearState",
    "Pooled",
    "PureDecodeState",
    "central_pool",
    "energies",
    "key_scores",
    "linear_attention",
    "linear_weights",
    "projected_pool",
    "projected_values",
    "pure_attention",
    "pure_weights",
    "spread",
]
