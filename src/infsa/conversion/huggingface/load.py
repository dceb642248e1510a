"""Load a converted Hugging Face model that was saved with ``save_pretrained``."""

from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ...models.header import Header
from ...models.trial import build_without_memory, refusals, stored
from ..convert import convert_as_noted
from ..folder import read_folder

SPARE = 1 << 26  # numbers that a model may have beside those of its folder, such as a new classifier


def load_converted(model_class: Any, folder: str | Path, **options: Any) -> nn.Module:
    """A model saved after :func:`infsa.convert`, converted again with the same settings and layers.

    ``save_pretrained`` writes them into the configuration, but Hugging Face itself does not act on them: without this
    function the folder loads with the model's own attention, and a warning says so.

    The folder chooses plain values of a configuration only: its code, its pickles, adapters and other places that it
    names are refused, and nothing is fetched.

    Args:
        model_class: the class to load, or an Auto class.
        folder: what ``save_pretrained`` wrote.
        **options: for ``from_pretrained``.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> small = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        >>> infsa.convert(ViTModel(small), "pure", gamma=0.9).save_pretrained("folder")
        >>> model = infsa.conversion.huggingface.load_converted(ViTModel, "folder")
        >>> [layer.infsa_settings.gamma for layer in infsa.conversion.converted_layers(model).values()]
        [0.9]
    """
    made_for, fields, header = read_folder(folder)
    notes = fields.pop("infsa")
    if not notes or not notes.get("layers"):
        raise ValueError(f"{folder} holds no converted model: its configuration has no entry 'infsa'")
    layers = notes["layers"]
    dtype = {"dtype": options.pop("dtype")} if "dtype" in options else {}
    with refusals(header):
        config, rest = made_for.from_dict(fields, return_unused_kwargs=True, **options)
    _check_size(model_class, config, header)
    place = {"config": config, "trust_remote_code": False, "use_safetensors": True, "local_files_only": True}
    with refusals(header):
        model = model_class.from_pretrained(folder, **{**place, **rest, **dtype})
        if any(settings.get("learn_gamma") for settings in layers.values()):
            return _load_with_decay(type(model), folder, layers, {**place, **rest, **dtype})
        return _convert(model, layers)


def _check_size(model_class: Any, config: Any, header: Header) -> None:
    """Refuse a configuration that asks for much more than its folder holds, before there is memory for it."""
    build = getattr(model_class, "from_config", None) or getattr(model_class, "_from_config", model_class)
    model = build_without_memory(lambda: build(config), header)
    wanted = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    if wanted > SPARE + 4 * stored(header):
        raise ValueError(f"{header.file}: its configuration asks for {wanted} numbers, and it holds {stored(header)}")


def _convert(model: nn.Module, layers: dict[str, dict[str, Any]]) -> nn.Module:
    """Convert layers as noted; a model saved with a head around it may be loaded without, so prefixes may differ."""
    found: dict[str, dict[str, Any]] = {}
    for module in model.modules():
        if isinstance(module, PreTrainedModel):  # what the file says must not outlive infsa.revert
            vars(module.config).pop("infsa", None)
    names = {name for name, _ in model.named_modules() if name}
    for noted, settings in layers.items():
        inside = (name for name in names if name.endswith(f".{noted}") or noted.endswith(f".{name}"))
        own = [noted] if noted in names else list(inside)
        if not own:
            raise ValueError(f"the layer {noted} was converted, and this {type(model).__name__} has none of that name")
        found |= dict.fromkeys(own, settings)
    return convert_as_noted(model, found)


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
