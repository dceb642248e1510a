"""Masks of foreign libraries in the terms of InfSA: which tokens are padding, what a mask over pairs may keep."""

import torch
from torch import Tensor

from ..ops.masking import allowed_entries, forbids_future


def padding_of(attn_mask: Tensor | None, batch: int, tokens: int) -> Tensor | None:
    """The tokens of self-attention that a mask hides from every query: (B, N), True = real.

    Such a token is padding, so its own query must leave the Frobenius norm too; a mask over keys alone would let it
    in. ``attn_mask`` is None or broadcastable to (B, H, N, N): boolean (True = allowed) or additive. None stands for
    a mask that hides no token by its shape.

    Example:
        >>> padding_of(torch.tensor([[[[True, True, False]]]]), batch=1, tokens=3)
        tensor([[ True,  True, False]])
    """
    if attn_mask is None:
        return None
    allowed = allowed_entries(_four(attn_mask))
    return allowed.any(2).any(1).expand(batch, tokens)


def key_mask_only(attn_mask: Tensor | None, batch: int, tokens: int, layer: str) -> Tensor | None:
    """A mask that says no more than which tokens are padding, as (B, N); any other is refused, naming the layer.

    This is what Linear-InfSA can keep. Rows of padding may hold anything.

    Example:
        >>> key_mask_only(torch.tensor([[[[0.0, -torch.inf]]]]), 1, 2, "blocks.0.attn")
        tensor([[ True, False]])
    """
    if attn_mask is None:
        return None
    mask = _four(attn_mask)
    real = padding_of(mask, batch, tokens)
    assert real is not None
    same = allowed_entries(mask) == real[:, None, None, :]
    if mask.dtype != torch.bool:
        same = same & ((mask == 0) | ~allowed_entries(mask))
    holds = same | ~real[:, None, :, None] if mask.shape[2] == tokens else same
    rule = f"{layer}: Linear-InfSA keeps masks of padding only, got a mask over pairs of tokens or a bias on the scores"
    require(holds.all(), f"{rule} (shape {tuple(attn_mask.shape)})")
    return real


def require_mutual(attn_mask: Tensor | None, real: Tensor | None, layer: str = "") -> None:
    """Refuse a mask of self-attention under which a token is seen by one that it may not see, unless it is causal.

    Such a mask has a direction, and the norm, which all rows share, would carry information against it. A causal mask
    gets the norm of the rows so far. ``real`` (B, N) marks the tokens that are not padding.

    Example:
        >>> require_mutual(torch.ones(4, 4, dtype=torch.bool).tril(), None)
    """
    if attn_mask is None or attn_mask.shape[-2] == 1:
        return
    mask = _four(attn_mask)
    tokens = mask.shape[-2]
    allowed = allowed_entries(mask).expand(-1, -1, -1, tokens)
    if real is not None:
        allowed = allowed & real[:, None, None, :] & real[:, None, :, None]
    one_way = allowed.mT & ~allowed & allowed.any(-1, keepdim=True)  # a row without edges gives nothing away
    holds = ~one_way.flatten(-2).any(-1, keepdim=True) | forbids_future(mask, tokens)
    rule = "Pure InfSA keeps causal masks and those under which tokens see each other, got one with another direction"
    require(
        holds.all(),
        f"{layer}{': ' if layer else ''}{rule} (shape {tuple(attn_mask.shape)}): the norm, which all rows share, would "
        "leak against it",
    )


def require(holds: Tensor, rule: str) -> None:
    """Refuse a mask by its entries; a compiled program, which cannot raise for them, asserts instead.

    Example:
        >>> require(torch.tensor(True), "never")
    """
    if torch.compiler.is_compiling():
        torch._assert_async(holds, rule)
    elif holds.device.type != "meta" and not bool(holds):
        raise ValueError(rule)


def _four(mask: Tensor) -> Tensor:
    """A mask with leading dimensions of size one up to four."""
    if mask.dim() > 4 or mask.dim() < 2:
        raise ValueError(f"attn_mask must have 2 to 4 dimensions, got {mask.dim()}")
    return mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
