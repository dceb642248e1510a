"""Models of other libraries by name, and converted models on disk: safetensors that say how to make them again."""

import difflib
import importlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from ..files import write_atomically
from ..models.weights import read_weights, weight_file
from .convert import convert, converted_layers
from .settings import Settings
from .surgery import forget_rows

LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}


def open_model(
    name: str, weights: str | Path | None = None, pretrained: bool = False, options: dict[str, Any] | None = None
) -> nn.Module:
    """A model of timm, torchvision or Hugging Face, with random weights unless told otherwise.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME`` (a repository or a folder with a configuration); a name
            alone is timm's.
        weights: a .safetensors file, or a folder that holds ``model.safetensors``, to load.
        pretrained: fetch the weights that the library has for the name.
        options: for the model's constructor; for Hugging Face, fields of the configuration.

    Example:
        >>> model = open_model("timm:deit_tiny_patch16_224", options={"num_classes": 10})
    """
    library, colon, own = name.partition(":")
    if not colon:
        library, own = "timm", name
    if library not in LIBRARIES:
        raise ValueError(f"a model is timm:NAME, torchvision:NAME or hf:NAME, got {name!r}")
    try:
        importlib.import_module(LIBRARIES[library])
    except ImportError as error:
        raise ImportError(f"{name} needs the package {LIBRARIES[library]}: {error}") from error
    opener = {"timm": _from_timm, "torchvision": _from_torchvision, "hf": _from_hugging_face}[library]
    try:
        model = opener(own, pretrained, options or {})
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
    if weights is not None:
        _load(model, weights)
    return model.eval()


def _unknown(library: str, name: str, known: list[str]) -> ValueError:
    near = difflib.get_close_matches(name, known)
    return ValueError(f"{library} has no model {name!r}" + (f"; near are {', '.join(near)}" if near else ""))


def _from_timm(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    return timm.create_model(name, pretrained=pretrained, **options)


def _from_torchvision(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    from torchvision.models import get_model, list_models  # type: ignore[import-untyped]

    if name not in list_models():
        raise _unknown("torchvision", name, list_models())
    return get_model(name, weights="DEFAULT" if pretrained else None, **options)


def _from_hugging_face(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    import transformers
    from transformers import AutoConfig

    known = name in transformers.models.auto.configuration_auto.CONFIG_MAPPING
    config = AutoConfig.for_model(name, **options) if known else AutoConfig.from_pretrained(name, **options)
    kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
    if pretrained:
        return kind.from_pretrained(name, config=config)
    return kind.from_config(config) if kind is transformers.AutoModel else kind(config)


def _load(model: nn.Module, path: str | Path) -> None:
    weights, _ = read_weights(path)
    own = model.state_dict()
    wrong = sorted(own.keys() ^ weights.keys()) + [
        key for key in sorted(own.keys() & weights.keys()) if own[key].shape != weights[key].shape
    ]
    if wrong:
        raise ValueError(f"the weights at {path} do not fit the model: {', '.join(wrong[:3])} ({len(wrong)} in all)")
    model.load_state_dict(weights)


def save_converted(model: nn.Module, path: str | Path, source: str = "", options: dict[str, Any] | None = None) -> Path:
    """Write a converted model's weights into one safetensors file, with what each layer became.

    ``source`` and ``options`` are those of :func:`open_model`; with them :func:`load_converted` needs no model.

    Example:
        >>> save_converted(infsa.convert(model), "deit-pure.safetensors", "timm:deit_tiny_patch16_224")
    """
    model = getattr(model, "_orig_mod", model)  # behind torch.compile
    layers = {name: module.infsa_settings.as_dict() for name, module in converted_layers(model).items()}  # type: ignore
    if not layers:
        raise ValueError(f"no layer of this {type(model).__name__} was converted")
    facts = {"source": source, "options": options or {}, "layers": layers}
    state = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    header = {"format": "pt", "conversion": json.dumps(facts)}
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"converted weights go to a .safetensors file, got {path.name!r}")
    write_atomically(path, lambda aside: save_file(state, aside, header))
    return path


def read_conversion(path: str | Path) -> dict[str, Any]:
    """What a file of :func:`save_converted` says of itself: source, options, settings of each layer.

    Example:
        >>> read_conversion("deit-pure.safetensors")["source"]
        'timm:deit_tiny_patch16_224'
    """
    from safetensors import safe_open

    with safe_open(weight_file(path), framework="pt") as handle:
        facts = (handle.metadata() or {}).get("conversion")
    if facts is None:
        raise ValueError(f"{path} holds no converted model; infsa.convert.save_converted writes one")
    return json.loads(facts)


def load_converted(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The model of a file of :func:`save_converted`; ``model``, unconverted, is changed in place if it is given.

    Example:
        >>> model = load_converted("deit-pure.safetensors")
    """
    facts = read_conversion(path)
    if model is None:
        if not facts["source"]:
            raise ValueError(f"{path} does not say which model it holds: give the model")
        model = open_model(facts["source"], options=facts["options"])
    groups: dict[Settings, list[str]] = {}
    for name, fields in facts["layers"].items():
        groups.setdefault(Settings(**fields), []).append(name)
    for settings, names in groups.items():
        convert(model, include=names, inplace=True, **settings.as_dict())
    _load(model, path)
    forget_rows(model)
    return model
