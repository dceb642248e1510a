"""``torch.nn.MultiheadAttention``, and with it ``TransformerEncoder``, ``TransformerDecoder`` and torchvision's ViT."""

from typing import Any

from torch import nn

from ..nn import LinearInfSA, MultiheadAttention, PureInfSA
from ..nn.peers.base import Attention as PeerAttention
from .families import Family, LayerPlan, kind_of
from .settings import Settings
from .surgery import folding_note
from .swap import SHARED_NORM, new_decay
from .torch_layers import SwappedDecoderLayer, SwappedMultiheadAttention

VISION_BLOCK = "torchvision.models.vision_transformer.EncoderBlock"  # takes no masks
UNKNOWN = (
    "the norm is that of each query (norm='row'), not the paper's, which all queries share: the block around the layer "
    "does not say whether its queries may depend on each other"
)
OWN = "a mechanism of this package: build the model with attention='infsa_pure' or 'infsa_linear'"
OPTIONS = ("variant", "norm", "pool_queries", "activation", "chunk_size", "eps", "impl")  # attributes of the module


class TorchNN(Family):
    """The adapter for ``torch.nn``."""

    name = "torch"
    fused = ("in_proj_weight", "in_proj_bias")

    def recognise(self, name: str, module: nn.Module, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for a ``torch.nn.MultiheadAttention``, and for no subclass of it."""
        if isinstance(module, MultiheadAttention | PureInfSA | LinearInfSA):
            return self.layer(name, module, action="done", reason="InfSA already", heads=module.num_heads)
        if isinstance(module, PeerAttention):
            return self.layer(name, module).refused(OWN)
        if type(module) is not nn.MultiheadAttention:
            return None
        role, parent = _role(model, module), _parent(model, name)
        unmasked = parent is not None and kind_of(parent) == VISION_BLOCK
        layer = self.layer(
            name,
            module,
            heads=module.num_heads,
            width=module.embed_dim,
            masks="none" if unmasked else "padding, attn_mask",
            causal="no" if unmasked else "by call",
            biases="none" if module.in_proj_bias is None else "qkv, out",
            norm="frobenius" if role else "row",
            lost=tuple(_lost(module, settings, role, unmasked)),
        )
        return layer.refused(_refusal(module, settings, role))

    def convert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class; torch's fused softmax path is switched off by the flag it asks."""
        module.infsa_before = (module._qkv_same_embed_dim, module.dropout)
        module.__class__ = SwappedMultiheadAttention
        module._qkv_same_embed_dim = False
        for option in OPTIONS:
            setattr(module, option, getattr(settings, option))
        if settings.variant == "linear":
            module.dropout = 0.0
        module.decay = new_decay(module, module.num_heads, settings)

    def revert(self, module: Any) -> None:
        """Change the class back."""
        module._qkv_same_embed_dim, module.dropout = module.infsa_before
        for attribute in ("infsa_before", "decay", *OPTIONS):
            delattr(module, attribute)
        module.__class__ = nn.MultiheadAttention

    def finish(self, model: nn.Module, layers: list[LayerPlan]) -> None:
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


def _role(model: nn.Module, module: nn.Module) -> str:
    """What a layer does in its block: ``"self"``, ``"cross"`` (of a known decoder), or nothing where none can say.

    A layer that the model holds under several names has a role if it plays the same one under each.
    """
    names = [name for name, other in model.named_modules(remove_duplicate=False) if other is module]
    roles = {_role_in(_parent(model, name), name) for name in names}
    return roles.pop() if len(roles) == 1 else ""


def _role_in(parent: nn.Module | None, name: str) -> str:
    if type(parent) is nn.TransformerEncoderLayer or (parent is not None and kind_of(parent) == VISION_BLOCK):
        return "self"
    if type(parent) not in (nn.TransformerDecoderLayer, SwappedDecoderLayer):
        return ""
    return "cross" if _is_cross(name) else "self"


def _refusal(module: nn.MultiheadAttention, settings: Settings, role: str) -> str:
    if module.bias_k is not None or module.add_zero_attn:
        return "add_bias_kv and add_zero_attn give softmax a sink, which InfSA does not have"
    if settings.level == "surgery" and role != "self":
        return "surgery folds self-attention, and this layer may attend to another source"
    if settings.level == "surgery" and module.in_proj_weight is None:
        return "surgery needs queries and keys of one width"
    return ""


def _lost(module: nn.MultiheadAttention, settings: Settings, role: str, unmasked: bool) -> list[str]:
    lost = []
    if settings.level == "surgery" and module.in_proj_weight is not None:
        lost.append(folding_note(module.in_proj_weight, module.in_proj_bias, module.num_heads))
    if settings.variant == "pure":
        if settings.norm == "row" or unmasked:
            return lost
        shared = role or settings.norm == "frobenius"
        return [*lost, SHARED_NORM if shared else UNKNOWN]
    if module.dropout:
        lost.append(f"dropout {module.dropout} on the weights: Linear-InfSA has one weight vector per head")
    if role == "cross":
        lost.append("causal targets: their queries are pooled, later ones included, so such calls are refused")
    elif not unmasked:
        causal = " (causal ones are not)" if settings.chunk_size else "; causal ones need chunk_size"
        lost.append(f"calls with an attention mask other than padding are refused{causal}")
        if not role and not settings.pool_queries:
            lost.append("cross-attention is refused unless pool_queries=True: Linear-InfSA pools all queries")
    return lost


FAMILY = TorchNN()
