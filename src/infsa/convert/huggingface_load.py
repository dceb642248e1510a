"""Load a converted Hugging Face model that was saved with ``save_pretrained``."""

from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .convert import convert
from .settings import Settings


def load_converted(model_class: Any, folder: str | Path, **options: Any) -> nn.Module:
    """A model saved after :func:`infsa.convert`, converted again with the same settings and layers.

    ``save_pretrained`` writes them into the configuration, but Hugging Face itself does not act on them: without this
    function the folder loads with the model's own attention.

    Args:
        model_class: the class to load, or an Auto class.
        folder: what ``save_pretrained`` wrote.
        **options: for ``from_pretrained``.

    Example:
        >>> infsa.convert(model, "pure", gamma=0.9).save_pretrained("folder")
        >>> load_converted(AutoModelForCausalLM, "folder").generate(prompt)
    """
    model = model_class.from_pretrained(folder, **options)
    saved = getattr(model.config, "infsa", None)
    if saved is None:
        raise ValueError(f"{folder} holds no converted model: its configuration has no entry 'infsa'")
    if any(settings["learn_gamma"] for settings in saved["layers"].values()):
        return _load_with_decay(type(model), folder, saved["layers"], options)
    return _convert(model, saved["layers"])


def _convert(model: nn.Module, layers: dict[str, dict[str, Any]]) -> nn.Module:
    """Convert layers as noted; a model saved with a head around it may be loaded without, so prefixes may differ."""
    groups: dict[Settings, list[str]] = {}
    for module in model.modules():
        if isinstance(module, PreTrainedModel):  # what the file says must not outlive infsa.revert
            vars(module.config).pop("infsa", None)
    names = {name for name, _ in model.named_modules() if name}
    for noted, settings in layers.items():
        inside = (name for name in names if name.endswith(f".{noted}") or noted.endswith(f".{name}"))
        found = [noted] if noted in names else list(inside)
        if not found:
            raise ValueError(f"the layer {noted} was converted, and this {type(model).__name__} has none of that name")
        groups.setdefault(Settings(**settings), []).extend(found)
    for chosen, own in groups.items():
        convert(model, include=own, inplace=True, **chosen.as_dict())
    return model


def _load_with_decay(
    model_class: Any, folder: str | Path, layers: dict[str, dict[str, Any]], options: dict[str, Any]
) -> nn.Module:
    """Convert before the weights are filled in: only then does the library find a place for the learned γ."""

    def build(self: Any, config: Any, *arguments: Any, **keywords: Any) -> None:
        model_class.__init__(self, config, *arguments, **keywords)
        _convert(self, layers)

    members = {"__init__": build, "__module__": model_class.__module__}
    loader: Any = type(model_class.__name__, (model_class,), members)
    model = loader.from_pretrained(folder, **options)
    model.__class__ = model_class
    return model
