"""timm's attention layers: ViT, DeiT and DINOv2, EVA and rotary ones, BEiT and relative positions, windows, pooling."""

from typing import Any

from torch import nn

from .families import Family
from .plan import LayerPlan, kind_of
from .settings import Settings
from .surgery import fold_rows, folding_note, unfold_rows
from .swap import ONE_NORM, SHARED_NORM, restore_class, swap_class
from .timm_layers import CLASSES, Attention, WindowAttentionV2

TIMM_PADDING = "zero padding of incomplete windows takes part, as with softmax: timm adds it outside the layer"
REFUSED = {
    "DiffAttention": "it subtracts two softmax maps, and the difference of two InfSA maps is another method",
    "ParallelScalingBlock": "its attention shares one projection with the MLP of its block",
    "DiffParallelScalingBlock": "its attention shares one projection with the MLP of its block",
}


class Timm(Family):
    """The adapter for timm.

    Example:
        >>> infsa.plan_conversion(timm.create_model("deit_tiny_patch16_224")).layers[0].family
        'timm'
    """

    name = "timm"

    def recognise(self, name: str, module: Any, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for an attention layer of timm."""
        reason = REFUSED.get(type(module).__name__) if type(module).__module__.startswith("timm.") else None
        if reason:
            heads = module.num_heads
            return LayerPlan(name, kind_of(module), self.name, heads=heads, key_heads=heads).refused(reason)
        if type(module) not in CLASSES:
            return None
        layer = _plan(name, module, settings)
        if settings.variant == "linear" and (_has_bias(module) or _shares_bias(name, model)):
            return layer.refused("Linear-InfSA scores no pairs of tokens, so a relative position bias has no place")
        return layer

    def convert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class; surgery also folds the fused projection."""
        if settings.level == "surgery":
            fold_rows(module.qkv, "weight", "bias", module.num_heads)
        swap_class(module, CLASSES[type(module)], module.num_heads, settings)

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
    projections = [part for part in ("qkv", "q_proj", "kv") if getattr(module, part, None) is not None]
    width = getattr(module, projections[0]).in_features
    norm = not isinstance(getattr(module, "q_norm", nn.Identity()), nn.Identity)
    layer = LayerPlan(
        name,
        kind_of(module),
        "timm",
        heads=module.num_heads,
        key_heads=getattr(module, "num_kv_heads", module.num_heads),
        width=width,
        head_width=getattr(module, "head_dim", width // module.num_heads),
        masks=target.masks,
        causal="by call" if "is_causal" in target.masks else "no",
        rotary=target.rotary,
        qk_norm=norm or target is WindowAttentionV2,
        biases=", ".join(_biases(module, projections[0])) or "none",
        lost=_lost(module, settings, target.masks),
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
    return any(
        getattr(module, part, None) is not None for part in ("relative_position_bias_table", "rel_pos", "cpb_mlp")
    )


def _shares_bias(name: str, model: nn.Module) -> bool:
    """Whether a module around the layer hands it a bias that the layers share."""
    around = [model] + [model.get_submodule(name[:place]) for place, letter in enumerate(name) if letter == "."]
    parts = ("rel_pos_bias", "shared_rel_pos")
    return any(isinstance(getattr(module, part, None), nn.Module) for module in around for part in parts)


def _biases(module: Any, projection: str) -> list[str]:
    found = []
    if getattr(module, "q_bias", None) is not None:
        found.append("q, v")
    elif getattr(module, projection).bias is not None:
        found.append("qkv")
    if getattr(module.proj, "bias", None) is not None:
        found.append("proj")
    return found + ["relative position"] * _has_bias(module)


def _lost(module: Any, settings: Settings, masks: str) -> tuple[str, ...]:
    lost = [ONE_NORM, TIMM_PADDING] if masks == "window shift" else []
    dropout = getattr(getattr(module, "attn_drop", None), "p", 0.0)
    if settings.variant == "pure" and "attn_mask" in masks:
        lost.append(SHARED_NORM)
    if settings.variant == "linear":
        if dropout:
            lost.append(f"dropout {dropout} on the weights: Linear-InfSA has one weight vector per head")
        if "attn_mask" in masks:
            causal = "" if settings.chunk_size else " and causal calls (no chunk_size)"
            lost.append(f"attention masks other than padding{causal}: such calls are refused")
    if settings.level == "surgery" and type(module) is Attention.original and type(module.qkv) is nn.Linear:
        lost.append(folding_note(module.qkv.weight, module.qkv.bias, module.num_heads))
    return tuple(lost)


FAMILY = Timm()
