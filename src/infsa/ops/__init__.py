"""Attention operators on (B, H, N, d) tensors. Torch only."""

from .decode import PureDecodeState
from .linear import Pooled, central_pool, linear_attention, linear_weights, spread
from .projected import projected_pool, projected_values
from .pure import pure_attention, pure_weights
from .state import LinearState, energies, key_scores

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
