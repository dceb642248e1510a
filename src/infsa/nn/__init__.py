"""Attention layers as ``torch.nn`` modules."""

from . import peers
from .decay import Decay
from .infsa import LinearInfSA, PureInfSA
from .multihead import MultiheadAttention

__all__ = ["Decay", "LinearInfSA", "MultiheadAttention", "PureInfSA", "peers"]
