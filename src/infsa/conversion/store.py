"""Models of other libraries by name, and converted models on disk: safetensors that say how to make them again."""

import difflib
import importlib
import json
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from ..files import write_atomically
from ..models.header import Header, brief, read_header, read_tensors
from ..models.trial import build_as_filed, check_fit
from ..models.weights import weight_file
from .convert import convert_as_noted, converted_layers, revert
from .permitted import DTYPES, check_source, permitted_facts
from .surgery import forget_rows

LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}


def open_model(
    name: str, weights: str | Path | None = None, pretrained: bool = False, options: dict[str, Any] | None = None
) -> nn.Module:
    """A model of timm, torchvision or Hugging Face, with random weights unless told otherwise.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME`` (a repository or a folder with a configuration); a name
            alone is timm's. Only a repository or ``pretrained`` opens a connection.
        weights: a .safetensors file, or a folder that holds ``model.safetensors``, to load.
        pretrained: download the library's weights for the name; from Hugging Face, safetensors only.
        options: for the model's constructor; for Hugging Face, fields of the configuration.

    Example:
        >>> open_model("timm:deit_tiny_patch16_224", options={"num_classes": 10}).num_classes
        10
    """
    library, colon, own = name.partition(":")
    if not colon:
        library, own = "timm", name
    if library not in LIBRARIES:
        raise ValueError(f"a model must be timm:NAME, torchvision:NAME or hf:NAME, got {name!r}")
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
        header = read_header(weight_file(weights))
        check_fit(model, header)
        model.load_state_dict(read_tensors(header.file))
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
    from transformers import AutoConfig, AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if name in CONFIG_MAPPING:
        config = AutoConfig.for_model(name, **options)
    elif Path(name).is_dir():
        from .folder import read_config

        made_for, fields = read_config(Path(name))
        config = made_for.from_dict(fields, **options)
    else:
        config = AutoConfig.from_pretrained(name, **{"trust_remote_code": False, **options})
    kind = _class_of(config)
    if pretrained:
        return kind.from_pretrained(name, config=config, use_safetensors=True)
    return kind.from_config(config) if kind is AutoModel else kind(config)


def _class_of(config: Any) -> Any:
    """The model class of transformers that a configuration names, if it is made for such a configuration."""
    import transformers

    name = (config.architectures or [""])[0]
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    made_for = getattr(kind, "config_class", None)
    fits = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) and made_for is type(config)
    return kind if fits else transformers.AutoModel


def save_converted(model: nn.Module, path: str | Path, source: str = "", options: dict[str, Any] | None = None) -> Path:
    """Write a converted model's weights into one safetensors file, with what each layer became.

    ``source`` and ``options`` are those of :func:`open_model`; with them :func:`load_converted` needs no model, if they
    name an architecture of a library and its sizes. Every tensor keeps its type.

    Example:
        >>> model = infsa.convert(open_model("timm:deit_tiny_patch16_224"))
        >>> save_converted(model, "deit-pure.safetensors", "timm:deit_tiny_patch16_224").name
        'deit-pure.safetensors'
    """
    model = getattr(model, "_orig_mod", model)  # behind torch.compile
    layers = {name: module.infsa_settings.as_dict() for name, module in converted_layers(model).items()}  # type: ignore
    if not layers:
        raise ValueError(f"no layer of this {type(model).__name__} was converted")
    facts = {"source": source, "options": options or {}, "layers": layers, "buffers": _computed_dtypes(model)}
    state = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    header = {"format": "pt", "conversion": json.dumps(facts)}
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"the file for converted weights must end in .safetensors, got {path.name!r}")
    write_atomically(path, lambda aside: save_file(state, aside, header))
    if source:
        _warn_if_refused(path, source, json.loads(header["conversion"])["options"])
    return path


def _computed_dtypes(model: nn.Module) -> dict[str, str]:
    """The types of buffers that the state dict leaves out, where they are not torch's default."""
    kept, names = model.state_dict().keys(), {dtype: name for name, dtype in DTYPES.items()}
    own = {name: value.dtype for name, value in model.named_buffers() if name not in kept}
    return {name: names[dtype] for name, dtype in own.items() if dtype in names and names[dtype] != "float32"}


def _warn_if_refused(path: Path, source: str, options: dict[str, Any]) -> None:
    try:
        check_source(source, options, f"{path}: its header")
    except ValueError as error:
        warnings.warn(f"this file will be loaded into a model only, load_converted(FILE, MODEL): {error}", stacklevel=3)


def read_conversion(path: str | Path) -> dict[str, Any]:
    """What a file of :func:`save_converted` says of itself: source, options, settings of each layer."""
    return _conversion(read_header(weight_file(path)))


def _conversion(header: Header) -> dict[str, Any]:
    if "conversion" not in header.texts:
        raise ValueError(f"{header.file} holds no converted model; infsa.conversion.save_converted writes one")
    header.check_entries()
    return permitted_facts(header.entry("conversion"), header.where)


def load_converted(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Load a model saved by :func:`save_converted`; every tensor keeps its dtype.

    A file may name only an architecture of timm, torchvision or transformers, its sizes, and the settings of its
    layers. Nothing is downloaded. For anything else give the ``model``, unconverted: it is
    changed in place, and stays as it is if the file does not fit.

    Example:
        >>> file = save_converted(infsa.convert(torch.nn.MultiheadAttention(16, 2)), "mine.safetensors")
        >>> load_converted(file, torch.nn.MultiheadAttention(16, 2)).infsa_settings.variant
        'pure'
    """
    header = read_header(weight_file(path))
    facts = _conversion(header)
    if model is None:
        source, options = facts["source"], facts["options"]
        if not source:
            raise ValueError(f"{path} does not name its model: pass the model")
        check_source(source, options, header.where)
        model = build_as_filed(lambda: _converted(open_model(source, options=options), facts, header), header)
        return _fill(model, facts, header)
    try:
        return _fill(_converted(model, facts, header), facts, header)
    except BaseException:
        if converted_layers(model):
            revert(model)
        raise


def _converted(model: nn.Module, facts: dict[str, Any], header: Header) -> nn.Module:
    for name in facts["layers"].keys() - dict(model.named_modules()).keys():
        raise ValueError(f"{header.where} names the layer {brief(name)}, which the model does not have")
    return convert_as_noted(model, facts["layers"])


def _fill(model: nn.Module, facts: dict[str, Any], header: Header) -> nn.Module:
    """Give a converted model the file's tensors, and every tensor the type that it had when it was saved."""
    check_fit(model, header)
    weights, own = read_tensors(header.file), dict(model.named_buffers())
    computed = own.keys() - weights.keys()
    if unknown := sorted(facts["buffers"].keys() - computed):
        raise ValueError(f"{header.where} names the table {brief(unknown[0])}, which the model does not have")
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(weights[name].dtype)
    for name in computed:
        dtype = DTYPES.get(facts["buffers"].get(name, ""), own[name].dtype)
        own[name].data = own[name].data.to(dtype)
    model.load_state_dict(weights)
    forget_rows(model)
    return model
