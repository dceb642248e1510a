"""Weights on disk: safetensors only, written whole or not at all, refused in one line if they do not fit.

A saved folder is what timm calls a local directory: ``timm.create_model("local-dir:FOLDER", pretrained=True)``
reads it, and so does ``infsa.create_model(name, pretrained=FOLDER)``.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from ..files import usual_mode
from .card import model_card
from .infvit import InfViT
from .options import WITH_DECAY

WEIGHTS = "model.safetensors"
DEFAULT_ARCHITECTURE = "infvit_linear_4l64h_patch16_224"  # of models built without a name: every argument is saved
ORIGIN = ("file", "url", "source", "hf_hub_id", "hf_hub_filename", "state_dict")  # where weights once came from
DATA = ("label_names", "mean", "std", "crop_pct", "interpolation")  # of timm's data configuration, kept with weights
FREE = {  # arguments that may differ between saving and loading
    "dynamic_img_size", "dynamic_img_pad", "mlp_chunk", "drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "attention_grid",
}  # fmt: skip


def weight_file(path: str | Path) -> Path:
    """The safetensors file at a path: the file itself, or the one in a saved folder."""
    path = Path(path)
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}")
    if file.suffix != ".safetensors":
        raise ValueError(f"weights must be a .safetensors file, got {file.name}")
    return file


def read_weights(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a safetensors file or saved folder, and the model arguments stored with them, if any.

    Weights saved by the Hugging Face model are read as well.
    """
    file = weight_file(path)
    try:
        with safe_open(file, framework="pt") as handle:
            metadata = handle.metadata() or {}
            weights = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {' '.join(str(error).split())}") from error
    if weights and all(name.startswith("infvit.") for name in weights):
        weights = {name.removeprefix("infvit."): value for name, value in weights.items()}
    return weights, json.loads(metadata.get("infsa", "{}"))


def read_data_config(path: str | Path) -> dict[str, Any]:
    """What weights say of their data: names of the classes, colours, how images are cropped and resampled."""
    with safe_open(weight_file(path), framework="pt") as handle:
        return json.loads((handle.metadata() or {}).get("data", "{}"))


def describe_data(model: nn.Module, **facts: Any) -> None:
    """Write facts about the data of a model where timm looks for them: any of ``DATA``."""
    config: Any = model.pretrained_cfg
    config |= {name: value for name, value in facts.items() if name in DATA}


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))


def check_same_model(saved: dict[str, Any], wanted: dict[str, Any], path: str | Path) -> None:
    """Refuse arguments that would make another function of the same weights."""
    for name in sorted(saved.keys() & wanted.keys()):
        if name not in FREE and plain(saved[name]) != plain(wanted[name]):
            raise ValueError(f"the weights at {path} were saved with {name}={saved[name]!r}, got {wanted[name]!r}")


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a model; if anything does not fit, one line says what and the model stays as it is."""
    (weights, saved), own = read_weights(path), model.state_dict()
    if isinstance(model, InfViT):
        check_same_model(saved, _resolved(model), path)
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


def _resolved(model: InfViT) -> dict[str, Any]:
    """The model's arguments, with the γ that None stands for; without one where the mechanism has none."""
    arguments = model.arguments | {"gamma": model.gamma}
    return arguments if model.attention in WITH_DECAY else {k: v for k, v in arguments.items() if k != "gamma"}


def save_weights(model: InfViT, folder: str | Path) -> Path:
    """Write weights, configuration and model card into ``folder`` and return it.

    Example:
        >>> model = infsa.create_model("infvit_linear_tiny", num_classes=10)
        >>> infsa.models.save_weights(model, "tiny10")
        >>> same = timm.create_model("local-dir:tiny10", pretrained=True)
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = {k: v for k, v in getattr(model, "pretrained_cfg", {}).items() if v is not None and k not in ORIGIN}
    data |= {"num_classes": model.num_classes, "input_size": (model.in_chans, *model.patch_embed.img_size)}
    arguments = plain(_resolved(model) | {"attention_grid": model.attention_grid})
    config = {
        **arguments,  # at the top for Hugging Face, in model_args for timm
        "model_type": "infvit",
        "num_labels": model.num_classes,
        "architecture": data.get("architecture", DEFAULT_ARCHITECTURE),
        "num_features": model.num_features,
        "pretrained_cfg": data,
        "model_args": arguments,
    }
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        staged = Path(scratch)
        identity = arguments | ({"architecture": data["architecture"]} if "architecture" in data else {})
        described = {name: data[name] for name in DATA if data.get(name) is not None}
        header = {"format": "pt", "infsa": json.dumps(identity), "data": json.dumps(described)}
        save_file(state, staged / WEIGHTS, metadata=header)
        (staged / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (staged / "README.md").write_text(model_card(model, config))
        (staged / WEIGHTS).chmod(usual_mode(staged / "README.md"))  # safetensors lets only its owner read it
        for file in ("config.json", "README.md", WEIGHTS):
            with open(staged / file, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(staged / file, folder / file)
    return folder
