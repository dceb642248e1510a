"""``torch.nn.MultiheadAttention``, and with it ``TransformerEncoder``, ``TransformerDecoder`` and torchvision's ViT."""

from typing import Any

from torch import nn

from ..nn import LinearInfSA, MultiheadAttention, PureInfSA
from ..nn.peers.base import Attention as PeerAttention
from .families import Family
from .plan import LayerPlan, kind_of
from .settings import Settings
from .surgery import fold_rows, folding_note, unfold_rows
from .swap import SHARED_NORM, new_decay
from .torch_layers import SwappedDecoderLayer, SwappedMultiheadAttention

SELF_ATTENTION = {"TransformerEncoderLayer", "EncoderBlock"}  # blocks whose attention has one source only
OWN = "a mechanism of this package: build the model with attention='infsa_pure' or 'infsa_linear'"
OPTIONS = ("variant", "activation", "chunk_size", "eps", "impl")  # attributes of infsa.nn.MultiheadAttention


class TorchNN(Family):
    """The adapter for ``torch.nn``.

    Example:
        >>> infsa.plan_conversion(torch.nn.Transformer(64, 4, 2, 2)).layers[0].family
        'torch'
    """

    name = "torch"

    def recognise(self, name: str, module: nn.Module, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for a ``torch.nn.MultiheadAttention``, and for no subclass of it."""
        if isinstance(module, MultiheadAttention | PureInfSA | LinearInfSA):
            return LayerPlan(name, kind_of(module), self.name, "done", "InfSA already", module.num_heads)
        if isinstance(module, PeerAttention):
            return LayerPlan(name, kind_of(module), self.name).refused(OWN)
        if type(module) is not nn.MultiheadAttention:
            return None
        parent = _parent(model, name)
        inside = type(parent).__name__
        layer = LayerPlan(
            name,
            kind_of(module),
            self.name,
            heads=module.num_heads,
            key_heads=module.num_heads,
            width=module.embed_dim,
            head_width=module.head_dim,
            masks="none" if inside == "EncoderBlock" else "padding, attn_mask",
            causal="no" if inside == "EncoderBlock" else "by call",
            biases="none" if module.in_proj_bias is None else "qkv, out",
            lost=tuple(_lost(name, module, settings, inside)),
        )
        reason = _refusal(name, module, settings, parent)
        return layer.refused(reason) if reason else layer

    def convert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class; torch's fused softmax path is switched off by the flag it asks."""
        if settings.level == "surgery":
            fold_rows(module, "in_proj_weight", "in_proj_bias", module.num_heads)
        module.infsa_before = (module._qkv_same_embed_dim, module.dropout)
        module.__class__ = SwappedMultiheadAttention
        module._qkv_same_embed_dim = False
        for option in OPTIONS:
            setattr(module, option, getattr(settings, option))
        if settings.variant == "linear":
            module.dropout = 0.0
        module.decay = new_decay(module, module.num_heads, settings)

    def revert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class back."""
        if settings.level == "surgery":
            unfold_rows(module, "in_proj_weight", "in_proj_bias")
        module._qkv_same_embed_dim, module.dropout = module.infsa_before
        for attribute in ("infsa_before", "decay", *OPTIONS):
            delattr(module, attribute)
        module.__class__ = nn.MultiheadAttention

    def changed(self, layer: LayerPlan, settings: Settings) -> tuple[str, ...]:
        """Surgery rewrites the query and key rows."""
        return ("in_proj_weight", "in_proj_bias") if settings.level == "surgery" else ()

    def finish(self, model: nn.Module, layers: list[LayerPlan], settings: Settings) -> None:
        """Let decoder layers tell their cross-attention about their targets."""
        for layer in layers:
            parent = _parent(model, layer.name)
            if type(parent) is nn.TransformerDecoderLayer and _is_cross(layer.name):
                parent.__class__ = SwappedDecoderLayer

    def undo(self, model: nn.Module, layers: list[LayerPlan]) -> None:
        """Give decoder layers their class back."""
        for layer in layers:
            parent = _parent(model, layer.name)
            if type(parent) is SwappedDecoderLayer:
                parent.__class__ = nn.TransformerDecoderLayer  # type: ignore[assignment]


def _parent(model: nn.Module, name: str) -> nn.Module | None:
    """The block around a layer, beyond an adapter that wraps the layer."""
    return model.get_submodule(name.removesuffix(".base_layer").rpartition(".")[0]) if name else None


def _is_cross(name: str) -> bool:
    return name.removesuffix(".base_layer").endswith("multihead_attn")


def _refusal(name: str, module: nn.MultiheadAttention, settings: Settings, parent: nn.Module | None) -> str | None:
    inside = type(parent).__name__
    if module.bias_k is not None or module.add_zero_attn:
        return "add_bias_kv and add_zero_attn give softmax a sink, which InfSA does not have"
    known = type(parent) in (nn.TransformerDecoderLayer, SwappedDecoderLayer)
    if isinstance(parent, nn.TransformerDecoderLayer) and not known and _is_cross(name):
        return f"the norm of cross-attention needs to know whether targets are causal, and a {inside} may not say"
    if settings.level == "surgery" and inside not in SELF_ATTENTION:
        return f"surgery folds self-attention, and a layer inside {inside} may attend to another source"
    if settings.level == "surgery" and module.in_proj_weight is None:
        return "surgery needs queries and keys of one width"
    return None


def _lost(name: str, module: nn.MultiheadAttention, settings: Settings, inside: str) -> list[str]:
    lost = []
    if settings.level == "surgery" and module.in_proj_weight is not None:
        lost.append(folding_note(module.in_proj_weight, module.in_proj_bias, module.num_heads))
    cross = _is_cross(name) and inside in ("TransformerDecoderLayer", "SwappedDecoderLayer")
    if settings.variant == "pure":
        if inside != "EncoderBlock":
            lost.append(SHARED_NORM)
        if inside not in (*SELF_ATTENTION, "TransformerDecoderLayer", "SwappedDecoderLayer"):
            lost.append("queries of a call share a norm: cross-attention of causal queries needs query_causal=True")
        return lost
    if module.dropout:
        lost.append(f"dropout {module.dropout} on the weights: Linear-InfSA has one weight vector per head")
    if cross:
        lost.append("causal targets: their queries are pooled, later ones included, so such calls are refused")
    elif inside != "EncoderBlock":
        causal = "and causality" if settings.chunk_size else "(causality needs chunk_size)"
        lost.append(f"attention masks other than padding {causal}: such calls are refused")
    return lost


FAMILY = TorchNN()
