"""Masks in the terms of torch and in ours, and what they mean where all rows share a norm."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..ops.checks import shape_of
from ..ops.masks import allowed_entries, forbids_future

BIAS = -10.0  # an additive entry above this is a bias; between it and NO_EDGE it may be meant as a mask


def padding_of(attn_mask: Tensor | None, batch: int, tokens: int) -> Tensor | None:
    """The tokens of self-attention that a mask hides from every query: (B, N), True = real.

    Such a token is padding, so its own query must leave the Frobenius norm too; a mask over keys alone would let it
    in. ``attn_mask`` is None or broadcastable to (B, H, N, N): boolean (True = allowed) or additive. None stands for
    a mask that hides no token by its shape.
    """
    if attn_mask is None:
        return None
    allowed = allowed_entries(four(attn_mask))
    return allowed.any(2).any(1).expand(batch, tokens)


def require_mutual(attn_mask: Tensor | None, real: Tensor | None, layer: str = "") -> None:
    """Refuse a mask of self-attention under which a token is seen by one that it may not see, unless it is causal.

    Such a mask has a direction, and the norm, which all rows share, would carry information against it. A causal mask
    gets the norm of the rows so far. ``real`` (B, N) marks the tokens that are not padding. A low additive entry that
    is not low enough to remove an edge counts as one that does.
    """
    if attn_mask is None:
        return
    mask = four(attn_mask)
    tokens = max(mask.shape[-2:])
    allowed = mask if mask.dtype == torch.bool else ~(mask <= BIAS)
    if mask.shape[-2] == 1:  # says which tokens are padding, if it says so plainly
        holds = allowed == allowed_entries(mask)
    else:
        allowed = allowed.expand(-1, -1, tokens, tokens)
        if real is not None:
            allowed = allowed & real[:, None, None, :] & real[:, None, :, None]
        one_way = allowed.mT & ~allowed & allowed.any(-1, keepdim=True)  # a row without edges gives nothing away
        holds = ~one_way.flatten(-2).any(-1, keepdim=True) | forbids_future(mask, tokens)
    rule = "Pure InfSA keeps causal masks and those under which tokens see each other, got one with another direction"
    require(
        holds.all(),
        f"{layer}{': ' if layer else ''}{rule} (shape {tuple(attn_mask.shape)}): the norm, which all rows share, would "
        "leak against it; norm='row' would not",
    )


def key_mask_only(
    attn_mask: Tensor | None, batch: int, tokens: int, layer: str, *, cross: bool = False
) -> Tensor | None:
    """A mask that says no more than which tokens are padding, as (B, N); any other is refused, naming the layer.

    This is what Linear-InfSA can keep. In self-attention, rows of padding may hold anything.
    """
    if attn_mask is None:
        return None
    mask = four(attn_mask)
    real = allowed_entries(mask).any(2).any(1).expand(batch, tokens)
    holds = says_only(mask, real[:, None, None, :])
    if mask.shape[2] == tokens and not cross:
        holds = holds | ~real[:, None, :, None]
    rule = f"{layer}: Linear-InfSA keeps masks of padding only, got a mask over pairs of tokens or a bias on the scores"
    require(holds.all(), f"{rule} (shape {tuple(attn_mask.shape)})")
    return real


def says_only(mask: Tensor, allowed: Tensor) -> Tensor:
    """Where a mask allows what it should and adds nothing to the scores."""
    same = allowed_entries(mask) == allowed
    return same if mask.dtype == torch.bool else same & ((mask == 0) | ~allowed_entries(mask))


def require(holds: Tensor, rule: str) -> None:
    """Refuse a mask by its entries; a compiled program, which cannot raise for them, asserts instead."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds, rule)
    elif holds.device.type != "meta" and not bool(holds):
        raise ValueError(rule)


def four(mask: Tensor) -> Tensor:
    """A mask with leading dimensions of size one up to four."""
    if mask.dim() > 4 or mask.dim() < 2:
        raise ValueError(f"attn_mask must have 2 to 4 dimensions, got {mask.dim()}")
    return mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))


def torch_padding(mask: Tensor | None, name: str, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """torch's padding mask (B, N) or (N,) as (True = real, additive part of a float mask)."""
    if mask is None:
        return None, None
    if mask.dim() == 1:
        mask = mask.unsqueeze(0)
    if shape_of(mask) != shape_of(tokens)[:2]:
        raise ValueError(f"{name} must have shape {shape_of(tokens)[:2]}, got {shape_of(mask)}")
    if mask.dtype == torch.bool:
        return ~mask, None
    if not mask.is_floating_point():
        raise TypeError(f"{name} must be boolean or floating, got {mask.dtype}")
    real = allowed_entries(mask)
    return real, mask.masked_fill(~real, 0)


def require_entries(holds: Tensor, rule: str, mask: Tensor) -> None:
    """Refuse a mask by its entries, naming one."""
    known = torch.compiler.is_compiling() or holds.device.type == "meta" or bool(holds.all())
    require(holds.all(), rule if known else f"{rule}, got the entry {mask[~holds][0].item()}")


def is_part(query: Tensor, key: Tensor) -> bool:
    """Whether queries are a view of some of the keys, as in a step with keys kept from before."""
    try:
        same = query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # tensors without storage: transformed, fake
        return False
    return same and query.device.type != "meta" and query.numel() < key.numel()


def sized(x: Tensor, along: int, count: int) -> tuple[int, ...]:
    """The shape of x with another length."""
    return tuple(count if place == along else size for place, size in enumerate(x.shape))


def hidden(mask: Tensor | None, batch: int, tokens: int, device: torch.device, extra: tuple[int, int]) -> Tensor:
    """torch's padding mask (B, N), True or −inf hides, with hidden tokens added at either end."""
    if mask is None:
        mask = torch.zeros(batch, tokens, dtype=torch.bool, device=device)
    mask = mask if mask.dim() == 2 else mask.unsqueeze(0)
    return pad(mask, extra, value=True if mask.dtype == torch.bool else -torch.inf)


def plainly_allowed(attn_mask: Tensor) -> Tensor:
    """Where a mask allows without adding anything: an additive entry other than 0 counts as neither."""
    return attn_mask if attn_mask.dtype == torch.bool else attn_mask == 0


def add_bias(attn_mask: Tensor | None, key_bias: Tensor | None) -> Tensor | None:
    """Join an attention mask with a bias per key (B, S)."""
    if key_bias is None:
        return attn_mask
    bias = key_bias[:, None, None, :]
    if attn_mask is None:
        return bias
    if attn_mask.dtype == torch.bool:
        return torch.where(attn_mask, bias, -torch.inf)
    return attn_mask + bias
