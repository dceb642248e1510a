"""The scene code: what the layers of a model know of a whole image, from which any part of it can be computed again."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..files import write_atomically
from ..models import InfViT
from ..models.header import parse, permitted, some, whole
from .network import Network
from .source import Colours, open_source
from .tiles import Tile, Tiling

SIZE = {"size": some(whole(1, 1 << 40), 2, 2)}  # what the file of a code says beside its tensors


@dataclass
class SceneCode:
    """The pooled row of every layer, which is added to all tokens, with the central queries and sums behind it.

    ``rows[l]`` is (R, m, D): R = 1 image, m = ``queries`` of the model. With the pixels of a region the rows give the
    region's dense features exactly, as if the whole image were in memory.
    """

    size: tuple[int, int]  # height and width of the image
    rows: list[Tensor] = field(default_factory=list)  # per finished layer
    centrals: list[Tensor] = field(default_factory=list)  # (R, H, m, d), as the last round scored with
    absolute: list[Tensor] = field(default_factory=list)  # Σ|S|: (R, H, m)
    signed: list[Tensor] = field(default_factory=list)  # ΣS

    def features(self, model: InfViT, source: Any, region: tuple[int, int, int, int], *, level: int = 0) -> Tensor:
        """Normalised tokens of the patches that a region touches: (rows, columns, D).

        Args:
            model: the model that made the code.
            source: the image, as in :func:`infsa.stream`.
            region: (top, left, bottom, right) in pixels.
            level: of a pyramid, the same as before.
        """
        opened = open_source(source, level)
        if (opened.height, opened.width) != self.size:
            raise ValueError(f"this code is of an image {self.size}, got one of {(opened.height, opened.width)}")
        colours = Colours(model, opened)
        network = Network(model, Tiling.of(model, self.size, 1), None if opened.model_input else colours)
        if len(self.rows) != network.depth or self.rows[0].shape[-1] != model.embed_dim:
            raise ValueError(
                f"this code has {len(self.rows)} rows of width {self.rows[0].shape[-1]}, "
                f"the model {network.depth} layers of width {model.embed_dim}"
            )
        tile = network.tiling.window(*region)
        opened.restart()
        with torch.no_grad():
            pixels = colours.raw(opened.read(*tile.read)).to(network.device)
            x = self.tokens(network, pixels, tile)
            return model.norm(x)[0].unflatten(0, (tile.rows, tile.columns))

    def tokens(self, network: Network, pixels: Tensor, tile: Tile) -> Tensor:
        """The tokens of a tile that the final norm reads: (R, n, D)."""
        x = network.embed(pixels, tile)
        for layer, row in enumerate(self.rows):
            x = network.advance(x, layer, row.to(x), tile)
        return network.last_tokens(x, [row.to(x) for row in self.rows], tile)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a file."""
        named = {"rows": self.rows, "centrals": self.centrals, "absolute": self.absolute, "signed": self.signed}
        return {
            f"{name}.{i}": t.detach().cpu().contiguous() for name, found in named.items() for i, t in enumerate(found)
        }

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], size: tuple[int, int], device: torch.device) -> "SceneCode":
        """The inverse of ``tensors``."""
        code = cls(size)
        for name in ("rows", "centrals", "absolute", "signed"):
            count = sum(key.startswith(f"{name}.") for key in tensors)
            if lost := [i for i in range(count) if f"{name}.{i}" not in tensors]:
                raise ValueError(f"a scene code must have the tensor {name}.{lost[0]}: it has {count} called {name}")
            getattr(code, name).extend(tensors[f"{name}.{i}"].to(device) for i in range(count))
        return code

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the code as safetensors: L rows and a little more.

        An older code is replaced, any other file only with ``overwrite``.
        """
        check_code_path(Path(path), overwrite)
        write_tensors(Path(path), self.tensors(), {"size": list(self.size)})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> "SceneCode":
        """Read what ``save`` wrote."""
        tensors, facts = read_tensors(Path(path))
        permitted(facts, SIZE, str(path))
        if "size" not in facts or "rows.0" not in tensors:
            raise ValueError(f"{path} is not a scene code")
        return cls.of_tensors(tensors, (facts["size"][0], facts["size"][1]), torch.device(device))


def check_code_path(path: Path, overwrite: bool = False) -> None:
    """Refuse another ending than .safetensors, and to replace a file that is no scene code unless that is asked for."""
    if path.suffix != ".safetensors":
        raise ValueError(f"a scene code must end in .safetensors, got {path.name}")
    if path.exists() and not overwrite and "size" not in read_facts(path):
        raise FileExistsError(f"{path} exists already and is not a scene code; overwrite=True replaces it")


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and plain data in one safetensors file, whole or not at all."""
    data = save(tensors, metadata={"stream": json.dumps(facts)})
    try:
        write_atomically(path, lambda aside: aside.write_bytes(data))
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name of the file aside


def read_facts(path: Path) -> dict[str, Any]:
    """The plain data of what :func:`write_tensors` wrote, without its tensors; nothing of any other file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                return {}
            facts = json.loads(json.loads(file.read(length))["__metadata__"]["stream"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """What :func:`write_tensors` wrote; read at once, because a running stream may replace the file."""
    if not read_facts(path):
        raise ValueError(f"{path} is not a complete safetensors file of a stream")
    data = path.read_bytes()
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a complete safetensors file: {' '.join(str(error).split())}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, parse(header.get("__metadata__", {}).get("stream", "{}"), str(path))
