"""Weights on disk: safetensors only, written whole or not at all, refused in one line if they do not fit.

A saved folder is what timm calls a local directory: ``timm.create_model("local-dir:FOLDER", pretrained=True)``
reads it, and so does ``infsa.create_model(name, pretrained=FOLDER)``.
"""

import inspect
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from .card import model_card
from .folder import (
    CONFIG,
    DATA,
    PROCESSOR,
    folder_config,
    plain,
    processor_config,
    read_folder_config,
    resolved_arguments,
)
from .infvit import InfViT

WEIGHTS = "model.safetensors"
PREFIX = "infvit."  # of the weights inside a Hugging Face model
FREE = {  # arguments that may differ between saving and loading
    "dynamic_img_size", "dynamic_img_pad", "mlp_chunk", "drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "attention_grid",
}  # fmt: skip


def weight_file(path: str | Path) -> Path:
    """The safetensors file at a path: the file itself, or the one in a saved folder or in the folder of a run."""
    path = Path(path)
    file = path / WEIGHTS if path.is_dir() else path
    if path.is_dir() and not file.exists() and (path / "model" / WEIGHTS).is_file():
        return path / "model" / WEIGHTS
    if path.is_dir() and (path / f"{WEIGHTS}.index.json").is_file():
        raise ValueError(f"the weights in {path} are split into several files; save them with a larger max_shard_size")
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}")
    if file.suffix != ".safetensors":
        raise ValueError(f"weights must be a .safetensors file, got {file.name}")
    return file


def read_weights(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a safetensors file or saved folder, and the model arguments stored with them, if any.

    Weights saved by the Hugging Face model are read as well: their arguments stand in ``config.json``.
    """
    file = weight_file(path)
    try:
        with safe_open(file, framework="pt") as handle:
            metadata = handle.metadata() or {}
            weights = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file: {' '.join(str(error).split())}") from error
    weights = without_prefix(weights)
    if "infsa" not in metadata and file.name == WEIGHTS:
        return weights, _arguments_beside(file)
    return weights, json.loads(metadata.get("infsa", "{}"))


def without_prefix(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights under the names of the timm-style model, also those of a Hugging Face model."""
    if weights and all(name.startswith(PREFIX) for name in weights):
        return {name.removeprefix(PREFIX): value for name, value in weights.items()}
    return weights


def _arguments_beside(file: Path) -> dict[str, Any]:
    """The model arguments in the ``config.json`` of a folder that Hugging Face wrote, or none."""
    config = read_folder_config(file)
    if config.get("model_type") != "infvit":
        return {}
    known = inspect.signature(InfViT).parameters.keys() - {"device", "dtype"}
    own = {name: config[name] for name in known & config.keys()}
    arguments = config.get("model_args", own | {"num_classes": len(config.get("id2label", (0, 1)))})
    if unknown := sorted(arguments.keys() - known):
        raise ValueError(f"{file.with_name(CONFIG)} sets {unknown[0]!r}, which is no argument of the model")
    name = config.get("pretrained_cfg", {}).get("architecture")
    return {**arguments, **({"architecture": name} if name else {})}


def read_data_config(path: str | Path) -> dict[str, Any]:
    """What weights say of their data: names of the classes, colours, how images are cropped and resampled."""
    file = weight_file(path)
    with safe_open(file, framework="pt") as handle:
        metadata = handle.metadata() or {}
    if "data" not in metadata and file.name == WEIGHTS:
        beside = read_folder_config(file).get("pretrained_cfg", {})
        return {name: beside[name] for name in DATA if beside.get(name) is not None}
    return json.loads(metadata.get("data", "{}"))


def describe_data(model: nn.Module, **facts: Any) -> None:
    """Write facts about the data of a model where timm looks for them: any of ``DATA``."""
    config: Any = model.pretrained_cfg
    config |= {name: value for name, value in facts.items() if name in DATA}


def check_same_model(saved: dict[str, Any], wanted: dict[str, Any], path: str | Path) -> None:
    """Refuse arguments that would make another function of the same weights."""
    for name in sorted(saved.keys() & wanted.keys()):
        if name not in FREE and plain(saved[name]) != plain(wanted[name]):
            raise ValueError(f"the weights at {path} were saved with {name}={saved[name]!r}, got {wanted[name]!r}")


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a model; if anything does not fit, one line says what and the model stays as it is."""
    (weights, saved), own = read_weights(path), model.state_dict()
    if isinstance(model, InfViT):
        check_same_model(saved, resolved_arguments(model), path)
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


def save_weights(model: InfViT, folder: str | Path, training: dict[str, Any] | None = None) -> Path:
    """Write weights, configuration, image processor and model card into ``folder`` and return it.

    ``training`` holds facts for the model card: data, recipe, accuracy.

    Example:
        >>> model = infsa.create_model("infvit_linear_tiny", num_classes=10)
        >>> infsa.models.save_weights(model, "tiny10")
        >>> same = timm.create_model("local-dir:tiny10", pretrained=True)
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = folder_config(model)
    data = config["pretrained_cfg"]
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        staged = Path(scratch)
        identity = config["model_args"] | ({"architecture": data["architecture"]} if "architecture" in data else {})
        described = {name: data[name] for name in DATA if data.get(name) is not None}
        header = {"format": "pt", "infsa": json.dumps(identity), "data": json.dumps(described)}
        save_file(state, staged / WEIGHTS, metadata=header)
        texts = {CONFIG: json.dumps(config, indent=2) + "\n", "README.md": model_card(model, config, training)}
        if model.in_chans == 3:
            texts[PROCESSOR] = json.dumps(processor_config(model.patch_embed.img_size, data), indent=2) + "\n"
        for name, text in texts.items():
            (staged / name).write_text(text, encoding="utf-8")
        for file in (*texts, WEIGHTS):
            with open(staged / file, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(staged / file, folder / file)
    return folder
