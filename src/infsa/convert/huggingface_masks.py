"""The masks that InfSA asks Hugging Face models for, and what it reads from any mask they pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from ..ops.masking import allowed_entries
from .masks import key_mask_only, padding_of, require


def infsa_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """The mask of a whole forward pass: (B, 1, 1, Nk) for padding alone, (B, 1, Nq, Nk) otherwise, True = allowed.

    Causality of whole sequences is not in it, because layers know it by themselves; None stands for nothing else.
    Where a model adds a bias to its masks (BEiT), they are additive. Packed sequences, and other masks that a model
    composes, are refused: one norm would span what the mask keeps apart.

    Example:
        >>> infsa_mask(1, 3, 3, mask_function=bidirectional_mask_function, attention_mask=torch.ones(1, 3).bool()).shape
        torch.Size([1, 1, 1, 3])
    """
    whole = isinstance(q_offset, int) and q_offset == 0 and kv_offset == 0 and q_length == kv_length > 1
    if mask_function is bidirectional_mask_function or (whole and mask_function is causal_mask_function):
        if attention_mask is None:
            return None
        missing = max(kv_offset + kv_length - attention_mask.shape[-1], 0)
        real = pad(attention_mask, (0, missing))[:, None, None, kv_offset : kv_offset + kv_length]
        biased = hasattr(options.get("config"), "use_shared_relative_position_bias")
        return torch.where(real, 0.0, -torch.inf).to(dtype) if biased else real
    shape: dict[str, Any] = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length}
    shape |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": mask_function, "device": device}
    mask = sdpa_mask(**shape, attention_mask=attention_mask, local_size=local_size, **options)
    if mask is None:
        return None
    if mask_function is not causal_mask_function:
        pairs = sdpa_mask(**shape, attention_mask=None, **{**options, "allow_is_causal_skip": False})
        row = torch.arange(q_length, device=device)[:, None] + q_offset
        column = torch.arange(kv_length, device=device) + kv_offset
        expected = column <= row
        if local_size is not None:
            expected = expected & (column > row - local_size)
        require(
            (pairs == expected).all(),
            "InfSA keeps causal masks and windows; packed sequences and composed masks would share one norm",
        )
    return mask


def four_dimensions(mask: Any, name: str) -> Tensor | None:
    """A layer's mask as (B or 1, H or 1, Nq or 1, Nk), or refused."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        got = f"{mask.dim()}-D tensor" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"{name}: a mask must be a 4-D tensor, got a {got}; masks between groups of queries "
            "(denoising) and those of flash or flex attention cannot be kept"
        )
    return mask


def past_of(places: Tensor, keys: int) -> Tensor:
    """Where a key is not later than a token, for tokens at ``places`` (t,): (1, 1, t, Nk)."""
    return (torch.arange(keys, device=places.device) <= places[:, None])[None, None]


def require_no_future(mask: Tensor, places: Tensor, name: str) -> None:
    """Refuse a mask that lets a token, at ``places`` (t,), see a later one: a causal layer has no norm for that."""
    rule = f"{name}: this layer is causal, but its mask lets tokens see later ones; pass is_causal=False to mean it"
    require(~(allowed_entries(mask) & ~past_of(places, mask.shape[-1])).any(), rule)


def says_padding(mask: Tensor | None) -> bool:
    """Whether a mask is the same for all queries and heads and adds nothing: then it says which keys are padding."""
    return mask is not None and mask.dtype == torch.bool and mask.shape[1] == mask.shape[2] == 1


def real_rows(mask: Tensor | None, tokens: int) -> Tensor | None:
    """Which of a decoder's tokens are real by its mask, (B or 1, t).

    Rows that see no key are padding on the left; padding on the right cannot reach the rows before it.
    """
    if mask is None:
        return None
    if says_padding(mask) and tokens > 1:
        return mask[:, 0, 0]
    return allowed_entries(mask).any(-1).any(1)


def causal_key_mask(mask: Tensor | None, batch: int, queries: int, keys: int, name: str) -> Tensor | None:
    """The padding (B, Nk) of a causal mask that says no more than causality and padding; any other is refused."""
    if mask is None:
        return None
    if says_padding(mask) and queries > 1:
        return mask[:, 0, 0].expand(batch, keys)
    real = padding_of(mask, batch, keys)
    assert real is not None
    row = torch.arange(queries, device=mask.device)[:, None] + keys - queries
    expected = real[:, None, None, :] & (torch.arange(keys, device=mask.device) <= row)
    kept = (allowed_entries(mask) == expected) | ~real[:, None, keys - queries :, None]
    if mask.dtype != torch.bool:
        kept = kept & ((mask == 0) | ~allowed_entries(mask))
    require(kept.all(), f"{name}: causal Linear-InfSA keeps causality and padding only, got another mask over pairs")
    return real


def cross_key_mask(mask: Tensor | None, batch: int, keys: int, name: str) -> Tensor | None:
    """The padding (B, Nk) of a cross-attention's mask that is the same for every query; any other is refused."""
    if mask is None:
        return None
    require((mask == mask[:, :1, :1]).all(), f"{name}: Linear-InfSA keeps masks of padding only, got one by query")
    return key_mask_only(mask[:, :1, :1], batch, keys, name)
