"""Which attention function Hugging Face's registry is asked for, layer by layer, and what a saved configuration says.

A layer reads the name of its function from its configuration, which it shares with the model around it, often with
layers that are not converted, and with modules beyond the part that is converted. So nothing shared is changed:
converted layers get a copy of their configuration, and all other modules of the part another one, which decides about
masks and is what ``save_pretrained`` writes.
"""

import copy
import functools
import warnings
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from ..convert import converted_layers
from ..detect import looks_like_attention


def ask_for_infsa(model: nn.Module) -> None:
    """Let the registry answer with InfSA for the converted layers of a model, and for no others."""
    layers = [module for module in model.modules() if _is_converted(module)]
    rest = [module for module in model.modules() if _config_of(module) is not None and not _is_converted(module)]
    known = {id(vars(layer).get("infsa_around")) for layer in layers}  # copies made by an earlier conversion
    copies: dict[int, Any] = {}
    module: Any
    for module in rest:
        if id(module.config) not in known:
            module.config = copies.setdefault(id(module.config), copy.copy(module.config))
            known.add(id(module.config))
    for around in copies.values():
        for name in getattr(around, "sub_configs", {}):
            own = getattr(around, name, None)
            setattr(around, name, copies.get(id(own), own))
    for layer in layers:
        _point(layer, copies)
    for around in {id(module.config): module.config for module in rest}.values():
        _choose_masks(around, [module for module in rest if module.config is around], layers)
    _note_layers(model)


def _point(layer: Any, copies: dict[int, Any]) -> None:
    """Let one layer ask for InfSA; ``infsa_source`` is the configuration it had, ``infsa_around`` the model's copy."""
    if "infsa_source" not in vars(layer):
        layer.infsa_source, layer.infsa_around = layer.config, layer.config
        layer.infsa_implementation = layer.config._attn_implementation
        layer.config = copy.copy(layer.config)
        layer.config._attn_implementation_internal = f"infsa_{layer.infsa_settings.variant}"
    layer.infsa_around = copies.get(id(layer.infsa_source), layer.infsa_around)


def _choose_masks(around: Any, holders: list[nn.Module], layers: list[Any]) -> None:
    """Let a configuration ask for InfSA's masks if no attention layer inside its modules needs others."""
    own = [layer for layer in layers if layer.infsa_around is around]
    others = [(name, part) for module in holders for name, part in module.named_modules() if _is_other(part)]
    if own and not others:
        around._attn_implementation_internal = own[0].config._attn_implementation
    elif own and around._attn_implementation not in (None, "eager", "sdpa"):
        kind = around._attn_implementation
        raise ValueError(f"{others[0][0]} keeps its attention, which needs 'eager' or 'sdpa' masks, got {kind!r}")


def forget_infsa(model: nn.Module) -> None:
    """Undo :func:`ask_for_infsa` for a model or a part of one."""
    layer: Any
    for layer in converted_layers(model).values():
        for config, name in vars(layer).get("infsa_notes", []):
            _strike(config, name)
        if "infsa_source" in vars(layer):
            layer.config = layer.infsa_around
            layer.config._attn_implementation_internal = (
                layer.infsa_implementation
            )  # softmax needs more than InfSA's masks
        for attribute in ("infsa_source", "infsa_around", "infsa_implementation", "infsa_notes"):
            vars(layer).pop(attribute, None)


def _note_layers(model: nn.Module) -> None:
    """Note in every configuration which layers of its model were converted, and how: ``save_pretrained`` keeps it."""
    noted: set[int] = set()
    for part in converted_layers(model).values():
        vars(part).pop("infsa_notes", None)
    for module in model.modules():
        if not isinstance(module, PreTrainedModel) or id(module.config) in noted:
            continue
        noted.add(id(module.config))
        layers = {name: vars(part) for name, part in converted_layers(module).items()}
        if layers:
            notes = {name: layer["infsa_settings"].as_dict() for name, layer in layers.items()}
            module.config.infsa = {"layers": notes, "partial": any(map(_is_other, module.modules()))}
        for name, layer in layers.items():
            layer.setdefault("infsa_notes", []).append((module.config, name))


def _strike(config: Any, name: str) -> None:
    """Take one layer out of what a configuration notes."""
    rest = {key: value for key, value in config.infsa["layers"].items() if key != name}
    config.infsa = {"layers": rest, "partial": True}
    if not rest:
        del config.infsa


def _config_of(module: nn.Module) -> Any:
    config = vars(module).get("config")
    return config if isinstance(config, PretrainedConfig) else None


def _is_converted(module: nn.Module) -> bool:
    """Whether a module is a converted layer of transformers; models hold those of torch too, without configuration."""
    return "infsa_layer" in vars(module) and _config_of(module) is not None


def _is_other(module: nn.Module) -> bool:
    """Whether a module is an attention layer that is not converted, nor contains one that is."""
    if _config_of(module) is None or not looks_like_attention(module):
        return False
    return not any(_is_converted(part) for part in module.modules())


def warn_where_softmax_is_loaded() -> None:
    """Let transformers say so when it reads the configuration of a converted model, on which it does not act."""
    plain: Any = PretrainedConfig.from_dict.__func__
    if hasattr(plain, "infsa_warns"):
        return

    @functools.wraps(plain)
    def from_dict(cls: Any, config_dict: dict[str, Any], **options: Any) -> Any:
        asked = options.get("attn_implementation")
        if "infsa" in config_dict and not str(asked).startswith("infsa_"):
            warnings.warn(
                "this model was saved with InfSA, and transformers loads it with softmax: "
                "infsa.conversion.huggingface.load_converted(CLASS, FOLDER) loads it as it was",
                stacklevel=3,
            )
        return plain(cls, config_dict, **options)

    warned: Any = from_dict
    warned.infsa_warns = True
    PretrainedConfig.from_dict = classmethod(warned)


warn_where_softmax_is_loaded()
