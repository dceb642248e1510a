"""Sequence parallelism on torch.distributed: the tokens of one image spread over ranks, the result that of one process.

Linear-InfSA adds two small sums over ranks, whatever the number of tokens; Pure InfSA passes blocks of keys and values
around a ring.
"""

from .layers import shard_layers
from .linear import central_pool, linear_attention
from .model import ShardedInfViT, shard_model
from .ranks import PeerError, Ranks, average_gradients
from .ring import pure_attention
from .strips import Strips, strip_of
from .traffic import Traffic

__all__ = [
    "PeerError",
    "Ranks",
    "ShardedInfViT",
    "Strips",
    "Traffic",
    "average_gradients",
    "central_pool",
    "linear_attention",
    "pure_attention",
    "shard_layers",
    "shard_model",
    "strip_of",
]
