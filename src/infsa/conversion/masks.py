"""Masks of foreign libraries in the terms of Linear-InfSA, beside those of ``infsa.nn``."""

import torch
from torch import Tensor

from ..nn.masks import four, padding_of, require, require_mutual
from ..ops.masks import allowed_entries

__all__ = ["key_mask_only", "padding_of", "require", "require_mutual"]


def key_mask_only(attn_mask: Tensor | None, batch: int, tokens: int, layer: str) -> Tensor | None:
    """A mask that says no more than which tokens are padding, as (B, N); any other is refused, naming the layer.

    This is what Linear-InfSA can keep. Rows of padding may hold anything.
    """
    if attn_mask is None:
        return None
    mask = four(attn_mask)
    real = padding_of(mask, batch, tokens)
    assert real is not None
    same = allowed_entries(mask) == real[:, None, None, :]
    if mask.dtype != torch.bool:
        same = same & ((mask == 0) | ~allowed_entries(mask))
    holds = same | ~real[:, None, :, None] if mask.shape[2] == tokens else same
    rule = f"{layer}: Linear-InfSA keeps masks of padding only, got a mask over pairs of tokens or a bias on the scores"
    require(holds.all(), f"{rule} (shape {tuple(attn_mask.shape)})")
    return real
