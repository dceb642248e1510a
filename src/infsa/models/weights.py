"""Weights on disk: safetensors only, written whole or not at all, refused in one line if they do not fit.

A saved folder is what timm calls a local directory: ``timm.create_model("local-dir:FOLDER", pretrained=True)``
reads it, and so does ``infsa.create_model(name, pretrained=FOLDER)``.
"""

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from .card import model_card
from .infvit import InfViT

WEIGHTS = "model.safetensors"
DEFAULT_ARCHITECTURE = "infvit_linear_4l64h_patch16_224"  # for models built without a name; all arguments are saved


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or of the one in a saved folder."""
    path = Path(path)
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}")
    if file.suffix != ".safetensors":
        raise ValueError(f"weights must be a .safetensors file, got {file.name}")
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {' '.join(str(error).split())}") from error


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a model; if anything is missing, left over or misshapen, the model stays as it is."""
    weights, own = read_weights(path), model.state_dict()
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    misshapen = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in sorted(own.keys() & weights.keys())
        if weights[name].shape != own[name].shape
    ]
    problems = [
        f"{kind}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
        if names
    ]
    if problems:
        raise ValueError(f"the weights at {path} do not fit the model; {'; '.join(problems)}")
    model.load_state_dict(weights)


def save_weights(model: InfViT, folder: str | Path) -> Path:
    """Write weights, configuration and model card into ``folder`` and return it.

    Example:
        >>> model = infsa.create_model("infvit_linear_tiny", num_classes=10)
        >>> infsa.models.save_weights(model, "tiny10")
        >>> same = timm.create_model("local-dir:tiny10", pretrained=True)
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = dict(getattr(model, "pretrained_cfg", {}))
    height, width = model.patch_embed.img_size
    data |= {
        "num_classes": model.num_classes,
        "input_size": (model.patch_embed.proj.in_channels, height, width),
    }
    config = {
        "architecture": data.get("architecture", DEFAULT_ARCHITECTURE),
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "pretrained_cfg": {key: value for key, value in data.items() if value is not None},
        "model_args": model.arguments,
    }
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        staged = Path(scratch)
        save_file(state, staged / WEIGHTS, metadata={"format": "pt"})
        (staged / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (staged / "README.md").write_text(model_card(model, config))
        for file in ("config.json", "README.md", WEIGHTS):
            with open(staged / file, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(staged / file, folder / file)
    return folder
