"""A folder of ``save_pretrained``, read so that it chooses no more than a file may: no code, pickle or other place."""

from pathlib import Path
from typing import Any

from ..models.header import FLAG, LARGEST_ENTRY, Header, brief, parse, permitted, read_header
from ..models.weights import WEIGHTS, check_inside
from .permitted import TABLE, check_layers
from .permitted_fields import config_class, has_layers, permitted_fields

INDEX = f"{WEIGHTS}.index.json"
NOTES = {"layers": TABLE, "partial": FLAG}


def read_folder(folder: str | Path) -> tuple[Any, dict[str, Any], Header]:
    """The class of a folder's configuration, the fields and notes in it, and the header of all its tensors."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give one that save_pretrained wrote; nothing is downloaded")
    config, fields = read_config(folder)
    where = f"{folder / 'config.json'}"
    if not has_layers(config):
        raise ValueError(f"{where}: model_type must be one with layers to convert, got {config.model_type!r}")
    return config, fields | {"infsa": _notes(_read_json(folder / "config.json").get("infsa"), where)}, _tensors(folder)


def read_config(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The class of a folder's configuration and its plain fields; a folder that leads elsewhere is refused."""
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{folder}: its adapter_config.json asks for another model, which a file may not choose")
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".safetensors"):
            check_inside(file, folder)
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        _shards(folder)
    asked, where = _read_json(folder / "config.json"), f"{folder / 'config.json'}"
    config = config_class(asked.get("model_type"))
    if config is None:
        raise ValueError(f"{where}: model_type must be one of transformers', got {brief(asked.get('model_type'))}")
    return config, permitted_fields(asked, config, where, folder=True)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"{file.parent} holds no {file.name}")
    if file.stat().st_size > LARGEST_ENTRY:
        raise ValueError(f"{file} must have at most {LARGEST_ENTRY} bytes, got {file.stat().st_size}")
    found = parse(file.read_bytes().decode("utf-8", errors="replace"), str(file))
    if not isinstance(found, dict):
        raise ValueError(f"{file} must hold a table of names and values, got {brief(found)}")
    return found


def _notes(asked: Any, where: str) -> Any:
    """What ``save_pretrained`` noted of the conversion; None if nothing."""
    if asked is None:
        return None
    notes = permitted(asked, NOTES, f"{where}: infsa")
    check_layers(notes.get("layers", {}), where)
    return notes


def _shards(folder: Path) -> list[str]:
    """The files that an index names, all of them safetensors files of its own folder."""
    listed = _read_json(folder / INDEX).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    for name in names:
        if Path(name).name != name or not (folder / name).is_file() or not name.endswith(".safetensors"):
            raise ValueError(f"{folder / INDEX} asks for {brief(name)}, which is not a safetensors file of the folder")
    return names


def _tensors(folder: Path) -> Header:
    """All tensors of a folder, in one file or several."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in [WEIGHTS] if (folder / WEIGHTS).is_file() else _shards(folder):
        tensors |= read_header(folder / name).tensors
    return Header(folder, {}, tensors)
