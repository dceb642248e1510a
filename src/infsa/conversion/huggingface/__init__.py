"""Hugging Face transformers: its attention layers become InfSA through its own registry of attention functions.

Importing this module registers ``attn_implementation="infsa_pure"`` and ``"infsa_linear"``, functions and masks.
A converted layer keeps its class and its code; the registry, asked in the middle of its forward pass, answers with
InfSA.
"""

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from ..families import Family, LayerPlan
from ..settings import Settings
from ..swap import Swapped, new_decay, restore_class
from .attention import linear_forward, pure_forward
from .classes import INSIDE, REFUSED
from .config import ask_for_infsa, forget_infsa
from .layers import lost_by, masks_of, refusal, role_of, sizes_of, traits_of, words_for
from .links import link_layer, link_padding, link_probe, unlink, why_by_rows
from .load import load_converted
from .masks import infsa_mask

__all__ = ["FAMILY", "HuggingFace", "infsa_mask", "linear_forward", "load_converted", "pure_forward"]

DEFORMABLE = "RTDetrMultiscaleDeformableAttention"

for _name, _function in {"infsa_pure": pure_forward, "infsa_linear": linear_forward}.items():
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, infsa_mask)


class HuggingFace(Family):
    """The attention layers of transformers that ask its registry."""

    name = "transformers"

    def recognise(self, name: str, module: nn.Module, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan of a known attention class; deformable attention, which has no scores between tokens, is kept."""
        kind = type(module).__name__
        if kind == DEFORMABLE:
            reason = "it samples points by predicted weights: there are no scores between tokens to replace"
            return self.layer(name, module, action="keep", reason=reason, masks="padding of keys")
        if kind in INSIDE:
            from .swapped import facts_inside

            found = facts_inside(module, settings)
            return None if found is None else self.layer(name, module, **found[0]).refused(found[1])
        if kind in REFUSED and type(module).__module__.startswith("transformers."):
            return self.layer(name, module).refused(REFUSED[kind])
        traits = traits_of(module)
        if traits is None:
            return None
        role = role_of(module)
        why = why_by_rows(model, name, role) if settings.norm == "auto" else ""
        norm = settings.norm if settings.norm != "auto" else "row" if why else "frobenius"
        heads, key_heads, head_width = sizes_of(module)
        layer = self.layer(
            name,
            module,
            heads=heads,
            key_heads=key_heads,
            width=heads * head_width,
            head_width=head_width,
            masks=masks_of(module, role),
            causal="by call" if traits.by_call else "yes" if "causal" in role else "no",
            rotary=traits.rotary,
            qk_norm=traits.qk_norm(module),
            biases=words_for(module, traits.bias(module)),
            norm=norm,
            lost=(*([why] if why else []), *lost_by(module, role, norm, settings)),
        )
        return layer.refused(refusal(module, role, settings))

    def convert(self, module: nn.Module, layer: LayerPlan, settings: Settings) -> None:
        """Give the layer its decay, and the links that its calls need."""
        if type(module).__name__ in INSIDE:
            return super().convert(module, layer, settings)
        module.decay = new_decay(module, layer.heads, settings)
        link_layer(module, settings.norm)

    def revert(self, module: nn.Module) -> None:
        """Take the decay away; :meth:`undo` took the links."""
        if isinstance(module, Swapped):
            restore_class(module)
        else:
            del module.decay

    def finish(self, model: nn.Module, layers: list[LayerPlan]) -> None:
        """Let the registry answer with InfSA for these layers, and tell cross-attention about its decoder."""
        ask_for_infsa(model)
        for module in model.modules():
            link_probe(module)
        for layer in layers:
            module = model.get_submodule(layer.name)
            known = not isinstance(module, Swapped) and layer.norm != "row"
            if known and role_of(module) == "causal cross":
                link_padding(model, layer.name)

    def undo(self, model: nn.Module, layers: list[LayerPlan]) -> None:
        """Let the registry answer as it did."""
        forget_infsa(model)
        for module in model.modules():
            unlink(module)


FAMILY = HuggingFace()
