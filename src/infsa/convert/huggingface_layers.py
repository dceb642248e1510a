"""What the attention classes of Hugging Face transformers are: one row per class that was read and tested."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from .settings import Settings

Role = Literal["self", "causal", "cross", "causal cross"]


def _self_attention(module: Any) -> Role:
    causal = getattr(module, "is_causal", False) and getattr(module.config, "is_causal", True)
    return "causal" if causal else "self"


def _cross(module: Any) -> Role:
    return "cross"


def _causal_cross(module: Any) -> Role:
    return "causal cross"


def _gpt2(module: Any) -> Role:
    return "causal cross" if module.is_cross_attention else _self_attention(module)


def _whisper(module: Any) -> Role:
    return "causal cross" if module.is_decoder and not module.is_causal else _self_attention(module)


@dataclass(frozen=True)
class Traits:
    """What a class does around its scores, beyond what its instances tell.

    ``role`` reads the role from an instance; ``by_call`` lets a call make it causal; ``bias`` names a bias on the
    scores that arrives inside the mask, if the configuration switches it on.
    """

    role: Callable[[Any], Role] = _self_attention
    rotary: bool = False
    qk_norm: bool = False
    by_call: bool = False
    bias: Callable[[Any], str] = lambda module: ""


def _beit_bias(module: Any) -> str:
    config = module.config
    per_layer, shared = config.use_relative_position_bias, config.use_shared_relative_position_bias
    return "relative position" if per_layer or shared else ""


CLASSES: dict[str, Traits] = {
    "ViTAttention": Traits(),
    "DeiTAttention": Traits(),
    "BeitAttention": Traits(bias=_beit_bias),
    "CLIPAttention": Traits(by_call=True),
    "SiglipAttention": Traits(),
    "Dinov2Attention": Traits(),
    "Dinov2SelfAttention": Traits(),
    "Dinov2WithRegistersAttention": Traits(),
    "Dinov2WithRegistersSelfAttention": Traits(),
    "BertSelfAttention": Traits(),
    "BertCrossAttention": Traits(_causal_cross),
    "RobertaSelfAttention": Traits(),
    "RobertaCrossAttention": Traits(_causal_cross),
    "GPT2Attention": Traits(_gpt2),
    "LlamaAttention": Traits(rotary=True),
    "Qwen2Attention": Traits(rotary=True),
    "Qwen3Attention": Traits(rotary=True, qk_norm=True),
    "MistralAttention": Traits(rotary=True),
    "DetrSelfAttention": Traits(),
    "DetrCrossAttention": Traits(_cross),
    "RTDetrSelfAttention": Traits(),
    "WhisperAttention": Traits(_whisper),
}


def traits_of(module: nn.Module) -> Traits | None:
    """The row of a module's class; None for other classes and for wrappers around such a layer.

    Example:
        >>> traits_of(model.layers[0].self_attn).rotary
        True
    """
    known = type(module).__module__.startswith("transformers.") and hasattr(module, "config")  # wrappers have none
    return CLASSES.get(type(module).__name__) if known else None


def role_of(module: nn.Module, is_causal: bool | None = None) -> Role:
    """What a layer does in a call; ``is_causal`` is the call's own word, where it has one.

    Example:
        >>> role_of(model.model.layers[0].self_attn)
        'causal'
    """
    traits = traits_of(module)
    if traits is None:
        raise ValueError(f"{name_of(module)}: no adapter knows this attention class; known: {sorted(CLASSES)}")
    role = traits.role(module)
    if is_causal is None or "cross" in role:
        return role
    return "causal" if is_causal else "self"


def name_of(module: nn.Module) -> str:
    """The name of a converted layer, for errors; the class of any other."""
    layer = getattr(module, "infsa_layer", None)
    return layer.name or type(module).__name__ if layer is not None else type(module).__name__


def window_of(module: Any) -> int | None:
    """The sliding window of a layer, None without one."""
    if type(module).__name__ == "MistralAttention":
        return getattr(module.config, "sliding_window", None)
    return getattr(module, "sliding_window", None)


def dropout_of(module: Any) -> float:
    """The rate of attention dropout in training."""
    for name in ("attention_dropout", "attn_dropout", "dropout_prob", "dropout"):
        rate = getattr(module, name, None)
        if rate is not None:
            return float(getattr(rate, "p", rate))
    return 0.0


def sizes_of(module: Any) -> tuple[int, int, int]:
    """Query heads, key heads and head width."""
    heads = next(
        value
        for value in (
            getattr(module, "num_heads", None),
            getattr(module, "num_attention_heads", None),
            _heads_by_width(module),
            module.config.num_attention_heads,
        )
        if value is not None
    )
    width = getattr(module, "head_dim", None) or module.attention_head_size
    return heads, heads // getattr(module, "num_key_value_groups", 1), width


def _heads_by_width(module: Any) -> int | None:
    """Heads of the detection models, whose layers keep only the head width."""
    projection = getattr(module, "q_proj", None)
    return None if projection is None else projection.out_features // module.head_dim


def biases_of(module: nn.Module) -> str:
    """Which projections have a bias, and any bias on the scores, in words."""
    linear = [name for name, part in module.named_children() if getattr(part, "bias", None) is not None]
    traits = traits_of(module)
    scores = traits.bias(module) if traits is not None else ""
    words = [f"of {', '.join(linear)}"] * bool(linear) + [f"{scores} on the scores"] * bool(scores)
    return "; ".join(words) or "none"


def masks_of(module: nn.Module, role: Role) -> str:
    """The masks a layer's calls can carry, in words."""
    words = ["padding of keys" if "cross" in role else "padding"]
    if role == "causal":
        words.append("causal")
    window = window_of(module)
    if window is not None:
        words.append(f"window of {window}")
    return ", ".join(words)


def refusal(module: nn.Module, role: Role, settings: Settings) -> str:
    """Why a layer cannot become what the settings ask for; empty if it can."""
    if settings.level == "surgery":
        return "level='surgery' is not offered for transformers: its layers project before the registry is asked"
    if settings.variant == "pure":
        return ""
    traits = traits_of(module)
    bias = traits.bias(module) if traits is not None else ""
    if bias:
        return f"Linear-InfSA has no scores between pairs of tokens, so the {bias} bias would be dropped"
    if window_of(module) is not None:
        return (
            f"Linear-InfSA has no scores between pairs, so the sliding window of {window_of(module)} would be dropped"
        )
    if role == "causal cross":
        return "Linear-InfSA pools the queries of all tokens, later ones too: the future would leak"
    if role == "causal" and settings.chunk_size is None:
        return "Linear-InfSA is causal by chunks only: pass chunk_size"
    return ""


def lost_by(module: Any, role: Role, settings: Settings) -> tuple[str, ...]:
    """What conversion cannot preserve, one sentence each."""
    lost = []
    rate = dropout_of(module)
    if settings.variant == "linear" and rate > 0:
        lost.append(f"attention dropout of {rate:g}: Linear-InfSA has no weights between pairs to drop")
    if "causal" in role and settings.variant == "pure":
        lost.append("gradients through a cache: a step that continues one is refused while training")
    if role == "causal" and settings.variant == "linear":
        lost.append(f"the last tokens: a token sees the chunks of {settings.chunk_size} before its own, not its own")
        lost.append("output_attentions: chunk-causal Linear-InfSA has no weights per token, so such calls are refused")
    if type(module).__name__ == "RTDetrSelfAttention" and module.config.num_denoising > 0:
        lost.append("denoising queries in training: their groups would share one norm, so such calls are refused")
    return tuple(lost)
