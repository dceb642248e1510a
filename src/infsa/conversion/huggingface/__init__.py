"""Hugging Face transformers: its attention layers become InfSA through its own registry of attention functions.

Importing this module registers ``attn_implementation="infsa_pure"`` and ``"infsa_linear"``, functions and masks.
A converted layer keeps its class and its code; the registry, asked in the middle of its forward pass, answers with
InfSA.
"""

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from ..families import Family
from ..plan import LayerPlan, kind_of
from ..settings import Settings
from ..swap import new_decay, restore_class
from .attention import linear_forward, pure_forward
from .classes import INSIDE, REFUSED, Traits
from .config import ask_for_infsa, forget_infsa
from .layers import biases_of, lost_by, masks_of, refusal, role_of, sizes_of, traits_of
from .links import link_cache, link_padding, link_probe, link_shift, unlink, why_by_rows
from .load import load_converted
from .masks import infsa_mask

__all__ = ["FAMILY", "HuggingFace", "infsa_mask", "linear_forward", "load_converted", "pure_forward"]

DEFORMABLE = "RTDetrMultiscaleDeformableAttention"

for _name, _function in {"infsa_pure": pure_forward, "infsa_linear": linear_forward}.items():
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, infsa_mask)


class HuggingFace(Family):
    """The attention layers of transformers that ask its registry.

    Example:
        >>> model = LlamaForCausalLM(LlamaConfig(hidden_size=64, num_hidden_layers=2))
        >>> infsa.convert(model, "pure").generate(prompt, max_new_tokens=20)
    """

    name = "transformers"

    def recognise(self, name: str, module: nn.Module, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan of a known attention class; deformable attention, which has no scores between tokens, is kept."""
        if type(module).__name__ == DEFORMABLE:
            reason = "it samples points by predicted weights: there are no scores between tokens to replace"
            return LayerPlan(name, kind_of(module), self.name, "keep", reason, masks="padding of keys")
        if type(module).__name__ in INSIDE:
            from .swapped import plan_inside

            return plan_inside(name, module, settings)
        if type(module).__name__ in REFUSED and type(module).__module__.startswith("transformers."):
            return LayerPlan(name, kind_of(module), self.name).refused(REFUSED[type(module).__name__])
        traits = traits_of(module)
        if traits is None:
            return None
        role = role_of(module)
        why = why_by_rows(model, name, role)
        norm = settings.norm if settings.norm != "auto" else "row" if why else "frobenius"
        heads, key_heads, head_width = sizes_of(module)
        layer = LayerPlan(
            name,
            kind_of(module),
            self.name,
            heads=heads,
            key_heads=key_heads,
            width=heads * head_width,
            head_width=head_width,
            masks=masks_of(module, role),
            causal="by call" if traits.by_call else "yes" if "causal" in role else "no",
            rotary=traits.rotary,
            qk_norm=traits.qk_norm(module),
            biases=biases_of(module),
            norm=norm,
            lost=(*([why] if why and settings.norm == "auto" else []), *lost_by(module, role, norm, settings)),
        )
        reason = refusal(module, role, settings)
        return layer.refused(reason) if reason else layer

    def convert(self, module: nn.Module, layer: LayerPlan, settings: Settings) -> None:
        """Give the layer its decay and, where it may continue a cache, the link to it."""
        if _is_inside(layer):
            from .swapped import swap_inside

            return swap_inside(module, layer.heads, settings)
        module.decay = new_decay(module, layer.heads, settings)
        if "causal" in role_of(module) and settings.norm != "row":
            link_cache(module)
        if (traits_of(module) or Traits()).shift:
            link_shift(module)

    def revert(self, module: nn.Module, layer: LayerPlan, settings: Settings) -> None:
        """Take the decay away; :meth:`undo` took the links."""
        if _is_inside(layer):
            restore_class(module)
        else:
            del module.decay

    def finish(self, model: nn.Module, layers: list[LayerPlan], settings: Settings) -> None:
        """Let the registry answer with InfSA for these layers, and tell cross-attention about its decoder."""
        ask_for_infsa(model)
        for module in model.modules():
            link_probe(module)
        for layer in layers:
            known = not _is_inside(layer) and layer.norm != "row"
            if known and role_of(model.get_submodule(layer.name)) == "causal cross":
                link_padding(model, layer.name)

    def undo(self, model: nn.Module, layers: list[LayerPlan]) -> None:
        """Let the registry answer as it did."""
        forget_infsa(model)
        for module in model.modules():
            unlink(module)


def _is_inside(layer: LayerPlan) -> bool:
    return layer.kind.rsplit(".", 1)[-1] in INSIDE


FAMILY = HuggingFace()
