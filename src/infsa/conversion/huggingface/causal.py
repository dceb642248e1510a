"""Prefix-normalised Pure InfSA with a cache: row i is divided by the norm of all rows up to it.

The running ΣR² after each token is all that a step needs beside the keys and values; the cache keeps it.
"""

from typing import Any

import torch
from torch import Tensor

from ...ops import pure_attention, pure_weights
from ...ops.checks import decay_per_head
from ...ops.dtypes import cast_output
from ...ops.masks import zero_masked
from ...ops.pure.decode import PrefixRows
from ...ops.pure.register import pure_chunked
from ..masks import padding_of
from ..settings import Settings
from .masks import joined, past_of, require_no_future, says_padding


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
    z, norm = pure_chunked(q, k, v, padding, padding, mask, *options)
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
    """``PrefixRows`` with the settings of a layer: outputs with γ, the running ΣR² after each row, and Â or None."""
    rows = PrefixRows(settings.activation, settings.eps, dropout, with_weights)
    z, running, weights = rows(q, k, v, mask=mask, real=real, past=past)
    z = cast_output(decay_per_head(gamma, q.shape[1], q) * z, q.dtype)
    return z, running, None if weights is None else cast_output(weights, q.dtype)


def unlinked(name: str, past: int) -> str:
    """The error of a layer that is to continue a cache it cannot see."""
    return (
        f"{name}: {past} cached tokens came without the sums of InfSA: use infsa.convert(model), or use_cache=False; "
        "keys without tokens, as of PEFT's prefix tuning, need norm='row'"
    )
