"""What a layer of Hugging Face transformers is: role, sizes, masks, and what keeps it from becoming InfSA."""

from typing import Any

from torch import nn

from ..settings import Settings
from ..windows import ONE_NORM
from .classes import CLASSES, Role, Traits


def traits_of(module: nn.Module) -> Traits | None:
    """The row of a module's class; None for other classes and for wrappers around such a layer."""
    known = type(module).__module__.startswith("transformers.") and hasattr(module, "config")  # wrappers have none
    return CLASSES.get(type(module).__name__) if known else None


def role_of(module: nn.Module, is_causal: bool | None = None) -> Role:
    """What a layer does in a call; ``is_causal`` is the call's own word, where it has one."""
    traits = traits_of(module)
    if traits is None:
        raise ValueError(f"{name_of(module)}: this attention class is not supported; supported: {sorted(CLASSES)}")
    role = traits.role(module)
    if is_causal is None or "cross" in role:
        return role
    return "causal" if is_causal else "self"


def name_of(module: nn.Module) -> str:
    """The name of a converted layer, for errors; the class of any other."""
    return getattr(getattr(module, "infsa_layer", None), "name", "") or type(module).__name__


def window_of(module: Any) -> int | None:
    """The sliding window of a layer, None without one."""
    traits = traits_of(module) or Traits()
    source = module.config if traits.window else module
    return getattr(source, "sliding_window", None)


def dropout_of(module: Any) -> float:
    """The rate of attention dropout in training."""
    rate = _first(module, "attention_dropout", "attn_dropout", "dropout_prob", "dropout")
    return float(getattr(rate, "p", rate))


def sizes_of(module: Any) -> tuple[int, int, int]:
    """Query heads, key heads and head width."""
    projection = getattr(module, "q_proj", None)  # all that layers of the detection models have
    heads = _first(module, "num_heads", "num_attention_heads", "n_heads")
    heads = heads or (projection.out_features // module.head_dim if projection is not None else 0)
    heads = heads or module.config.num_attention_heads
    width = _first(module, "head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
    return heads, heads // getattr(module, "num_key_value_groups", 1), width or module.internal_dim // heads


def _first(module: Any, *names: str) -> Any:
    """The first attribute that a module has, 0 if it has none."""
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), 0)


def words_for(module: nn.Module, scores: str) -> str:
    """Which projections have a bias, and which bias the scores have, in words."""
    linear = [name for name, part in module.named_children() if getattr(part, "bias", None) is not None]
    words = [f"of {', '.join(linear)}"] * bool(linear) + [f"{scores} on the scores"] * bool(scores)
    return "; ".join(words) or "none"


def masks_of(module: nn.Module, role: Role) -> str:
    """The masks a layer's calls can carry, in words."""
    window = window_of(module)
    words = ["padding of keys" if "cross" in role else "padding", *(["causal"] if role == "causal" else [])]
    return ", ".join(words if window is None else [*words, f"window of {window}"])


def refusal(module: nn.Module, role: Role, settings: Settings) -> str:
    """Why a layer cannot become what the settings ask for; empty if it can."""
    if settings.level == "surgery":
        return "level='surgery' is not supported for transformers: its layers project before InfSA is called"
    traits = traits_of(module) or Traits()
    cap = getattr(module, traits.cap, None) if traits.cap else None
    if cap is not None:
        return f"soft capping of the scores at {cap:g}, which InfSA cannot keep: build the model with {traits.cap}=None"
    if settings.variant == "pure":
        return ""
    if bias := traits.bias(module):
        return f"Linear-InfSA has no scores between pairs of tokens, so the {bias} bias would be dropped"
    if (window := window_of(module)) is not None:
        return f"Linear-InfSA has no scores between pairs, so the sliding window of {window} would be dropped"
    if role == "causal cross":
        return "Linear-InfSA pools the queries of all tokens, later ones too: the future would leak"
    if role == "causal" and settings.chunk_size is None:
        return "Linear-InfSA is causal by chunks only: pass chunk_size"
    return ""


def lost_by(module: Any, role: Role, norm: str, settings: Settings) -> tuple[str, ...]:
    """What conversion cannot preserve, one sentence each."""
    shared = settings.variant == "pure" and norm == "frobenius"
    lost = [note for note in (traits_of(module) or Traits()).lost if shared or note != ONE_NORM]
    rate = dropout_of(module)
    if settings.variant == "linear" and rate > 0:
        lost.append(f"attention dropout of {rate:g}: Linear-InfSA has no weights between pairs to drop")
    if "causal" in role and shared:
        lost.append("part of the gradient of a step that continues a cache: the norm of earlier tokens is a constant")
    if role == "self" and shared and window_of(module) is not None:
        lost.append("the window's reach: it removes edges, but all tokens still share one norm")
    if role == "causal" and settings.variant == "linear":
        lost.append(f"the last tokens: a token sees the chunks of {settings.chunk_size} before its own, not its own")
        lost.append("output_attentions: chunk-causal Linear-InfSA has no weights per token, so such calls are refused")
    if type(module).__name__ == "RTDetrSelfAttention" and module.config.num_denoising > 0:
        lost.append("denoising queries in training: their groups would share one norm, so such calls are refused")
    return tuple(lost)
