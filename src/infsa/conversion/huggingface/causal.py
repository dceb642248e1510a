"""Prefix-normalised Pure InfSA with a cache: row i is divided by the norm of all rows up to it.

The running ΣR² after each token is all that a step needs beside the keys and values; the cache keeps it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...ops import library, pure_attention, pure_weights
from ...ops.activation import ACTIVATIONS
from ...ops.checks import accumulation_dtype, cast_output, decay_per_head
from ...ops.masks import allowed_entries, zero_masked
from ...ops.reference import safe_sqrt
from ..masks import padding_of
from ..settings import Settings
from .masks import joined, past_of, require_no_future, says_padding

STEP_ROWS = 128  # rows of a step, or of a decoder's cross-attention, that are worked off at once


def pure_causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    cache: Any,
    name: str,
    *,
    settings: Settings,
    gamma: float | Tensor,
    dropout: float,
    with_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence, or the tokens that continue a cache: (B, H, t, d), and Â (B, H, t, Nk) on request.

    ``bias`` (1 or B, H, t, Nk) is added to the scores. In the gradient of a step, ΣR² of the tokens before is a
    constant; what it computes itself, and the keys and values that the cache holds with their history, is not.
    """
    tokens, keys = q.shape[2], k.shape[2]
    static = hasattr(cache, "max_cache_len")
    padding = padding_of(mask, q.shape[0], keys)
    places = torch.arange(tokens, device=k.device) + (keys if cache is None else cache.end(keys)) - tokens
    if says_padding(mask) and tokens > 1:
        mask = None
    if mask is not None and tokens > 1 and mask.shape[2] > 1:
        require_no_future(mask, places, name)
    past = None if cache is None else cache.last("squares")
    if past is not None or static:
        return _step(q, k, v, mask, bias, padding, places, past, cache, settings, gamma, dropout, with_weights)
    if tokens != keys:
        raise ValueError(unlinked(name, keys - tokens))
    shared: dict[str, Any] = {"activation": settings.activation, "eps": settings.eps}
    mask = joined(mask, bias)
    shared |= {"attn_mask": mask}
    shared |= {"key_mask": padding, "is_causal": True}
    weights = pure_weights(q, k, **shared) if with_weights else None
    if cache is None:
        return pure_attention(q, k, v, gamma=gamma, dropout_p=dropout, impl=settings.impl, **shared), weights
    if settings.impl not in ("auto", "chunked"):
        raise ValueError(f"{name}: impl={settings.impl!r} keeps no running sums for a cache; pass use_cache=False")
    q, k, v = (zero_masked(x, padding) for x in (q, k, v))
    seed = torch.randint(2**62, ()) if dropout > 0 else None
    options = (settings.activation, "yes", "frobenius", settings.eps, dropout, seed)
    z, norm = library.pure_chunked(q, k, v, padding, padding, mask, *options)
    cache.extend("squares", norm.detach().double().square())
    return cast_output(decay_per_head(gamma, q.shape[1], q) * z, q.dtype), weights


def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    padding: Tensor | None,
    places: Tensor,
    past: Tensor | None,
    cache: Any,
    settings: Settings,
    gamma: float | Tensor,
    dropout: float,
    with_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Tokens that continue a cache, or that enter one of fixed size, at ``places`` (t,) among its keys."""
    real = None
    if padding is not None:
        real = padding[:, places]
        k, v = zero_masked(k, padding), zero_masked(v, padding)
    mask = joined(past_of(places, k.shape[2]), None if padding is None else padding[:, None, None], mask, bias)
    z, squares, weights = prefix_rows(q, k, v, mask, real, past, settings, gamma, dropout, with_weights)
    cache.extend("squares", squares.detach())
    return z, weights


def pure_causal_cross(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cache: Any,
    real: Tensor | None,
    name: str,
    *,
    settings: Settings,
    gamma: float | Tensor,
    dropout: float,
    with_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Cross-attention of a decoder: every key may be seen, but no row may enter the norm of an earlier one.

    ``real`` (B, t) marks the decoder's tokens that are not padding. Memory grows with t Nk.
    """
    past = None if cache is None else cache.last("cross squares")
    z, squares, weights = prefix_rows(q, k, v, mask, real, past, settings, gamma, dropout, with_weights)
    if cache is not None:
        cache.extend("cross squares", squares.detach())
    return z, weights


def prefix_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    real: Tensor | None,
    past: Tensor | None,
    settings: Settings,
    gamma: float | Tensor = 0.7,
    dropout: float = 0.0,
    with_weights: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Consecutive rows of Pure InfSA, each divided by the norm of all rows up to it.

    ``mask`` is None or broadcasts to (B, H, t, Nk), ``real`` (B, t) marks the rows that are tokens, ``past`` (B, H) is
    ΣR² of the rows before. Returns the outputs (B, H, t, dv), the running ΣR² after each row (B, H, t), and Â or None.
    """
    dtype = accumulation_dtype(q.dtype)
    total = q.new_zeros(q.shape[:2], dtype=torch.float64) if past is None else past
    outputs, running, matrix = [], [], []
    kind = "cpu" if q.device.type == "meta" else q.device.type  # autocast knows no meta device
    with torch.autocast(kind, enabled=False):
        keys, values = k.to(dtype).mT, v.to(dtype)
        for start in range(0, q.shape[2], STEP_ROWS):
            rows = slice(start, start + STEP_ROWS)
            part = None if mask is None else mask[:, :, rows] if mask.shape[2] > 1 else mask
            edges = _edges(q[:, :, rows].to(dtype) / math.sqrt(q.shape[3]), keys, part, settings.activation)
            if real is not None:
                edges = edges.masked_fill(~real[:, None, rows, None], 0)
            squares = total.unsqueeze(-1) + edges.double().square().sum(-1).cumsum(-1)
            total = squares[:, :, -1]
            norm = safe_sqrt(squares).to(dtype).unsqueeze(-1)
            weights = edges * torch.where(norm == 0, 0, 1 / (norm + settings.eps))
            outputs.append((torch.dropout(weights, dropout, train=True) if dropout > 0 else weights) @ values)
            running.append(squares)
            matrix += [weights] * with_weights
        z = decay_per_head(gamma, q.shape[1], q) * torch.cat(outputs, 2)
    found = cast_output(torch.cat(matrix, 2), q.dtype) if with_weights else None
    return cast_output(z, q.dtype), torch.cat(running, 2), found


def _edges(q: Tensor, keys: Tensor, mask: Tensor | None, activation: str) -> Tensor:
    scores = q @ keys
    if mask is None:
        return ACTIVATIONS[activation].value(scores)
    allowed = allowed_entries(mask)
    if mask.is_floating_point():
        scores = scores + torch.where(allowed, mask.to(scores.dtype), 0)
    return ACTIVATIONS[activation].value(scores).masked_fill(~allowed, 0)


def unlinked(name: str, past: int) -> str:
    """The error of a layer that is to continue a cache it cannot see."""
    return (
        f"{name}: {past} cached tokens came without the sums of InfSA: use infsa.convert(model), or use_cache=False; "
        "keys without tokens, as of PEFT's prefix tuning, need norm='row'"
    )
