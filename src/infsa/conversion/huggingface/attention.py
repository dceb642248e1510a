"""Pure and Linear InfSA behind the interface of Hugging Face's attention functions.

Queries arrive as (B, H, Nq, d), keys and values as (B, Hk, Nk, d), and the result leaves as (B, Nq, H, d).
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

try:  # transformers has no public way to ask
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None

from ...ops import linear_attention, linear_weights, pure_attention, pure_weights
from ...ops.dtypes import as_autocast
from ..masks import key_mask_only, padding_of, require_mutual
from ..settings import Settings, Variant
from .causal import pure_causal, pure_causal_cross, unlinked
from .classes import Traits
from .layers import name_of, role_of, traits_of
from .links import unpadded
from .masks import causal_key_mask, cross_key_mask, four_dimensions, joined, past_of, says_padding

FOREIGN = ("softcap", "s_aux", "position_bias", "head_mask", "cache")  # what other models put into a call


def pure_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Pure InfSA, ``attn_implementation="infsa_pure"``; causal layers divide by the norm of the rows so far.

    With ``output_attentions`` it returns Â beside the output: dense, without γ and without dropout.

    Example:
        >>> AutoModel.from_config(config, attn_implementation="infsa_pure")
    """
    name, settings = name_of(module), settings_of(module, "pure")
    output_attentions = bool(output_attentions or weights_are_collected())
    role = role_of(module, is_causal)
    traits = traits_of(module) or Traits()
    if traits.shift and "infsa_shift" not in options:
        raise ValueError(f"{name}: what a window shift keeps apart is hidden in its bias: use infsa.convert(model)")
    bias = options.pop("position_bias", None) if traits.bias_beside else None
    _refuse(name, options)
    query, key, value = one_type(query, key, value)
    query, key, value = _scaled(query, scaling), _shared(key, query), _shared(value, query)
    mask = four_dimensions(attention_mask, name)
    if settings.norm == "row":
        extra = {"gamma": _gamma(module, settings), "dropout_p": dropout, "impl": settings.impl}
        z, weights = _by_rows(query, key, value, mask, bias, role == "causal", settings, extra, output_attentions)
        return z.transpose(1, 2).contiguous(), weights
    common: dict[str, Any] = {"settings": settings, "gamma": _gamma(module, settings), "dropout": dropout}
    common |= {"with_weights": output_attentions}
    if role == "causal":
        z, weights = pure_causal(query, key, value, mask, bias, options.get("infsa_cache"), name, **common)
    elif role == "causal cross":
        if not options.keys() >= {"infsa_cache", "infsa_padding"}:
            raise ValueError(unpadded(name))
        links = options["infsa_cache"], options["infsa_padding"]
        z, weights = pure_causal_cross(query, key, value, joined(mask, bias), *links, name, **common)
    else:
        if role == "self" and query.shape[2] != key.shape[2]:
            raise ValueError(unlinked(name, key.shape[2] - query.shape[2]))
        padding = padding_of(mask, key.shape[0], key.shape[2])
        mask = None if says_padding(mask) else mask
        if role == "self":
            require_mutual(mask, padding, name)
        mask = joined(mask, bias)
        every = None if padding is None else padding.new_ones(query.shape[0], query.shape[2])
        masks = {"key_mask": padding, "query_mask": padding if role == "self" else every, "attn_mask": mask}
        shared: dict[str, Any] = {"activation": settings.activation, "eps": settings.eps, **masks}
        shared["is_causal"] = "auto" if mask is not None else False
        gamma = common["gamma"]
        z = pure_attention(query, key, value, gamma=gamma, dropout_p=dropout, impl=settings.impl, **shared)
        weights = pure_weights(query, key, **shared) if output_attentions else None
    return z.transpose(1, 2).contiguous(), weights


def _by_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    settings: Settings,
    extra: dict[str, Any],
    with_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Pure InfSA by the row norm, in every role: no query knows another, so nothing but the masks matters.

    A mask over pairs is the whole truth, as it is for softmax; without one, a causal layer hides later keys itself.
    Several tokens that come without a mask are the first of a cache of fixed size, as for torch's own attention.
    """
    tokens, keys, padding = q.shape[2], k.shape[2], None
    first = 0 if mask is None and tokens > 1 else keys - tokens
    if mask is not None and says_padding(mask):
        padding, mask = mask[:, 0, 0].expand(q.shape[0], keys), None
    alone = causal and (mask is None or mask.shape[2] < tokens)
    if alone and tokens != keys:
        mask = joined(past_of(torch.arange(first, first + tokens, device=k.device), keys), mask)
    shared: dict[str, Any] = {"activation": settings.activation, "eps": settings.eps, "norm": "row"}
    shared |= {"attn_mask": joined(mask, bias), "key_mask": padding, "is_causal": alone and tokens == keys}
    shared["query_mask"] = None if padding is None else padding.new_ones(q.shape[0], tokens)
    weights = pure_weights(q, k, **shared) if with_weights else None
    return pure_attention(q, k, v, **shared, **extra), weights


def linear_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    output_attentions: bool | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Linear-InfSA, ``attn_implementation="infsa_linear"``; it has no dropout, which the plan says.

    With ``output_attentions`` it returns a, the same row for every token; causal layers refuse, having no such vector.

    Example:
        >>> AutoModel.from_config(config, attn_implementation="infsa_linear")
    """
    name, settings = name_of(module), settings_of(module, "linear")
    output_attentions = output_attentions or weights_are_collected()
    role = role_of(module, is_causal)
    _refuse(name, options)
    if role == "causal cross":
        raise ValueError(f"{name}: Linear-InfSA pools the queries of all tokens, later ones too: the future would leak")
    if options.get("sliding_window") is not None:
        raise ValueError(f"{name}: Linear-InfSA cannot keep a sliding window, got {options['sliding_window']!r}")
    batch, tokens = query.shape[0], query.shape[2]
    mask = four_dimensions(attention_mask, name)
    query, key, value = one_type(query, key, value)
    query, key, value = _scaled(query, scaling), _shared(key, query), _shared(value, query)
    shared: dict[str, Any] = {"activation": settings.activation, "eps": settings.eps}
    apart: dict[str, Any] = {"gamma": _gamma(module, settings), "impl": settings.impl}
    if role == "causal":
        if output_attentions:
            raise ValueError(f"{name}: causal Linear-InfSA has no weights per token: call without output_attentions")
        z = _linear_causal(query, key, value, mask, options.get("infsa_cache"), name, settings, {**shared, **apart})
        return z.transpose(1, 2).contiguous(), None
    if role == "cross":
        shared["query_mask"] = query.new_ones(batch, tokens, dtype=torch.bool)
        shared["key_mask"] = cross_key_mask(mask, batch, key.shape[2], name)
    elif tokens != key.shape[2]:
        raise ValueError(unlinked(name, key.shape[2] - tokens))
    else:
        shared["key_mask"] = key_mask_only(mask, batch, tokens, name)
    z = linear_attention(query, key, value, **shared, **apart).expand(-1, -1, tokens, -1)
    weights = None
    if output_attentions:
        weights = linear_weights(query, key, **shared).unsqueeze(2).expand(-1, -1, tokens, -1)
    return z.transpose(1, 2).contiguous(), weights


def _linear_causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cache: Any,
    name: str,
    settings: Settings,
    options: dict[str, Any],
) -> Tensor:
    """Chunk-causal Linear-InfSA of the whole sequence; of its rows, those of the new tokens."""
    if settings.chunk_size is None:
        raise ValueError(f"{name}: Linear-InfSA is causal by chunks only: use infsa.convert with chunk_size, got None")
    tokens = q.shape[2]
    if cache is not None:
        q = _all_queries(q, cache, name)
    if q.shape[2] != k.shape[2]:
        raise ValueError(unlinked(name, k.shape[2] - tokens))
    padding = causal_key_mask(mask, q.shape[0], tokens, k.shape[2], name)
    z = linear_attention(q, k, v, key_mask=padding, causal="chunk", chunk_size=settings.chunk_size, **options)
    return z[:, :, -tokens:]


def _all_queries(query: Tensor, cache: Any, name: str) -> Tensor:
    """The queries of every token so far, which the cache keeps for causal Linear-InfSA."""
    if hasattr(cache, "max_cache_len"):
        raise ValueError(f"{name}: causal Linear-InfSA needs a cache that grows, got one of fixed size")
    if cache.last("queries") is None:
        cache.extend("queries", query)
        return query
    return cache.extend("queries", query).to(query.dtype)


def one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three in one type: that of autocast where it is on, as torch's own attention has it, else that of the values.

    Rotary positions promote queries and keys alone, and a cache may hold keys of another type.
    """
    query, key, value = as_autocast(query, key, value)
    return query.to(value.dtype), key.to(value.dtype), value


def weights_are_collected() -> bool:
    """Whether the model around a call collects the weights of its layers: not all hand ``output_attentions`` down."""
    collected = _active_collector.get() if _active_collector is not None else None
    return collected is not None and any("attentions" in key for key in collected)


def settings_of(module: Any, variant: Variant) -> Settings:
    """The settings of a layer: those it was converted with, those its configuration was saved with, or the defaults."""
    settings = getattr(module, "infsa_settings", None)
    if settings is None:
        saved = getattr(module.config, "infsa", None) or {"layers": {"": {"variant": variant}}, "partial": False}
        ways = {tuple(fields.items()) for fields in saved["layers"].values()}
        if saved["partial"] or len(ways) > 1 or ("learn_gamma", True) in min(ways):
            raise ValueError(f"{name_of(module)}: saved with layers converted apart or γ learned: use load_converted")
        settings = _settings(min(ways))
    if settings.variant != variant:
        raise ValueError(f"{name_of(module)}: converted as {settings.variant!r}, called as {variant!r}")
    return settings


@functools.cache
def _settings(items: tuple[tuple[str, Any], ...]) -> Settings:
    return Settings.saved(dict(items))


def _gamma(module: Any, settings: Settings) -> float | Tensor:
    decay = getattr(module, "decay", None)
    return settings.gamma if decay is None else decay()


def _refuse(name: str, options: dict[str, Any]) -> None:
    for option in FOREIGN:
        if options.get(option) is not None:
            raise ValueError(f"{name}: InfSA cannot keep {option} in an attention call")


def _scaled(query: Tensor, scaling: float | None) -> Tensor:
    """Queries to which the operator's own 1/√d gives the scale that the layer asks for."""
    width = query.shape[-1]
    return query if scaling is None or scaling == width**-0.5 else query * (scaling * math.sqrt(width))


def _shared(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values that groups of query heads share, one copy per head."""
    groups = query.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, 1)
