"""Load a converted Hugging Face model that was saved with ``save_pretrained``."""

from pathlib import Path
from typing import Any

from torch import nn

from .convert import convert


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
    if saved is None or "layers" not in saved:
        raise ValueError(f"{folder} holds no converted model: its configuration has no entry 'infsa'")
    if saved["settings"]["learn_gamma"]:
        return _load_with_decay(type(model), folder, saved, options)
    return convert(model, include=saved["layers"], inplace=True, **saved["settings"])


def _load_with_decay(model_class: Any, folder: str | Path, saved: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    """Convert before the weights are filled in: only then does the library find a place for the learned γ."""

    def build(self: Any, config: Any, *arguments: Any, **keywords: Any) -> None:
        model_class.__init__(self, config, *arguments, **keywords)
        convert(self, include=saved["layers"], inplace=True, **saved["settings"])

    members = {"__init__": build, "__module__": model_class.__module__}
    loader: Any = type(model_class.__name__, (model_class,), members)
    model = loader.from_pretrained(folder, **options)
    model.__class__ = model_class
    return model
