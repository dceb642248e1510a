"""Checkpoints that survive a crash: written aside, flushed to the disk, renamed, and verified when read.

A checkpoint is one safetensors file: named tensors, and plain facts (the step, the history) as JSON in its header,
with a digest over both.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..files import write_atomically

Tensors = dict[str, Tensor]
PATTERN = "step-*.safetensors"


class DamagedCheckpoint(ValueError):
    """A checkpoint file that is cut off or altered."""


def write_checkpoint(folder: Path, step: int, tensors: Tensors, facts: dict[str, Any], keep: int) -> Path:
    """Save the state at a step, then delete all but the newest ``keep`` checkpoints."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts, sort_keys=True)
    path = folder / f"step-{step:08d}.safetensors"
    header = {"facts": text, "digest": _digest(whole, text)}
    write_atomically(path, lambda aside: save_file(whole, aside, header))
    for old in [other for other in list_checkpoints(folder) if other <= path][keep:]:  # later ones are damaged
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(folder.glob(PATTERN), reverse=True)


def read_checkpoint(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and facts of a checkpoint, or :class:`DamagedCheckpoint`."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # copies: a mapped file keeps its place on the disk after it is deleted
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        facts = json.loads(header["facts"])
    except (SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path.name} is damaged: {error}") from error
    if not isinstance(facts, dict):
        raise DamagedCheckpoint(f"{path.name} is damaged: its metadata is not a JSON object")
    if _digest(tensors, header["facts"]) != header.get("digest"):
        raise DamagedCheckpoint(f"{path.name} is damaged: its digest does not match")
    return tensors, facts


def newest_checkpoint(folder: Path) -> tuple[Path, Tensors, dict[str, Any], list[str]]:
    """The newest intact checkpoint, and what was wrong with those newer than it."""
    damage: list[str] = []
    for path in list_checkpoints(folder):
        try:
            return path, *read_checkpoint(path), damage
        except DamagedCheckpoint as error:
            damage.append(str(error))
    if damage:
        raise ValueError(f"no checkpoint in {folder} is intact: {'; '.join(damage)}")
    raise ValueError(f"{folder} holds no checkpoint to resume from")


def _digest(tensors: Tensors, facts: str) -> str:
    digest = hashlib.blake2b(facts.encode(), digest_size=16)
    for piece in _pieces(tensors):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(tensors: Tensors) -> Iterator[Any]:
    for name in sorted(tensors):
        tensor = tensors[name]
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield tensor.reshape(-1).view(torch.uint8).numpy().data
