"""Prefix-normalised Pure InfSA with a cache: row i is divided by the norm of all rows up to it.

The running ΣR² after each token is all that a step needs beside the keys and values; the cache keeps it.
"""

from typing import Any

import torch
from torch import Tensor

from ...nn.masks import padding_of
from ...ops import pure_weights
from ...ops.checks import decay_per_head
from ...ops.dtypes import cast_output
from ...ops.masks import zero_masked
from ...ops.pure.decode import PrefixRows
from ...ops.pure.register import pure_chunked
from .call import Call
from .masks import joined, past_of, require_no_future, says_padding


def pure_causal(call: Call) -> tuple[Tensor, Tensor | None]:
    """The whole sequence, or the tokens that continue a cache: (B, H, t, d), and Â (B, H, t, Nk) on request.

    In the gradient of a step, ΣR² of the tokens before is a constant; what it computes itself, and the keys and values
    that the cache holds with their history, is not.
    """
    (batch, heads, tokens, _), keys, mask, cache = call.q.shape, call.k.shape[2], call.mask, call.cache
    padding = padding_of(mask, batch, keys)
    places = torch.arange(tokens, device=call.k.device) + (keys if cache is None else cache.end(keys)) - tokens
    if says_padding(mask) and tokens > 1:
        mask = None
    if mask is not None and tokens > 1 and mask.shape[2] > 1:
        require_no_future(mask, places, call.name)
    mask = joined(mask, call.bias)
    if cache is not None and (hasattr(cache, "max_cache_len") or cache.last("squares") is not None):
        return _step(call, mask, padding, places)
    if tokens != keys:
        raise ValueError(unlinked(call.name, keys - tokens))
    masks: dict[str, Any] = {"attn_mask": mask, "key_mask": padding, "is_causal": True}
    if cache is None:
        return call.pure(**masks)
    settings, impl = call.settings, call.settings.impl
    if impl not in ("auto", "chunked"):
        raise ValueError(f"{call.name}: impl={impl!r} keeps no running sums for a cache; pass use_cache=False")
    weights = pure_weights(call.q, call.k, **settings.formula, **masks) if call.with_weights else None
    q, k, v = (zero_masked(x, padding) for x in (call.q, call.k, call.v))
    seed = torch.randint(2**62, ()) if call.dropout > 0 else None
    options = (settings.activation, "yes", "frobenius", settings.eps, call.dropout, seed)
    z, norm = pure_chunked(q, k, v, None, padding, padding, mask, *options)
    cache.extend("squares", norm.detach().double().square())
    return cast_output(decay_per_head(call.gamma, heads, q) * z, q.dtype), weights


def _step(call: Call, mask: Tensor | None, padding: Tensor | None, places: Tensor) -> tuple[Tensor, Tensor | None]:
    """Tokens that continue a cache, or that enter one of fixed size, at ``places`` (t,) among its keys."""
    real, k, v, past = None, call.k, call.v, past_of(places, call.k.shape[2])
    if padding is not None:
        real, past = padding[:, places], past & padding[:, None, None]
        k, v = zero_masked(k, padding), zero_masked(v, padding)
    return _continue(call, k, v, joined(past, mask), real, "squares")


def pure_causal_cross(call: Call) -> tuple[Tensor, Tensor | None]:
    """Cross-attention of a decoder: every key may be seen, but no row may enter the norm of an earlier one.

    Which of the decoder's tokens are padding, its layer must tell. Memory grows with t Nk.
    """
    if not call.options.keys() >= {"infsa_cache", "infsa_padding"}:
        raise ValueError(unpadded(call.name))
    mask = joined(call.mask, call.bias)
    return _continue(call, call.k, call.v, mask, call.options["infsa_padding"], "cross squares")


def _continue(
    call: Call, k: Tensor, v: Tensor, mask: Tensor | None, real: Tensor | None, series: str
) -> tuple[Tensor, Tensor | None]:
    """The rows of a call after those whose ΣR² the cache holds in a series, which they extend."""
    past = None if call.cache is None else call.cache.last(series)
    rows = PrefixRows(call.settings.activation, call.settings.eps, call.dropout, call.with_weights)
    z, squares, weights = rows(call.q, k, v, mask=mask, real=real, past=past)
    if call.cache is not None:
        call.cache.extend(series, squares.detach())
    z = cast_output(decay_per_head(call.gamma, z.shape[1], call.q) * z, call.q.dtype)
    return z, None if weights is None else cast_output(weights, call.q.dtype)


def unlinked(name: str, past: int) -> str:
    """The error of a layer that is to continue a cache it cannot see."""
    return (
        f"{name}: {past} cached tokens came without the sums of InfSA: use infsa.convert(model), or use_cache=False; "
        "keys without tokens, as of PEFT's prefix tuning, need norm='row'"
    )


def unpadded(name: str) -> str:
    """The error of a decoder's cross-attention that is not told which of its rows are padding."""
    return f"{name}: cross-attention of a decoder needs to know its padding: use infsa.convert on the whole model"
