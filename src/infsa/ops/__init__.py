"""Attention operators on (B, H, N, d) tensors. Torch only."""

from .dispatch import Dispatch, explain_dispatch
from .linear import (
    LinearState,
    Pooled,
    central_pool,
    energies,
    key_scores,
    linear_attention,
    linear_weights,
    projected_values,
    spread,
)
from .pure import pure_attention, pure_weights
from .pure.decode import PureDecodeState

__all__ = [
    "Dispatch",
    "LinearState",
    "Pooled",
    "PureDecodeState",
    "central_pool",
    "energies",
    "explain_dispatch",
    "key_scores",
    "linear_attention",
    "linear_weights",
    "projected_values",
    "pure_attention",
    "pure_weights",
    "spread",
]
