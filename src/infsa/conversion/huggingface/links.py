"""What a layer's call must tell its attention function: the cache it continues, and which of its rows are padding.

Both travel in the keyword arguments of the call, which every layer hands on to its attention function; nothing is kept
on a module between calls.
"""

import functools
import inspect
from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ...ops.masks import allowed_entries
from .cache import series_of
from .causal import unpadded
from .classes import Traits
from .layers import name_of, role_of, traits_of
from .masks import four_dimensions, hidden_parts, real_rows

POOLING_HEADS = ("SiglipMultiheadAttentionPoolingHead", "Siglip2MultiheadAttentionPoolingHead")
IMAGES_IN_TEXT = {"Gemma3Attention": "Gemma3Model"}  # attention of text -> the model that makes masks for images in it
PREFIXES = ("PrefixEncoder", "CartridgeEncoder")  # modules of PEFT that fill a cache before the first token


def link_layer(module: nn.Module, norm: str) -> None:
    """Let calls of a causal layer carry the layer of the cache that they extend, unless its norm needs none.

    The mask of a window shift, which Swin adds to its position bias, must remove edges instead of lowering scores.
    """
    if "causal" in role_of(module) and norm != "row":
        module.register_forward_pre_hook(_carry_cache, with_kwargs=True)
    if (traits_of(module) or Traits()).shift:
        module.register_forward_pre_hook(_hide_parts, with_kwargs=True)


def link_padding(model: nn.Module, name: str) -> None:
    """Let calls of a decoder's cross-attention carry the padding of the decoder, which their own mask does not hold.

    The decoder layer knows it; for GPT-2, whose layer hands nothing on, the cross-attention is given the mask itself.
    The layer also makes sure that the cache can carry sums before its self-attention, converted or not, fills it.
    """
    cross: Any = model.get_submodule(name)
    layer = layer_around(model, name)
    if layer is not None:
        names = [*inspect.signature(type(layer).forward).parameters][1:]
        link = functools.partial(_carry_padding, names, cross.layer_idx, name)
        layer.register_forward_pre_hook(link, with_kwargs=True)


def layer_around(model: nn.Module, name: str) -> nn.Module | None:
    """The layer of a decoder that holds an attention layer; None where the model does not reach that far."""
    parts = name.split(".")
    around = (model.get_submodule(".".join(parts[:length])) for length in range(len(parts) - 1, -1, -1))
    return next((layer for layer in around if isinstance(layer, GradientCheckpointingLayer)), None)


def link_probe(module: Any) -> None:
    """Let the pooling head of SigLIP tell its attention, which is torch's, what the head knows.

    Its one query follows no other, and its mask, the same for all heads, says which patches are padding.
    """
    attention: Any = getattr(module, "attention", None)
    if type(module).__name__ in POOLING_HEADS and hasattr(attention, "infsa_layer"):
        unlink(attention)
        attention.register_forward_pre_hook(_ask_once, with_kwargs=True)


def why_by_rows(model: nn.Module, name: str, role: str) -> str:
    """Why a layer can only have the row norm: nobody tells it what a norm that its queries share would have to know."""
    reason = ""
    around = {type(module).__name__ for module in model.modules()}
    if not around.isdisjoint(PREFIXES):
        reason = "prefix tuning gives it keys without queries"
    elif IMAGES_IN_TEXT.get(type(model.get_submodule(name)).__name__) in around:
        reason = "images amid its text are seen in both directions"
    elif role == "causal cross" and layer_around(model, name) is None:
        reason = "without its decoder layer it is not told which queries are padding"
    return reason and f"the paper's norm, which all queries share: {reason}, so each has its own (norm='row')"


def unlink(module: nn.Module) -> None:
    """Take the links away."""
    for key, hook in [*module._forward_pre_hooks.items()]:
        if getattr(hook, "func", hook) in LINKS:
            del module._forward_pre_hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


def _carry_cache(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    name, cache = name_of(module), options.get("past_key_values", options.get("layer_past"))
    options = {**options}
    if "encoder_attention_mask" in options:
        mask = four_dimensions(options.get("attention_mask"), name)
        options["infsa_padding"] = real_rows(mask, arguments[0].shape[1])
    if role_of(module) == "causal cross" and "infsa_padding" not in options:
        raise ValueError(unpadded(name))
    options["infsa_cache"] = None if cache is None else series_of(cache, module.layer_idx, name)
    return arguments, options


def _hide_parts(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    hidden, *rest = arguments
    mask = rest[0] if rest else options.get("attention_mask")
    options = {key: value for key, value in options.items() if key != "attention_mask"}
    return (hidden, None if mask is None else hidden_parts(mask)), {**options, "infsa_shift": True}


def _ask_once(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    mask = options.get("attn_mask")
    if mask is not None:  # (B·H, 1, Nk)
        hidden = ~allowed_entries(mask).unflatten(0, (len(arguments[0]), -1))[:, 0, 0]
        options = {**options, "attn_mask": None, "key_padding_mask": hidden}
    return arguments, {"query_causal": False, **options}


def _carry_padding(
    names: list[str], index: int, cross: str, layer: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    given = {**dict(zip(names, arguments, strict=False)), **options}
    if given.get("past_key_values") is not None:
        series_of(given["past_key_values"], index, cross)
    mask = four_dimensions(given.get("attention_mask"), cross)
    return arguments, {**options, "infsa_padding": real_rows(mask, given["hidden_states"].shape[1])}


LINKS = (_carry_cache, _carry_padding, _hide_parts, _ask_once)
