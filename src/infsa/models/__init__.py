"""InfViT models. Importing this module registers them with timm."""

from pathlib import Path
from typing import Any

import timm

from . import presets
from .infvit import InfViT
from .maps import attention_maps
from .speed import FastInfViT, fast
from .trial import build_as_filed
from .weights import (
    check_same_model,
    describe_data,
    load_weights,
    read_data_config,
    read_saved,
    read_weights,
    save_weights,
)

FITTED = ("num_classes", "img_size")  # arguments that shipped weights are fitted to

__all__ = [
    "FastInfViT",
    "InfViT",
    "attention_maps",
    "create_model",
    "fast",
    "list_models",
    "load_weights",
    "read_weights",
    "save_weights",
]


def list_models() -> list[str]:
    """The names that :func:`create_model` and ``timm.create_model`` know.

    Example:
        >>> infsa.list_models()[0]
        'infvit_linear_4l64h_patch16_224'
    """
    return list(presets.MODELS)


def create_model(name: str, pretrained: bool | str | Path = False, **kwargs: Any) -> InfViT:
    """Build a model by name; ``pretrained`` may be a saved folder or a safetensors file.

    The arguments saved with the weights are used; others that contradict them are refused. ``pretrained=True`` loads
    the weights that come with the package, for the tiny models: 50 classes of Tiny-ImageNet; with another
    ``num_classes`` the classifier starts anew, with another ``img_size`` the positions are resized.

    Example:
        >>> model = infsa.create_model("infvit_linear_4l64h_patch16_224", num_classes=10)
        >>> rival = infsa.create_model("vit_4l16h_patch16_224", attention="performer")
    """
    if name not in presets.MODELS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(presets.MODELS)}")
    if not pretrained:
        return timm.create_model(name, **kwargs)  # type: ignore[return-value]
    if pretrained is True:
        file = presets.shipped_weights(name)
        if file is None:
            raise ValueError(
                f"no weights are shipped for {name}, only for {', '.join(presets.SHIPPED)}; "
                "pass pretrained=FOLDER or a .safetensors file"
            )
        check_same_model(read_saved(file)[1], {k: v for k, v in kwargs.items() if k not in FITTED}, file.name)
        return timm.create_model(name, pretrained=True, **kwargs)  # type: ignore[return-value]
    header, saved = read_saved(pretrained)
    check_same_model(saved, {"architecture": name, **kwargs}, pretrained)
    data = read_data_config(pretrained)
    saved.pop("architecture", None)
    device = kwargs.pop("device", None)
    model: InfViT = build_as_filed(lambda: timm.create_model(name, **{**saved, **kwargs}), header)  # type: ignore
    load_weights(model, pretrained)
    describe_data(model, **data)
    return model.to(device)
