"""Hugging Face transformers: its attention layers become InfSA through its own registry of attention functions.

Importing this module registers ``attn_implementation="infsa_pure"`` and ``"infsa_linear"``, functions and masks.
A converted layer keeps its class and its code; the registry, asked in the middle of its forward pass, answers with
InfSA.
"""

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from ..nn import Decay
from .convert import converted_layers
from .families import Family, looks_like_attention
from .huggingface_attention import linear_forward, pure_forward
from .huggingface_layers import biases_of, lost_by, masks_of, refusal, role_of, sizes_of, traits_of
from .huggingface_links import link_cache, link_padding, unlink
from .huggingface_load import load_converted
from .huggingface_masks import infsa_mask
from .plan import LayerPlan, kind_of
from .settings import Settings

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
        traits = traits_of(module)
        if traits is None:
            return None
        role = role_of(module)
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
            qk_norm=traits.qk_norm,
            biases=biases_of(module),
            lost=lost_by(module, role, settings),
        )
        reason = refusal(module, role, settings)
        return layer.refused(reason) if reason else layer

    def convert(self, module: nn.Module, layer: LayerPlan, settings: Settings) -> None:
        """Give the layer its decay and, where it may continue a cache, the link to it."""
        like = next(module.parameters())
        decay = Decay(layer.heads, settings.gamma, settings.learn_gamma, device=like.device, dtype=like.dtype)
        module.decay = decay.train(module.training)
        if "causal" in role_of(module):
            link_cache(module)

    def revert(self, module: nn.Module, layer: LayerPlan, settings: Settings) -> None:
        """Take both away."""
        if hasattr(module, "decay"):
            del module.decay
        unlink(module)

    def finish(self, model: nn.Module, layers: list[LayerPlan], settings: Settings) -> None:
        """Let the registry answer with InfSA for these layers, and for no others."""
        converted: dict[str, Any] = {layer.name: model.get_submodule(layer.name) for layer in layers}
        configs = {id(module.config): module.config for module in converted.values()}
        partial = False
        for config in configs.values():
            own = [module for module in converted.values() if module.config is config]
            rest = any(module.config is config for module in _other_layers(model))
            _answer(own, config, f"infsa_{settings.variant}", rest)
            config.infsa = {"settings": settings.as_dict(), "partial": rest}
            partial = partial or rest
        for name, module in converted.items():
            if role_of(module) == "causal cross":
                link_padding(model, name)
        root = getattr(model, "config", None)
        if isinstance(root, PretrainedConfig):
            root.infsa = {"settings": settings.as_dict(), "partial": partial, "layers": list(converted_layers(model))}

    def undo(self, model: nn.Module, layers: list[LayerPlan]) -> None:
        """Let the registry answer as it did."""
        module: Any
        for module in model.modules():
            if hasattr(module, "infsa_config"):
                previous = module.infsa_config
                if isinstance(previous, PretrainedConfig):
                    module.config = previous
                else:
                    module.config._attn_implementation_internal = previous
                del module.infsa_config
            config = getattr(module, "config", None)
            if isinstance(config, PretrainedConfig):
                config.__dict__.pop("infsa", None)
            unlink(module)


def _answer(layers: list[Any], config: Any, implementation: str, shared: bool) -> None:
    """Point layers to an implementation; a configuration that other layers share is copied for them first."""
    previous = config._attn_implementation
    if shared and previous not in (None, "eager", "sdpa"):
        raise ValueError(f"layers that keep their attention need 'eager' or 'sdpa' masks, got {previous!r}")
    chosen = copy.copy(config) if shared else config
    chosen._attn_implementation_internal = implementation
    for module in layers:
        module.infsa_config = config if shared else previous
        module.config = chosen


def _other_layers(model: nn.Module) -> Iterator[Any]:
    """The attention layers with a configuration that are not converted, nor contain one that is."""
    for module in model.modules():
        known = hasattr(module, "config") and looks_like_attention(module)
        if known and not any(hasattr(part, "infsa_layer") for part in module.modules()):
            yield module


FAMILY = HuggingFace()
