"""Results that survive an interruption: one JSON line per image, under a header that says how they were made."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..provenance import provenance

Record = dict[str, Any]


def fingerprint(model: nn.Module) -> str:
    """A short hash of a model's weights.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> fingerprint(model) == fingerprint(infsa.evaluate.load_model("vit_tiny"))
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def numbers(tensor: Tensor) -> list[float]:
    """A vector as a list of the shortest decimals that give the same float32 numbers back."""
    return [float(str(value)) for value in tensor.detach().cpu().numpy().astype(np.float32)]


class Results:
    """Records of images in a file that is appended to, so that an interrupted run can continue.

    A file made with another configuration is refused, so that records never mix. A line cut off by an interruption is
    dropped.

    Args:
        path: the file, made with its folder if it does not exist.
        config: everything the records depend on, as plain data.
        device: named in the header.
    """

    def __init__(self, path: str | Path, config: dict[str, Any], device: torch.device | str = "cpu") -> None:
        self.path = Path(path)
        config = json.loads(json.dumps(config))
        lines = _whole_lines(self.path)
        if lines:
            self.header: dict[str, Any] = json.loads(lines[0])
            _check_same(self.path, self.header.get("config", {}), config)
        else:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self.header = {"config": config, "made_with": provenance(device), "started": started}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.header) + "\n", encoding="utf-8")
        self.records: list[Record] = [json.loads(line) for line in lines[1:]]
        self.done = {record["index"] for record in self.records}
        self.names = {record.get("name") for record in self.records}

    def add(self, *records: Record) -> None:
        """Append records, each with its ``index``, and put them on disk."""
        with open(self.path, "a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")
        self.records += records
        self.done |= {record["index"] for record in records}
        self.names |= {record.get("name") for record in records}


def _whole_lines(path: Path) -> list[str]:
    """The complete lines of a file; what follows the last line break is cut off on disk as well."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with open(path, "r+b") as file:
            file.truncate(len(whole))
    return whole.decode("utf-8").splitlines()


def _check_same(path: Path, saved: dict[str, Any], config: dict[str, Any]) -> None:
    for key in sorted(saved.keys() | config.keys()):
        if saved.get(key) != config.get(key):
            raise ValueError(
                f"{path} was made with {key}={saved.get(key)!r}, got {config.get(key)!r}; choose another folder"
            )
