"""What the kernels take, as the reason why a call is not for them. Imports no Triton."""

import math

import torch
from torch import Tensor

Projection = tuple[Tensor, Tensor | None]  # weight (H d, D) and bias (H d,)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_WIDTH = 128
FEW_TOKENS = 16  # so few that the two terms of a score's gradient nearly cancel: computed in float32


def _limit(*tensors: Tensor) -> str | None:
    for x in tensors:
        if x.dtype not in DTYPES:
            return f"takes float16, bfloat16 or float32, got {x.dtype}"
        if x.shape[-1] > LARGEST_WIDTH:
            return f"takes head widths up to {LARGEST_WIDTH}, got {x.shape[-1]}"
    return None


def pure_limit(q: Tensor, v: Tensor, attn_mask: Tensor | None, hops: float, dropout_p: float) -> str | None:
    """Why the kernels of Pure InfSA cannot do a call; None if they can."""
    if attn_mask is not None:
        return f"takes no attn_mask, got one of shape {tuple(attn_mask.shape)}"
    if dropout_p > 0:
        return f"takes no dropout, got dropout_p={dropout_p!r}"
    if hops == math.inf:
        return "takes a finite number of hops, got hops=inf"
    return _limit(q, v)


def pool_limit(x: Tensor, width: int, iterations: int, queries: int, causal: str | None) -> str | None:
    """Why the kernels of pool-first Linear-InfSA cannot do a call; None if they can."""
    if iterations != 1:
        return f"takes iterations=1, got {iterations!r}"
    if queries != 1:
        return f"takes queries=1, got {queries!r}"
    if causal is not None:
        return f"takes causal=None, got {causal!r}"
    if width > LARGEST_WIDTH:
        return f"takes head widths up to {LARGEST_WIDTH}, got {width}"
    if x.dtype not in DTYPES:
        return f"takes float16, bfloat16 or float32, got {x.dtype}"
    return None
