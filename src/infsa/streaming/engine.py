"""Passes over the tiles of an image, one for each sum that a model's tokens share."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .feed import BadTile, Feed, Window, ahead
from .memory import resident, trim
from .network import Network, Step, Sums
from .scene import SceneCode
from .spill import Spill
from .tiles import Tile

if TYPE_CHECKING:
    from ..parallel import Ranks


class Progress(NamedTuple):
    """How far a stream is."""

    passed: int  # passes finished
    passes: int
    done: int  # tiles of this pass
    tiles: int
    megapixels: float  # of the tile just done
    name: str  # what the pass is for
    rate: float = 0.0  # megapixels per second so far, each counted in every pass
    left: float = 0.0  # seconds, if it goes on like this
    waits_for: str = ""  # what most of the time went to: disk, decoding, copying or computing


class Bookmark(NamedTuple):
    """Where a stream stands between two tiles: enough to go on from there."""

    step: int
    done: int
    sums: Sums | None


Report = Callable[[Progress], None]
LOOK_EVERY = 0.1  # seconds between two looks at the memory of the process


@dataclass
class Engine:
    """Runs the passes of a network over tiles, in one order that never changes.

    Args:
        network: the model.
        feed: the image.
        order: numbers of the tiles to visit.
        spill: where tokens stay between passes; None computes them again each time.
        on_error: ``"skip"`` tiles that cannot be read; otherwise raise, with ``"raise"`` saying that one may skip.
        weights: (R, tiles) weights of the tiles in R versions of the sums; None: one version, all 1.
        budget: bytes that the process may hold; when they are nearly used up, freed memory is given back.
        report: called after every tile.
        ranks: processes that visit the other tiles of the image; each pass ends with the sums of all.
    """

    network: Network
    feed: Feed
    order: Sequence[int]
    spill: Spill | None = None
    on_error: str | None = None
    weights: Tensor | None = None
    budget: int | None = None
    report: Report | None = None
    ranks: "Ranks | None" = None
    save: "Callable[[Engine, Bookmark], None] | None" = None
    skipped: list[BadTile] = field(default_factory=list)
    extra_passes: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        self.code = SceneCode(self.network.tiling.size)
        self.central: Tensor | None = None  # of the round before, in the same layer
        self.pooled: Sums = {}
        self.history: list[Sums] = []  # of the passes done
        self._passed = 0
        self._looked = self._start_share = 0.0

    @torch.no_grad()
    def run(self, start: Bookmark | None = None) -> tuple[Tensor, Tensor]:
        """All passes, or those after a bookmark: logits and features, (R, ...) each."""
        start = start or Bookmark(0, 0, None)
        self._passed = start.step
        self._start_share = self._share(start.done / len(self.order))
        for position, step in enumerate(self.network.steps):
            self._passed = position
            if position >= start.step:
                here = position == start.step
                self._pass(position, step, start.done if here else 0, start.sums if here else None)
        self._passed = len(self.network.steps)
        self._look()
        return self.network.classify(self.prefix(self.network.depth), self.code.rows, self.pooled)

    def prefix(self, layer: int) -> Tensor | None:
        """The class and register tokens as they enter a layer: (R, P, D), or None."""
        x = self.network.prefix()
        if x is None:
            return None
        x = self._expanded(x)
        for index in range(layer):
            x = self.network.advance(x, index, self.code.rows[index], None)
        return x

    def tokens(self, layer: int, numbers: Sequence[int]) -> Iterator[tuple[Tile, Tensor]]:
        """Tiles with their tokens (R, n, D) as they enter a layer; from the spill where it has them."""
        spill = self.spill
        kept = set() if spill is None else {number for number in numbers if spill.serves(number, layer)}
        pixels = self.feed([number for number in numbers if number not in kept])
        stored = self._stored([number for number in numbers if number in kept])
        with closing(pixels), closing(stored):  # their threads end with this, whatever happens
            yield from self._advanced(layer, numbers, kept, pixels, stored)

    def _advanced(
        self,
        layer: int,
        numbers: Sequence[int],
        kept: set[int],
        pixels: Iterator[Window],
        stored: Iterator[tuple[int, Tensor]],
    ) -> Iterator[tuple[Tile, Tensor]]:
        """The tokens of tiles, from the pixels or from what is kept of them; the spill receives them."""
        spill, profile = self.spill, self.feed.profile
        for number in numbers:
            if number in kept:
                tile, (level, x) = self.network.tiling[number], next(stored)
            else:
                level = 0
                tile, found = next(pixels)
                if isinstance(found, BadTile):
                    self._refuse(found)
                    continue
                x = self._expanded(self.network.embed(found, tile))
                del found
            for index in range(level, layer):
                x = self.network.advance(x, index, self.code.rows[index], tile)
            useful = layer < self.network.depth or (spill is not None and spill.keeps_last)
            if spill is not None and useful and spill.layers.get(number, -1) < layer:
                with profile.waiting("copying"):
                    spill.put(number, layer, x)
            yield tile, x

    def _stored(self, numbers: Sequence[int]) -> Generator[tuple[int, Tensor], None, None]:
        """The layer and the kept tokens of tiles, on the device; those in a file are read one tile ahead."""
        spill, profile = self.spill, self.feed.profile
        if spill is None or not numbers:
            return
        with ThreadPoolExecutor(1) as pool:
            slow = [number for number in numbers if spill.slow(number)]
            read = ahead((partial(spill.get, number) for number in slow), pool, 1)
            for number in numbers:
                self.feed.upload.turn()
                if spill.slow(number):
                    with profile.waiting("disk"):
                        level, x = next(read)
                else:
                    level, x = spill.get(number)
                with profile.waiting("copying"):
                    x = self.feed.upload(x, spill.written(number))
                yield level, x

    def visited(self) -> list[int]:
        """The numbers of the tiles that count: all but the bad ones and those without weight."""
        bad = {entry.tile.number for entry in self.skipped}
        light = set() if self.weights is None else set((self.weights == 0).all(0).nonzero().flatten().tolist())
        return [number for number in self.order if number not in bad and number not in light]

    def announce(self, done: int, tiles: int, tile: Tile, name: str) -> None:
        """Look at the memory from time to time, and tell how far this is."""
        top, left, bottom, right = tile.pixels
        area = (bottom - top) * (right - left) / 1e6
        profile = self.feed.profile
        profile.megapixels += area
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._look()
        if self.report is not None:
            passes, share = len(self.network.steps) + self.extra_passes, self._share(done / tiles)
            ahead_of = profile.seconds * (1 - share) / max(share - self._start_share, 1e-9)
            facts = (profile.rate, max(0.0, ahead_of), profile.slowest)
            self.report(Progress(self._passed, passes, done, tiles, area, name, *facts))

    def step_done(self) -> None:
        """Count a pass that was made from outside."""
        self._passed += 1
        self._look()

    def _look(self) -> None:
        """Measure the memory of the process, and give freed memory back if the budget is nearly used up."""
        held = resident()
        if self.budget is not None and held > 0.9 * self.budget:
            trim()
            held = resident()
        self.peak = max(self.peak, held)
        self._looked = time.monotonic()

    def _share(self, of_pass: float) -> float:
        """The share of the work that is done; without a spill a pass costs as much as its layer is high."""
        costs = [1 + (step.layer if self.spill is None else 0) for step in self.network.steps]
        costs += costs[-1:] * self.extra_passes
        done = sum(costs[: self._passed]) + of_pass * sum(costs[self._passed : self._passed + 1])
        return done / sum(costs)

    def _expanded(self, x: Tensor) -> Tensor:
        return x if self.weights is None else x.expand(self.weights.shape[0], -1, -1)

    def _pass(self, position: int, step: Step, done: int, sums: Sums | None) -> None:
        if sums is None:
            sums = self._start(step)
        places = {number: place for place, number in enumerate(self.order)}
        numbers = [number for number in self.visited() if places[number] >= done]
        name = "pooling" if step.pool else f"layer {step.layer + 1} of {self.network.depth}"
        count = len(self.order)
        for tile, x in self.tokens(step.layer, numbers):
            part = self.network.contribution(x, step, self.central, tile)
            sums = self._merge(sums, part, tile)
            done = places[tile.number] + 1
            self.announce(done, count, tile, name)
            if self.save is not None:
                self.save(self, Bookmark(position, done, sums))
        if len(self.skipped) == len(self.order):
            raise ValueError(f"no tile of {self.feed.source.name} could be read; the first: {self.skipped[0]}")
        self.finish(step, sums if self.ranks is None else self._of_all(sums, self.ranks))

    def _of_all(self, sums: Sums, ranks: "Ranks") -> Sums:
        """The sums of all ranks, the same on each."""
        names = [name for name in sums if name != "largest"]
        found = dict(zip(names, ranks.add(*(sums[name] for name in names)), strict=True))
        return found | ({"largest": ranks.gather(sums["largest"]).amax(0)} if "largest" in sums else {})

    def finish(self, step: Step, sums: Sums) -> None:
        """Turn the sums of a pass into what the next ones need."""
        self.history.append(sums)
        if step.pool:
            self.pooled = sums
            return
        out = self.network.finish(step, sums)
        if step.round < self.network.rounds(step.layer):
            self.central = out
            return
        assert self.central is not None
        self.code.centrals.append(self.central)
        self.code.absolute.append(sums["absolute"])
        self.code.signed.append(sums["signed"])
        self.code.rows.append(out)
        self.central = None

    def _start(self, step: Step) -> Sums:
        """The sums of the prefix tokens alone, which the first rank has; the pooling does not see those."""
        x = self.prefix(step.layer)
        if step.pool or x is None or (self.ranks is not None and self.ranks.rank):
            x = self._expanded(torch.zeros(1, 1, self.network.model.embed_dim, dtype=self.network.dtype,
                                           device=self.network.device))  # fmt: skip
            like = self.network.contribution(x, step, self.central, self.network.tiling.window(0, 0, 1, 1))
            return {
                name: torch.full_like(value, -torch.inf) if name == "largest" else self._wide(torch.zeros_like(value))
                for name, value in like.items()
            }
        part = self.network.contribution(x, step, self.central, None)
        return {name: self._wide(value) for name, value in part.items()}

    def _wide(self, value: Tensor) -> Tensor:
        return value.to(self.network.wide)

    def _merge(self, sums: Sums, part: Sums, tile: Tile) -> Sums:
        merged = {}
        for name, value in part.items():
            if name == "largest":
                merged[name] = torch.maximum(sums[name], value)
                continue
            if self.weights is not None:
                weight = self.weights[:, tile.number].to(sums[name].dtype)
                value = value * weight.reshape(-1, *[1] * (value.dim() - 1))
            merged[name] = sums[name] + value  # widened inside the addition
        return merged

    def _refuse(self, bad: BadTile) -> None:
        """A tile that cannot be read ends the stream, or is left out of every pass."""
        if self.on_error != "skip":
            hint = "; on_error='skip' leaves such tiles out" if self.on_error == "raise" else ""
            raise ValueError(f"{self.feed.source.name}: {bad}{hint}")
        if self._passed or self.code.rows:
            raise ValueError(f"{self.feed.source.name}: {bad}; it could be read in an earlier pass")
        self.skipped.append(bad)
