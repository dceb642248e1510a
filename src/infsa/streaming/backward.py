"""Exact gradients of all parameters for one image of any size, in the memory of a tile.

The sums of a pass are linear in what the tiles contribute. Once the gradient of a sum is known, each tile's part of the
parameter gradients follows from that tile alone; passes are undone last to first, and between them only the gradients
of small things (sums, central queries, rows) are handed on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models import InfViT
from ..ops.dtypes import accumulation_dtype
from .engine import Engine, Report
from .feed import BadTile
from .network import Step, Sums, check_model
from .plan import Limits, Plan, graph_bytes, plan, stored_bytes, tile_side
from .run import prepare
from .source import open_source
from .spill import Spill
from .tiles import Tile
from .timing import Profile

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BackwardResult:
    """The loss of one image and the logits it was computed from; the gradients are in ``parameter.grad``."""

    loss: Tensor
    logits: Tensor
    strategy: str  # "spill" or "recompute"
    plan: Plan  # the tiles, and where tokens stayed
    peak_memory: int  # most bytes of resident memory seen
    profile: Profile  # megapixels per second, and what was waited for


def stream_backward(
    model: InfViT,
    source: Any,
    loss: Loss,
    *,
    tile: int | None = None,
    strategy: str = "auto",
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    scratch: str | Path | None = None,
    level: int = 0,
    progress: Report | None = None,
) -> BackwardResult:
    """Add the gradients of ``loss(logits)`` to ``parameter.grad``, as ``backward`` on the whole image would.

    Args:
        model: see :func:`infsa.stream`; parameters that need no gradient are left alone.
        source: the image; :func:`open_source` chooses a series, a page or bands of one.
        loss: function of logits (1, classes) that returns a scalar.
        tile: side of the tiles in pixels; what autograd holds grows with its square. By default 256 on a CPU, and on a
            GPU as large as half of its memory allows, up to 65,536 tokens of width 1024.
        strategy: ``"recompute"`` computes every tile from its pixels again in each pass; ``"spill"`` keeps the tokens
            of every layer and works on one block at a time; ``"auto"`` spills if that fits.
        memory: memory limit of the process.
        device_memory: memory limit on the GPU.
        scratch: folder for spilled tokens that do not fit in memory.
        level: pyramid level.
        progress: called after every tile.

    Example:
        >>> loss = torch.nn.CrossEntropyLoss()
        >>> result = infsa.streaming.stream_backward(model, "photo.jpg", lambda logits: loss(logits, torch.tensor([3])))
        >>> model.head.weight.grad.shape
        torch.Size([10, 192])
    """
    check_model(model)
    if model.global_pool not in ("token", "avg"):
        raise ValueError(f"streaming backward needs global_pool 'token' or 'avg', got {model.global_pool!r}")
    opened = open_source(source, level)
    blocks = len(model.blocks) if strategy == "recompute" else 1
    side, why = tile_side(
        model, tile, 256, device_memory, lambda side: graph_bytes(prepare(model, opened, side)[0], blocks)
    )
    network, feed = prepare(model, opened, side)
    kept = network.depth + 1 + network.pools_tokens  # the tokens of every layer, and their gradients
    stored = kept * stored_bytes(network)
    limits = Limits(strategy, memory, device_memory, scratch)
    laid = plan(network, feed, limits, graph_bytes(network, blocks), stored, why)
    spills = laid.folder is not None or laid.on_device + laid.room >= stored
    if not spills and strategy == "auto":
        limits = Limits("recompute", memory, device_memory)
        laid = plan(network, feed, limits, graph_bytes(network, network.depth), stored, why)
    stores = laid.stores(network, kept) if spills else []
    checkpoints = Checkpoints(stores[1:]) if stores else None
    engine = Engine(network, feed, range(len(network.tiling)), checkpoints, budget=laid.budget, report=progress)
    engine.extra_passes = len(network.steps) + (network.depth + 1 if stores else 0)
    try:
        engine.run()
        undo = SpilledGradients(engine, checkpoints, stores[0]) if checkpoints is not None else Gradients(engine)
        value, logits = undo.run(loss)
        feed.profile.stop()
        facts = (laid, engine.peak, feed.profile)
        return BackwardResult(value, logits, "spill" if stores else "recompute", *facts)
    finally:
        for store in stores:
            store.close()


class Checkpoints(Spill):
    """The tokens of every layer: a spill that an engine fills and that forgets nothing."""

    keeps_last = True

    def __init__(self, stores: list[Spill]) -> None:
        super().__init__(0)
        self.stores = stores

    def get(self, number: int) -> tuple[int, Tensor]:
        """The highest layer and its tokens."""
        return self.layers[number], self.at(number, self.layers[number])

    def at(self, number: int, layer: int) -> Tensor:
        """The tokens of a tile that enter a layer."""
        return self.stores[layer].get(number)[1]

    def slow(self, number: int) -> bool:
        """Whether the tokens of the highest layer are in a file."""
        return self.stores[self.layers[number]].slow(number)

    def written(self, number: int) -> Any:
        """See :meth:`Spill.written`."""
        return self.stores[self.layers[number]].written(number)

    def put(self, number: int, layer: int, x: Tensor) -> None:
        """Keep the tokens of one more layer."""
        self.stores[layer].put(number, layer, x)
        self.layers[number] = layer


class Gradients:
    """Undoes the passes of an engine; every tile starts at its pixels."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.network, self.model = engine, engine.network, engine.network.model
        self.wide = accumulation_dtype(self.network.dtype)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.totals = [torch.zeros_like(p, dtype=self.wide) for p in self.parameters]
        self.rows = [row.detach().requires_grad_() for row in engine.code.rows]
        self.on_rows = [torch.zeros_like(row, dtype=self.wide) for row in self.rows]
        self.numbers = engine.visited()

    def run(self, loss: Loss) -> tuple[Tensor, Tensor]:
        """All passes, last to first; the loss and the logits."""
        value, logits, on_pooled = self._start(loss)
        steps = list(enumerate(self.network.steps))
        if self.network.pools_tokens:
            self.undo(steps.pop()[1], {"sum": on_pooled}, None)
        on_central: Tensor | None = None
        for position, step in reversed(steps):
            if step.round == self.network.rounds(step.layer):
                self.undo_layer(step.layer)
                gradient = self.on_rows[step.layer]
            else:
                assert on_central is not None
                gradient = on_central
            on_sums = self._small(step, self.engine.history[position], gradient)
            central = None
            if step.round:
                before = self.network.steps[position - 1]
                central = self.network.finish(before, self.engine.history[position - 1]).detach().requires_grad_()
            on_central = self.undo(step, on_sums, central)
        self.undo_embedding()
        for parameter, total in zip(self.parameters, self.totals, strict=True):
            found = total.to(parameter.dtype)
            parameter.grad = found if parameter.grad is None else parameter.grad + found
        return value, logits

    def tiles(self, layer: int) -> Iterator[tuple[Tile, Tensor]]:
        """Tiles with their tokens that enter a layer, (1, n, D), as autograd is to follow them: up from the pixels."""
        for tile, pixels in self._pixels():
            with torch.enable_grad():
                x = self.network.embed(pixels, tile)
                for index in range(layer):
                    x = self.network.advance(x, index, self.rows[index], tile)
            yield tile, x

    def undo(self, step: Step, on_sums: Sums, central: Tensor | None) -> Tensor | None:
        """One pass: gradients of its sums to gradients of parameters and rows; returns that of the central query."""
        on_central = None if central is None else torch.zeros_like(central)
        prefix = None if step.pool else self._prefix(step.layer)
        if prefix is not None:
            others = self._pull_sums(prefix, step, on_sums, central, on_central, None, self.rows[: step.layer])
            self._add_rows(others)
        for done, (tile, x) in enumerate(self.tiles(step.layer), start=1):
            self.undo_tile(tile, x, step, on_sums, central, on_central)
            self.engine.announce(done, len(self.numbers), tile, "backward")
        self.engine.step_done()
        return on_central

    def undo_tile(
        self, tile: Tile, x: Tensor, step: Step, on_sums: Sums, central: Tensor | None, on_central: Tensor | None
    ) -> None:
        """One tile of a pass."""
        self._add_rows(self._pull_sums(x, step, on_sums, central, on_central, tile, self.rows[: step.layer]))

    def undo_layer(self, layer: int) -> None:
        """Called before the gradient of a layer's rows is used: here the passes above have already told it all."""

    def undo_embedding(self) -> None:
        """Called at the end: here every tile has reached its pixels already."""

    def pull(self, outputs: list[Tensor], on_outputs: list[Tensor], others: list[Tensor]) -> list[Tensor | None]:
        """Add to the gradients of the parameters; return those of the other tensors."""
        pairs = [(out, on.to(out.dtype)) for out, on in zip(outputs, on_outputs, strict=True) if out.requires_grad]
        if not pairs:
            return [None] * len(others)
        inputs = [*self.parameters, *others]
        found = torch.autograd.grad([out for out, _ in pairs], inputs, [on for _, on in pairs], allow_unused=True)
        for total, gradient in zip(self.totals, found, strict=False):
            if gradient is not None:
                total += gradient
        return list(found[len(self.parameters) :])

    def _pixels(self) -> Iterator[tuple[Tile, Tensor]]:
        for tile, pixels in self.engine.feed(self.numbers):
            if isinstance(pixels, BadTile):
                raise ValueError(f"{self.engine.feed.source.name}: {pixels}; it could be read in an earlier pass")
            yield tile, pixels

    def _prefix(self, layer: int) -> Tensor | None:
        with torch.enable_grad():
            x = self.network.prefix()
            for index in range(layer if x is not None else 0):
                x = self.network.advance(x, index, self.rows[index], None)  # type: ignore[arg-type]
        return x

    def _start(self, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the logits, and the gradient of the pooled sum (zero where there is none)."""
        pooled = {name: value.detach().requires_grad_() for name, value in self.engine.pooled.items()}
        with torch.enable_grad():
            logits, _ = self.network.classify(self._prefix(self.network.depth), self.rows, pooled)
            value = loss(logits)
        if not isinstance(value, Tensor):
            raise TypeError(f"loss must return a scalar tensor, got {type(value).__name__}")
        if value.dim() or not value.requires_grad:
            raise ValueError(f"loss must return a scalar that depends on the logits, got shape {tuple(value.shape)}")
        found = self.pull([value], [torch.ones_like(value)], [*self.rows, *pooled.values()])
        self._add_rows(found[: len(self.rows)])
        on_pooled = dict(zip(pooled, found[len(self.rows) :], strict=True)).get("sum")
        return value.detach(), logits.detach(), value.new_zeros(()) if on_pooled is None else on_pooled

    def _small(self, step: Step, sums: Sums, gradient: Tensor) -> Sums:
        """From the gradient of what a layer makes of its sums to that of the sums."""
        leaves = {name: value.detach().requires_grad_() for name, value in sums.items()}
        with torch.enable_grad():
            out = self.network.finish(step, leaves)
        found = self.pull([out], [gradient], list(leaves.values()))
        return {
            name: torch.zeros_like(leaf) if on is None else on
            for (name, leaf), on in zip(leaves.items(), found, strict=True)
        }

    def _pull_sums(
        self,
        x: Tensor,
        step: Step,
        on_sums: Sums,
        central: Tensor | None,
        on_central: Tensor | None,
        tile: Tile | None,
        others: list[Tensor],
    ) -> list[Tensor | None]:
        """What some tokens contributed to the sums of a step, undone; the gradients of ``others``."""
        with torch.enable_grad():
            part = self.network.contribution(x, step, central, tile)
        outputs, on_outputs = [part[name] for name in on_sums], list(on_sums.values())
        wanted = others if central is None else [*others, central]
        found = self.pull(outputs, on_outputs, wanted)
        if on_central is not None and found[-1] is not None:
            on_central += found[-1]
        return found[: len(others)]

    def _add_rows(self, found: Sequence[Tensor | None]) -> None:
        for total, gradient in zip(self.on_rows, found, strict=False):
            if gradient is not None:
                total += gradient


class SpilledGradients(Gradients):
    """The same, one block at a time: the tokens of every layer are kept, and so is the gradient of the current ones."""

    def __init__(self, engine: Engine, checkpoints: Checkpoints, gradients: Spill) -> None:
        super().__init__(engine)
        self.checkpoints, self.gradients = checkpoints, gradients

    def tiles(self, layer: int) -> Iterator[tuple[Tile, Tensor]]:
        """Tiles with their kept tokens, as leaves."""
        for number in self.numbers:
            self.engine.feed.upload.turn()
            x = self.engine.feed.upload(
                self.checkpoints.at(number, layer), self.checkpoints.stores[layer].written(number)
            )
            yield self.network.tiling[number], x.detach().requires_grad_()

    def undo_tile(
        self, tile: Tile, x: Tensor, step: Step, on_sums: Sums, central: Tensor | None, on_central: Tensor | None
    ) -> None:
        """One tile of a pass; what its tokens receive waits for their layer."""
        (received,) = self._pull_sums(x, step, on_sums, central, on_central, tile, [x])
        self._receive(tile, received, add=True)

    def undo_layer(self, layer: int) -> None:
        """Hand the gradients of the tokens after a layer on to its rows and to the tokens before it."""
        if layer == self.network.depth - 1 and not self.network.pools_tokens:
            return  # nothing reads the last patches
        for done, (tile, x) in enumerate(self.tiles(layer), start=1):
            with torch.enable_grad():
                after = self.network.advance(x, layer, self.rows[layer], tile)
            on_row, received = self.pull([after], [self._gradient(tile, after)], [self.rows[layer], x])
            if on_row is not None:
                self.on_rows[layer] += on_row
            self._receive(tile, received, add=False)
            self.engine.announce(done, len(self.numbers), tile, "backward")
        self.engine.step_done()

    def undo_embedding(self) -> None:
        """From the first tokens to the patch projection and the positions."""
        for done, (tile, pixels) in enumerate(self._pixels(), start=1):
            with torch.enable_grad():
                x = self.network.embed(pixels, tile)
            self.pull([x], [self._gradient(tile, x)], [])
            self.engine.announce(done, len(self.numbers), tile, "backward")
        self.engine.step_done()

    def _gradient(self, tile: Tile, like: Tensor) -> Tensor:
        if tile.number not in self.gradients:
            return torch.zeros_like(like)
        return self.engine.feed.upload(self.gradients.get(tile.number)[1], self.gradients.written(tile.number))

    def _receive(self, tile: Tile, received: Tensor | None, *, add: bool) -> None:
        if received is None:
            return
        self.gradients.put(tile.number, 0, received + self._gradient(tile, received) if add else received)
