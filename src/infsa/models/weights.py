"""Weights on disk: safetensors only, written whole or not at all, refused in one line if they do not fit.

A saved folder is what timm calls a local directory: ``timm.create_model("local-dir:FOLDER", pretrained=True)``
reads it, and so does ``infsa.create_model(name, pretrained=FOLDER)``.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import nn

from ..files import usual_mode
from .card import model_card
from .folder import (
    CONFIG,
    PROCESSOR,
    folder_config,
    plain,
    processor_config,
    read_folder_config,
    resolved_arguments,
    table_in,
)
from .header import ARGUMENTS, DATA, Header, permitted, permitted_arguments, read_header, read_tensors
from .infvit import InfViT
from .trial import misfits

WEIGHTS = "model.safetensors"
PREFIX = "infvit."  # of the weights inside a Hugging Face model
Value = TypeVar("Value")
FREE = {  # arguments that may differ between saving and loading
    "dynamic_img_size", "dynamic_img_pad", "mlp_chunk", "drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "attention_grid",
}  # fmt: skip


def weight_file(path: str | Path) -> Path:
    """The safetensors file at a path: the file itself, or the one in a saved folder, which must not lead out of it.

    The folder of a run stands for the saved folder inside it.
    """
    path = Path(path)
    file = path / WEIGHTS if path.is_dir() else path
    if path.is_dir() and not file.exists() and (path / "model" / WEIGHTS).is_file():
        return weight_file(path / "model")
    if path.is_dir() and (path / f"{WEIGHTS}.index.json").is_file():
        raise ValueError(f"the weights in {path} are split into several files; save them with a larger max_shard_size")
    if not file.is_file():
        raise FileNotFoundError(f"no {WEIGHTS} in {path}" if path.is_dir() else f"no weights at {path}")
    if file.suffix != ".safetensors":
        convert = "; load a pickle yourself and write it with safetensors.torch.save_file"
        hint = convert if file.suffix in (".pth", ".pt", ".bin", ".ckpt", ".tar") else ""
        raise ValueError(f"weights must be a .safetensors file, got {file.name}{hint}")
    if file is not path:
        check_inside(file, path)
    return file


def check_inside(file: Path, folder: Path) -> None:
    """Refuse a file of a folder that is a link to elsewhere; the hub's cache links its snapshots to its blobs."""
    place, home = file.resolve().parent, folder.resolve()
    cached = home.parent.name == "snapshots" and place == home.parent.parent / "blobs"
    if home != place and home not in place.parents and not cached:
        raise ValueError(f"{file} links to a file outside its folder: give that file instead")


def read_saved(path: str | Path) -> tuple[Header, dict[str, Any]]:
    """The header of weights, and the model arguments in it, which are those that a file may choose.

    Weights saved by the Hugging Face model are named as in the model inside it; ``config.json`` has their arguments.
    """
    from .presets import MODELS

    header = read_header(weight_file(path))
    header.check_entries()
    if "infsa" not in header.texts and header.file.name == WEIGHTS:
        saved = permitted_arguments(_arguments_beside(header.file), MODELS, str(header.file.with_name(CONFIG)))
    else:
        saved = permitted_arguments(header.entry("infsa"), MODELS, header.where)
    return Header(header.file, header.texts, without_prefix(header.tensors)), saved


def read_weights(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a safetensors file or saved folder, and the model arguments stored with them, if any.

    Weights saved by the Hugging Face model are read as well.
    """
    header, saved = read_saved(path)
    return without_prefix(read_tensors(header.file)), saved


def without_prefix(weights: dict[str, Value]) -> dict[str, Value]:
    """Weights, or what is known of them, by the names of the timm-style model, also those of a Hugging Face model."""
    if weights and all(name.startswith(PREFIX) for name in weights):
        return {name.removeprefix(PREFIX): value for name, value in weights.items()}
    return weights


def _arguments_beside(file: Path) -> Any:
    """The model arguments in the ``config.json`` of a folder that Hugging Face wrote, or none."""
    config = read_folder_config(file)
    if config.get("model_type") != "infvit":
        return {}
    own = {name: config[name] for name in ARGUMENTS.keys() & config.keys()}
    arguments = config.get("model_args", own | {"num_classes": len(table_in(config, "id2label")) or 2})
    name = table_in(config, "pretrained_cfg").get("architecture")
    return {**arguments, "architecture": name} if name and isinstance(arguments, dict) else arguments


def read_data_config(path: str | Path) -> dict[str, Any]:
    """What weights say of their data: names of the classes, colours, how images are cropped and resampled."""
    header = read_header(weight_file(path))
    if "data" not in header.texts and header.file.name == WEIGHTS:
        beside = table_in(read_folder_config(header.file), "pretrained_cfg")
        known = {name: beside[name] for name in DATA if beside.get(name) is not None}
        return permitted(known, DATA, f"{header.file.with_name(CONFIG)}: pretrained_cfg")
    return permitted(header.entry("data"), DATA, f"{header.where}: data")


def describe_data(model: nn.Module, **facts: Any) -> None:
    """Write facts about a model's data where timm looks for them, such as ``mean``, ``std`` or ``label_names``."""
    described: Any = model
    if not hasattr(described, "pretrained_cfg"):  # of an InfViT made by its class, not by its name
        described.pretrained_cfg = {}
    described.pretrained_cfg |= {name: value for name, value in facts.items() if name in DATA}


def check_same_model(saved: dict[str, Any], wanted: dict[str, Any], path: str | Path) -> None:
    """Refuse arguments that would make another function of the same weights."""
    saved = {"stem": "patch", **saved} if saved else saved  # the only one of earlier files
    for name in sorted(saved.keys() & wanted.keys()):
        if name not in FREE and plain(saved[name]) != plain(wanted[name]):
            raise ValueError(f"the weights at {path} were saved with {name}={saved[name]!r}, got {wanted[name]!r}")


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a model; if anything does not fit, an error says what, and the model stays unchanged."""
    header, saved = read_saved(path)
    if isinstance(model, InfViT):
        check_same_model(saved, resolved_arguments(model), path)
    if problems := misfits(model, header):
        raise ValueError(f"the weights at {path} do not fit the model; {problems}")
    model.load_state_dict(read_weights(path)[0])


def save_weights(model: InfViT, folder: str | Path, training: dict[str, Any] | None = None) -> Path:
    """Write weights, configuration, image processor and model card into ``folder`` and return it.

    ``training`` holds facts for the model card: data, recipe, accuracy.
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
        (staged / WEIGHTS).chmod(usual_mode(staged / "README.md"))  # safetensors lets only its owner read it
        for file in (*texts, WEIGHTS):
            with open(staged / file, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(staged / file, folder / file)
    return folder
