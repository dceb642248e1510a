"""timm's attention layers: which are known, what becomes of each, and which are refused or kept, and why."""

from dataclasses import replace
from typing import Any

from torch import nn

from ..families import Family, LayerPlan, kind_of
from ..settings import Settings
from ..surgery import folding_note
from ..swap import NO_PAIRS, SHARED_NORM, TARGETS
from . import maps, offsets, pooled, tokens, windows  # noqa: F401 (they register the classes that layers become)
from .base import TimmLayer
from .unconverted import KEPT, REFUSED

PROJECTIONS = ("qkv", "q_proj", "kv", "qk", "q", "k", "wq", "query")
BIASES = ("relative_position_bias_table", "rel_pos", "cpb_mlp", "meta_mlp", "attention_biases", "rel_pos_h")
SHARED_BIASES = ("rel_pos_bias", "shared_rel_pos")  # of a module around the layers
HEAD_WIDTHS = ("head_dim", "dim_head", "dim_head_qk", "key_dim", "qk_dim")


class Timm(Family):
    """The adapter for timm."""

    name = "timm"
    fused = ("qkv.weight", "qkv.bias")

    def recognise(self, name: str, module: Any, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for an attention layer of timm."""
        target: Any = TARGETS.get(type(module), nn.Module)
        if not issubclass(target, TimmLayer):
            return self._unconverted(name, module)
        projection = next(getattr(module, part) for part in PROJECTIONS if getattr(module, part, None) is not None)
        width = _width(projection)
        heads = getattr(module, "num_heads", getattr(module, "heads", 1))
        usual = module.dim_out // heads if hasattr(module, "dim_out") else width // heads
        biased = target.biased or any(getattr(module, part, None) is not None for part in BIASES)
        layer = self.layer(
            name,
            module,
            heads=heads,
            key_heads=getattr(module, "num_kv_heads", heads),
            width=width,
            head_width=next((getattr(module, part) for part in HEAD_WIDTHS if hasattr(module, part)), usual),
            masks=target.masks,
            causal="by call" if "is_causal" in target.masks else "no",
            rotary=target.rotary or getattr(module, "rope", None) is not None,
            qk_norm=_normalises(module) or hasattr(module, "logit_scale"),
            biases=", ".join(_biases(module, projection) + ["relative position"] * biased) or "none",
            lost=_lost(module, settings, target),
        )
        if settings.level == "surgery" and (reason := _why_not_folded(module, target)):
            return layer.refused(reason)
        no_place = settings.variant == "linear" and (biased or _shares_bias(name, model))
        return layer.refused(NO_PAIRS if no_place else "")

    def _unconverted(self, name: str, module: Any) -> LayerPlan | None:
        """The plan for a class of timm that is known and not converted."""
        library, _, kind = kind_of(module).partition(".")
        kind = ".".join(kind.split(".")[-2:])  # the file and the class
        if library != "timm" or kind not in {**REFUSED, **KEPT}:
            return None
        layer = self.layer(name, module, heads=getattr(module, "num_heads", 0))
        return layer.refused(REFUSED[kind]) if kind in REFUSED else replace(layer, action="keep", reason=KEPT[kind])

    def prepare(self, model: nn.Module) -> None:
        """Empty the caches of biases, which a copy cannot hold with the graph of their gradients."""
        for module in model.modules():
            if getattr(module, "attention_bias_cache", None):
                module.attention_bias_cache = {}  # type: ignore[assignment]


def _normalises(module: Any) -> bool:
    return not isinstance(getattr(module, "q_norm", nn.Identity()), nn.Identity)


def _why_not_folded(module: Any, target: type[TimmLayer]) -> str:
    if target is not tokens.Attention:
        return "surgery folds plain self-attention only, and this is not (level='swap' converts it)"
    if _normalises(module):
        return "surgery cannot fold projections that a qk-norm follows (level='swap' converts it)"
    if type(module.qkv) is not nn.Linear:
        return f"surgery folds a plain nn.Linear, and qkv is a {type(module.qkv).__name__}"
    return ""


def _shares_bias(name: str, model: nn.Module) -> bool:
    """Whether a module around the layer hands it a bias that the layers share."""
    around = [model] + [model.get_submodule(name[:place]) for place, letter in enumerate(name) if letter == "."]
    return any(isinstance(getattr(module, part, None), nn.Module) for module in around for part in SHARED_BIASES)


def _width(projection: nn.Module) -> int:
    """The channels that go into a projection: a layer, an adapter around one, or several in a row."""
    widths = (getattr(part, "in_features", getattr(part, "in_channels", None)) for part in projection.modules())
    return next((width for width in widths if isinstance(width, int)), 0)


def _biases(module: Any, projection: nn.Module) -> list[str]:
    """Which projections add a bias, in words."""
    split = getattr(module, "q_bias", None) is not None
    inside = ["q, v"] if split else ["qkv"] * _adds_bias(projection)
    return inside + ["proj"] * _adds_bias(getattr(module, "proj", getattr(module, "output", None)))


def _adds_bias(projection: nn.Module | None) -> bool:
    return projection is not None and any(getattr(part, "bias", None) is not None for part in projection.modules())


def _lost(module: Any, settings: Settings, target: type[TimmLayer]) -> tuple[str, ...]:
    lost, masks = list(target.lost), target.masks
    dropout = getattr(getattr(module, "attn_drop", None), "p", 0.0)
    if settings.variant == "pure" and "attn_mask" in masks:
        lost.append(SHARED_NORM)
    if settings.variant == "linear":
        if dropout:
            lost.append(f"dropout {dropout} on the weights: Linear-InfSA has one weight vector per head")
        if "attn_mask" in masks:
            causal = "; causal ones need chunk_size" if "is_causal" in masks and not settings.chunk_size else ""
            lost.append(f"calls with an attention mask other than padding are refused{causal}")
    if settings.level == "surgery" and target is tokens.Attention and type(module.qkv) is nn.Linear:
        lost.append(folding_note(module.qkv.weight, module.qkv.bias, module.num_heads))
    return tuple(lost)


FAMILY = Timm()
