"""The masks that InfSA asks Hugging Face models for, and what it reads from any mask they pass."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from ...nn.masks import key_mask_only, padding_of, require, says_only
from ...ops.masks import allowed_entries


def infsa_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """The mask of a whole forward pass: (B, 1, 1, Nk) for padding alone, (B, 1, Nq, Nk) otherwise, True = allowed.

    Causality of whole sequences is not in it, because layers know it by themselves; None stands for nothing else.
    Where a model adds a bias to its masks (BEiT), they are additive. Packed sequences, and other masks that a model
    composes, are refused unless all of its layers have the row norm: one norm would span what the mask keeps apart.

    Example:
        >>> from infsa.conversion.huggingface import infsa_mask
        >>> infsa_mask(1, 3, 3, attention_mask=torch.ones(1, 3, dtype=torch.bool)).shape
        torch.Size([1, 1, 1, 3])
    """
    whole = isinstance(q_offset, int) and q_offset == 0 and kv_offset == 0 and q_length == kv_length > 1
    if mask_function is bidirectional_mask_function or (whole and mask_function is causal_mask_function):
        if attention_mask is None:
            return None
        missing = max(kv_offset + kv_length - attention_mask.shape[-1], 0)
        real = pad(attention_mask, (0, missing))[:, None, None, kv_offset : kv_offset + kv_length]
        biased = hasattr(options.get("config"), "use_shared_relative_position_bias")
        return torch.where(real, 0.0, -torch.inf).to(options.get("dtype", torch.float32)) if biased else real
    shape: dict[str, Any] = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length}
    shape |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": mask_function}
    options["allow_is_causal_skip"] = options.get("allow_is_causal_skip", True) and q_length == 1
    mask = sdpa_mask(**shape, attention_mask=attention_mask, **options)
    if mask is None:
        return None
    if mask_function is not causal_mask_function and not _by_rows(options.get("config")):
        every = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "local_size": None}
        pairs = sdpa_mask(**shape, attention_mask=None, **{**options, **every})
        require(
            (pairs[..., 1:, 1:] == pairs[..., :-1, :-1]).all(),  # it depends on the distance alone
            "InfSA keeps causal masks and windows; packed sequences and composed masks would share one norm; "
            "norm='row' supports them",
        )
    return mask


def _by_rows(config: Any) -> bool:
    """Whether every layer of a converted model divides each row by its own norm, so that any mask is safe."""
    layers = (getattr(config, "infsa", None) or {"layers": {}})["layers"].values()
    return bool(layers) and all(layer["variant"] == "pure" and layer.get("norm") == "row" for layer in layers)


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
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"{name}: a 4-D mask must be boolean or added to the scores (floating), got {mask.dtype}")
    return mask


def joined(*masks: Tensor | None) -> Tensor | None:
    """Masks and biases over the same pairs as one: an edge exists where all allow it, and finite entries add up."""
    given = [mask for mask in masks if mask is not None]
    if len(given) < 2:
        return given[0] if given else None
    allowed = functools.reduce(torch.logical_and, map(allowed_entries, given))
    biases = [mask for mask in given if mask.is_floating_point()]
    return torch.where(allowed, functools.reduce(torch.add, biases), -torch.inf) if biases else allowed


def hidden_parts(mask: Tensor) -> Tensor:
    """The mask of a window shift with −inf where it keeps tokens apart, for which Swin writes −100."""
    return mask.masked_fill(mask != 0, -torch.inf)


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
    allowed = allowed_entries(mask)
    if mask.shape[2] == 1 < tokens:
        return allowed.any(1)[:, 0, -tokens:]
    return allowed.any(-1).any(1)


def causal_key_mask(mask: Tensor | None, batch: int, queries: int, keys: int, name: str) -> Tensor | None:
    """The padding (B, Nk) of a causal mask that says no more than causality and padding; any other is refused."""
    if mask is None:
        return None
    if mask.shape[2] == 1 < queries:
        return key_mask_only(mask, batch, keys, name)
    real = padding_of(mask, batch, keys)
    assert real is not None
    places = torch.arange(keys - queries, keys, device=mask.device)
    kept = says_only(mask, real[:, None, None, :] & past_of(places, keys)) | ~real[:, None, keys - queries :, None]
    require(kept.all(), f"{name}: causal Linear-InfSA keeps causality and padding only, got another mask over pairs")
    return real
