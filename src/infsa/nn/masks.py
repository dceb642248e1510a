"""What a mask over pairs of tokens means where all rows share a norm: which tokens are padding, what would leak."""

import torch
from torch import Tensor

from ..ops.masking import allowed_entries, forbids_future

BIAS = -10.0  # an additive entry above this is a bias; between it and NO_EDGE it may be meant as a mask


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
    allowed = allowed_entries(four(attn_mask))
    return allowed.any(2).any(1).expand(batch, tokens)


def require_mutual(attn_mask: Tensor | None, real: Tensor | None, layer: str = "") -> None:
    """Refuse a mask of self-attention under which a token is seen by one that it may not see, unless it is causal.

    Such a mask has a direction, and the norm, which all rows share, would carry information against it. A causal mask
    gets the norm of the rows so far. ``real`` (B, N) marks the tokens that are not padding. A low additive entry that
    is not low enough to remove an edge counts as one that does.

    Example:
        >>> require_mutual(torch.ones(4, 4, dtype=torch.bool).tril(), None)
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


def require(holds: Tensor, rule: str) -> None:
    """Refuse a mask by its entries; a compiled program, which cannot raise for them, asserts instead.

    Example:
        >>> require(torch.tensor(True), "never")
    """
    if torch.compiler.is_compiling():
        torch._assert_async(holds, rule)
    elif holds.device.type != "meta" and not bool(holds):
        raise ValueError(rule)


def four(mask: Tensor) -> Tensor:
    """A mask with leading dimensions of size one up to four.

    Example:
        >>> four(torch.ones(3, 3)).shape
        torch.Size([1, 1, 3, 3])
    """
    if mask.dim() > 4 or mask.dim() < 2:
        raise ValueError(f"attn_mask must have 2 to 4 dimensions, got {mask.dim()}")
    return mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
