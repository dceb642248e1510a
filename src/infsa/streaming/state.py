"""The state file of a stream: a killed job goes on from it and ends with the same bits."""

import hashlib
import json
import time
import warnings
from pathlib import Path

import torch

from ..models import InfViT
from ..models.folder import plain
from ..models.header import Rule, permitted, some, whole
from .engine import Bookmark, Engine
from .feed import BadTile
from .scene import SceneCode, read_tensors, write_tensors

TEXT = Rule("text", lambda value: isinstance(value, str))
SKIPPED = Rule(
    "the number of a tile and a reason",
    lambda value: isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], str),
)
FACTS = {  # what a state file says beside its tensors
    "fingerprint": TEXT, "step": whole(0, 1 << 40), "done": whole(0, 1 << 40), "skipped": some(SKIPPED, 0, 1 << 24),
}  # fmt: skip


def fingerprint(model: InfViT, engine: Engine) -> str:
    """What a stream depends on: weights, image, tiles and their order, how errors are met.

    Example:
        >>> len(fingerprint(model, engine))
        32
    """
    digest = hashlib.blake2b(digest_size=16)
    network, colours = engine.network, engine.feed.colours
    facts = [plain(model.arguments), engine.feed.source.describe(), network.tiling.step, engine.on_error,
             str(network.dtype), list(engine.order), colours.mean, colours.std]  # fmt: skip
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()


class StateFile:
    """Saves the bookmark of an engine from time to time, and puts an engine back where its file stands.

    Args:
        path: of the file.
        model: whose weights the file is for.
        every: least seconds between two savings.
    """

    def __init__(self, path: str | Path, model: InfViT, every: float = 30.0) -> None:
        if not every >= 0:
            raise ValueError(f"save_every must be 0 or more seconds, got {every!r}")
        self.path, self.model, self.every = Path(path), model, every
        self._mark = ""
        self._last = time.monotonic()
        self._failed = ""  # why the last saving failed

    def resume(self, engine: Engine) -> Bookmark | None:
        """Bring an engine to where the file stands; None if there is no file."""
        self._mark = fingerprint(self.model, engine)
        if not self.path.exists():
            return None
        tensors, facts = read_tensors(self.path)
        permitted(facts, FACTS, str(self.path))
        if facts.get("fingerprint") != self._mark or facts.keys() != FACTS.keys():
            raise ValueError(f"{self.path} belongs to another image, model or tile size; remove it to start again")
        tiles = len(engine.network.tiling)
        for number, _ in facts["skipped"]:
            if not 0 <= number < tiles:
                raise ValueError(f"{self.path} names the tile {number}, and the image has {tiles}")
        device = engine.network.device
        sums = {name.removeprefix("sums."): value.to(device) for name, value in tensors.items() if "sums." in name}
        central = tensors.get("central")
        engine.central = None if central is None else central.to(device)
        engine.code = SceneCode.of_tensors(tensors, engine.network.tiling.size, device)
        engine.skipped = [BadTile(engine.network.tiling[number], reason) for number, reason in facts["skipped"]]
        return Bookmark(facts["step"], facts["done"], sums)

    def save(self, engine: Engine, bookmark: Bookmark) -> None:
        """Write the file if it is time to, or if the last pass is done and only results are left to be written.

        If that fails, a warning says why, the file stays as it was, and the next time tries again.
        """
        last = bookmark.step == len(engine.network.steps) - 1 and bookmark.done == len(engine.order)
        if time.monotonic() - self._last < self.every and not last:
            return
        tensors = engine.code.tensors()
        tensors |= {f"sums.{name}": value.detach().cpu().contiguous() for name, value in (bookmark.sums or {}).items()}
        if engine.central is not None:
            tensors["central"] = engine.central.detach().cpu().contiguous()
        facts = {
            "fingerprint": self._mark,
            "step": bookmark.step,
            "done": bookmark.done,
            "skipped": [(bad.tile.number, bad.reason) for bad in engine.skipped],
        }
        try:
            write_tensors(self.path, tensors, facts)
            self._failed = ""
        except OSError as error:
            self._tell(error, "the stream goes on with the state saved before, and tries again")
        self._last = time.monotonic()

    def remove(self) -> None:
        """The stream is done, and all it found is written."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._tell(error, "the stream is done, this file can be removed")

    def _tell(self, error: OSError, what: str) -> None:
        reason = error.strerror or str(error)
        if reason != self._failed:
            warnings.warn(f"{self.path}: {reason}: {what}", stacklevel=2)
        self._failed = reason
