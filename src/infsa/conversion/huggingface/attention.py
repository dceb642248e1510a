"""Pure and Linear InfSA behind the interface of Hugging Face's attention functions.

Queries arrive as (B, H, Nq, d), keys and values as (B, Hk, Nk, d), and the result leaves as (B, Nq, H, d).
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...nn.masks import key_mask_only, padding_of, require_mutual
from ...ops import linear_attention, linear_weights
from .call import Call, read_call
from .causal import pure_causal, pure_causal_cross, unlinked
from .masks import causal_key_mask, joined, past_of, says_padding


def pure_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *more: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Pure InfSA, ``attn_implementation="infsa_pure"``; causal layers divide by the norm of the rows so far.

    With ``output_attentions`` it returns Â beside the output: dense, without γ and without dropout.
    """
    call = read_call("pure", module, (query, key, value), attention_mask, more, options)
    roles = {"causal": pure_causal, "causal cross": pure_causal_cross}
    attend = _by_rows if call.settings.norm == "row" else roles.get(call.role, _by_one_norm)
    z, weights = attend(call)
    return z.transpose(1, 2).contiguous(), weights


def _by_one_norm(call: Call) -> tuple[Tensor, Tensor | None]:
    """Pure InfSA with the norm that all rows share, of queries that may know each other."""
    (batch, _, tokens, _), keys, mask = call.q.shape, call.k.shape[2], call.mask
    padding = padding_of(mask, batch, keys)
    rows = padding if call.role == "self" or padding is None else padding.new_ones(batch, tokens)
    mask = None if says_padding(mask) else mask
    if call.role == "self":
        _require_whole(call, tokens)
        require_mutual(mask, padding, call.name)
    mask = joined(mask, call.bias)
    causal = "auto" if mask is not None else False
    return call.pure(key_mask=padding, query_mask=rows, attn_mask=mask, is_causal=causal)


def _by_rows(call: Call) -> tuple[Tensor, Tensor | None]:
    """Pure InfSA by the row norm, in every role: no query knows another, so nothing but the masks matters.

    A mask over pairs is the whole truth, as it is for softmax; without one, a causal layer hides later keys itself.
    Several tokens that come without a mask are the first of a cache of fixed size, as for torch's own attention.
    """
    (batch, _, tokens, _), keys, mask, padding = call.q.shape, call.k.shape[2], call.mask, None
    first = 0 if mask is None and tokens > 1 else keys - tokens
    if mask is not None and says_padding(mask):
        padding, mask = mask[:, 0, 0].expand(batch, keys), None
    alone = call.role == "causal" and (mask is None or mask.shape[2] < tokens)
    if alone and tokens != keys:
        mask = joined(past_of(torch.arange(first, first + tokens, device=call.k.device), keys), mask)
    rows = None if padding is None else padding.new_ones(batch, tokens)
    causal = alone and tokens == keys
    return call.pure(key_mask=padding, query_mask=rows, attn_mask=joined(mask, call.bias), is_causal=causal)


def linear_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *more: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Linear-InfSA, ``attn_implementation="infsa_linear"``; it has no dropout, which the plan says.

    With ``output_attentions`` it returns a, the same row for every token; causal layers refuse, having no such vector.
    """
    call = read_call("linear", module, (query, key, value), attention_mask, more, options)
    name = call.name
    if call.role == "causal cross":
        raise ValueError(f"{name}: Linear-InfSA pools the queries of all tokens, later ones too: the future would leak")
    if call.options.get("sliding_window") is not None:
        raise ValueError(f"{name}: Linear-InfSA cannot keep a sliding window, got {call.options['sliding_window']!r}")
    if call.role == "causal":
        return _linear_causal(call).transpose(1, 2).contiguous(), None
    (batch, _, tokens, _), keys = call.q.shape, call.k.shape[2]
    shared = call.settings.formula
    if call.role == "cross":
        shared["query_mask"] = call.q.new_ones(batch, tokens, dtype=torch.bool)
        shared["key_mask"] = key_mask_only(call.mask, batch, keys, name, cross=True)
    else:
        _require_whole(call, tokens)
        shared["key_mask"] = key_mask_only(call.mask, batch, tokens, name)
    z = linear_attention(call.q, call.k, call.v, gamma=call.gamma, impl=call.settings.impl, **shared)
    weights = None
    if call.with_weights:
        weights = linear_weights(call.q, call.k, **shared).unsqueeze(2).expand(-1, -1, tokens, -1)
    return z.expand(-1, -1, tokens, -1).transpose(1, 2).contiguous(), weights


def _require_whole(call: Call, tokens: int) -> None:
    """Refuse keys without queries."""
    if call.k.shape[2] != tokens:
        raise ValueError(unlinked(call.name, call.k.shape[2] - call.q.shape[2]))


def _linear_causal(call: Call) -> Tensor:
    """Chunk-causal Linear-InfSA of the whole sequence; of its rows, those of the new tokens."""
    name, settings, q = call.name, call.settings, call.q
    if call.with_weights:
        raise ValueError(f"{name}: causal Linear-InfSA has no weights per token: call without output_attentions")
    if settings.chunk_size is None:
        raise ValueError(f"{name}: Linear-InfSA is causal by chunks only: use infsa.convert with chunk_size, got None")
    tokens = q.shape[2]
    if call.cache is not None:
        if hasattr(call.cache, "max_cache_len"):
            raise ValueError(f"{name}: causal Linear-InfSA needs a cache that grows, got one of fixed size")
        q = call.cache.extend("queries", q).to(q.dtype)
    _require_whole(call, q.shape[2])
    options: dict[str, Any] = {**settings.formula, "gamma": call.gamma, "impl": settings.impl}
    options["key_mask"] = causal_key_mask(call.mask, q.shape[0], tokens, call.k.shape[2], name)
    z = linear_attention(q, call.k, call.v, causal="chunk", chunk_size=settings.chunk_size, **options)
    return z[:, :, -tokens:]
