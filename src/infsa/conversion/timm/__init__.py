"""timm's attention layers: which are known, what becomes of each, and which are refused or kept, and why."""

from dataclasses import replace
from typing import Any

from torch import nn

from ..families import Family
from ..plan import LayerPlan, kind_of
from ..settings import Settings
from ..surgery import fold_rows, folding_note, unfold_rows
from ..swap import SHARED_NORM, restore_class, swap_class
from . import convnets, layers, maps, offsets, pooled, sequences, windows
from .layers import Attention, TimmLayer
from .others import KEPT, REFUSED

MODULES = (layers, windows, offsets, pooled, maps, sequences, convnets)
CLASSES: dict[type[nn.Module], type[TimmLayer]] = {
    layer.original: layer for module in MODULES for layer in module.LAYERS
}
PROJECTIONS = ("qkv", "q_proj", "kv", "qk", "q", "k", "wq", "query")
BIASES = ("relative_position_bias_table", "rel_pos", "cpb_mlp", "meta_mlp", "attention_biases", "rel_pos_h")


class Timm(Family):
    """The adapter for timm."""

    name = "timm"

    def recognise(self, name: str, module: Any, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for an attention layer of timm."""
        if type(module) not in CLASSES:
            return self._other(name, module)
        layer = _plan(name, module, settings)
        if settings.variant == "linear" and (_has_bias(module) or _shares_bias(name, model)):
            return layer.refused("Linear-InfSA scores no pairs of tokens, so a relative position bias has no place")
        return layer

    def _other(self, name: str, module: Any) -> LayerPlan | None:
        """The plan for a class of timm that is known and not converted."""
        library, _, kind = kind_of(module).partition(".")
        kind = ".".join(kind.split(".")[-2:])  # the file and the class
        if library != "timm" or kind not in {**REFUSED, **KEPT}:
            return None
        heads = getattr(module, "num_heads", 0)
        layer = LayerPlan(name, kind_of(module), self.name, heads=heads, key_heads=heads)
        return layer.refused(REFUSED[kind]) if kind in REFUSED else replace(layer, action="keep", reason=KEPT[kind])

    def prepare(self, model: nn.Module) -> None:
        """Empty the caches of biases, which a copy cannot hold with the graph of their gradients."""
        for module in model.modules():
            if getattr(module, "attention_bias_cache", None):
                module.attention_bias_cache = {}  # type: ignore[assignment]

    def convert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class; surgery also folds the fused projection."""
        if settings.level == "surgery":
            fold_rows(module.qkv, "weight", "bias", module.num_heads)
        swap_class(module, CLASSES[type(module)], layer.heads, settings)

    def revert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class back."""
        restore_class(module)
        if settings.level == "surgery":
            unfold_rows(module.qkv, "weight", "bias")

    def changed(self, layer: LayerPlan, settings: Settings) -> tuple[str, ...]:
        """Surgery rewrites the query and key rows."""
        return ("qkv.weight", "qkv.bias") if settings.level == "surgery" else ()


def _plan(name: str, module: Any, settings: Settings) -> LayerPlan:
    target = CLASSES[type(module)]
    projection = next(getattr(module, part) for part in PROJECTIONS if getattr(module, part, None) is not None)
    width = _width(projection)
    heads = getattr(module, "num_heads", getattr(module, "heads", 1))
    norm = not isinstance(getattr(module, "q_norm", nn.Identity()), nn.Identity)
    layer = LayerPlan(
        name,
        kind_of(module),
        "timm",
        heads=heads,
        key_heads=getattr(module, "num_kv_heads", heads),
        width=width,
        head_width=_head_width(module, width // heads),
        masks=target.masks,
        causal="by call" if "is_causal" in target.masks else "no",
        rotary=target.rotary or getattr(module, "rope", None) is not None,
        qk_norm=norm or hasattr(module, "logit_scale"),
        biases=", ".join(_biases(module, projection)) or "none",
        lost=_lost(module, settings, target),
    )
    if settings.level == "surgery":
        if target is not Attention:
            return layer.refused("surgery folds plain self-attention only, and this is not (level='swap' converts it)")
        if norm:
            return layer.refused("surgery cannot fold projections that a qk-norm follows (level='swap' converts it)")
        if type(module.qkv) is not nn.Linear:
            return layer.refused(f"surgery folds a plain nn.Linear, and qkv is a {type(module.qkv).__name__}")
    return layer


def _has_bias(module: Any) -> bool:
    return CLASSES[type(module)].biased or any(getattr(module, part, None) is not None for part in BIASES)


def _shares_bias(name: str, model: nn.Module) -> bool:
    """Whether a module around the layer hands it a bias that the layers share."""
    around = [model] + [model.get_submodule(name[:place]) for place, letter in enumerate(name) if letter == "."]
    parts = ("rel_pos_bias", "shared_rel_pos")
    return any(isinstance(getattr(module, part, None), nn.Module) for module in around for part in parts)


def _width(projection: nn.Module) -> int:
    """The channels that go into a projection: a layer, an adapter around one, or several in a row."""
    for part in projection.modules():
        width = getattr(part, "in_features", getattr(part, "in_channels", None))
        if isinstance(width, int):
            return width
    return 0


def _head_width(module: Any, usual: int) -> int:
    """d, the width of a head's queries and keys."""
    for attribute in ("head_dim", "dim_head", "dim_head_qk", "key_dim", "qk_dim"):
        if hasattr(module, attribute):
            return int(getattr(module, attribute))
    return module.dim_out // module.num_heads if hasattr(module, "dim_out") else usual


def _biases(module: Any, projection: nn.Module) -> list[str]:
    found = []
    if getattr(module, "q_bias", None) is not None:
        found.append("q, v")
    elif _adds_bias(projection):
        found.append("qkv")
    if _adds_bias(getattr(module, "proj", getattr(module, "output", None))):
        found.append("proj")
    return found + ["relative position"] * _has_bias(module)


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
            causal = " and causal calls (no chunk_size)" if "is_causal" in masks and not settings.chunk_size else ""
            lost.append(f"attention masks other than padding{causal}: such calls are refused")
    if settings.level == "surgery" and type(module) is Attention.original and type(module.qkv) is nn.Linear:
        lost.append(folding_note(module.qkv.weight, module.qkv.bias, module.num_heads))
    return tuple(lost)


FAMILY = Timm()
