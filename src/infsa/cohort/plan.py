"""Which images go through the model together: decided from their sizes alone, before anything is computed.

The same inputs and settings give the same batches, whatever was interrupted, however many workers there are.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .files import Header, Stat
from .items import Item
from .network import Network

T = TypeVar("T")
BATCHES = 8  # of a unit
OFTEN = 2000  # full batches of a shape that are worth compiling for, which takes as long as about so many
SHAPES = 8  # shapes that are compiled for; torch compiles no more by default


@dataclass(frozen=True)
class Work:
    """An item with all that is known of it before it is read."""

    item: Item
    stat: Stat | None = None
    header: Header | None = None
    reason: str = ""  # why it cannot be computed
    final: bool = False  # that reason stays as long as the file stays the same
    done: bool = False  # its row is there already

    @property
    def pixels(self) -> int:
        """Of the image."""
        return 0 if self.header is None else self.header.width * self.header.height


@dataclass(frozen=True)
class Batch:
    """Images of one input size, at most one image that is streamed, or images that cannot be read."""

    works: tuple[Work, ...]
    kind: str  # "batched", "streamed" or "unread"
    often: bool = False


@dataclass(frozen=True)
class Unit:
    """What a worker does at a time; its rows are written together."""

    batches: tuple[Batch, ...]
    tries: int = 0

    @property
    def works(self) -> list[Work]:
        """All images of the unit."""
        return [work for batch in self.batches for work in batch.works]

    @property
    def name(self) -> str:
        """Of its file: the same for the same content of the same images."""
        known = repr([(work.item.key, work.stat) for work in self.works])
        return hashlib.blake2b(known.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def alone(self) -> "list[Unit]":
        """Its images, each a unit of its own."""
        return [
            Unit((replace(batch, works=(work,), often=False),), self.tries)
            for batch in self.batches
            for work in batch.works
        ]


def make_units(network: Network, works: Sequence[Work]) -> list[Unit]:
    """Units of whole batches for all images that are not done: what is streamed first, then the largest inputs."""
    groups: dict[tuple[int, int], list[Work]] = {}
    streamed, unread = [], []
    for work in works:
        refused = _refusal(network, work)
        if refused or work.header is None:
            unread.append(replace(work, reason=work.reason or refused))
        elif work.header.by_tiles or not network.fits(work.header.width, work.header.height):
            streamed.append(work)
        else:
            groups.setdefault(network.size(work.header.width, work.header.height), []).append(work)
    streamed.sort(key=lambda work: -work.pixels)
    units = [Unit((Batch((work,), "streamed"),)) for work in streamed]
    units += [Unit(tuple(part)) for part in _parts(_batches(network, groups), BATCHES)]
    units += [Unit((Batch(tuple(part), "unread"),)) for part in _parts(unread, 1024)]
    return [kept for unit in units if (kept := _missing(unit)).batches]


def _refusal(network: Network, work: Work) -> str:
    """Why an image that could be read cannot be computed."""
    if work.reason or work.header is None:
        return work.reason
    width, height = work.header.width, work.header.height
    if not width or not height:
        return f"an image without pixels, {width} × {height}"
    if work.header.by_tiles or not network.fits(width, height):
        if network.streams and work.item.offset < 0:
            return ""
        need = network.needed(*network.size(width, height)) / 2**30
        where = "inside a tar: unpack it" if network.streams else "and this model or resolution cannot be streamed"
        return f"{width} × {height} pixels do not fit (about {need:.1f} GiB, memory={network.settings.memory}), {where}"
    return ""


def _batches(network: Network, groups: dict[tuple[int, int], list[Work]]) -> list[Batch]:
    found = []
    for size in sorted(groups, key=lambda size: (-size[0] * size[1], size)):
        most = max(1, min(network.settings.batch_size, int(network.settings.room // network.needed(*size))))
        found += [(size, most, part) for part in _parts(groups[size], most)]
    full = Counter(size for size, most, part in found if len(part) == most)
    often = {size for size, count in full.most_common(SHAPES) if count >= OFTEN}
    return [Batch(tuple(part), "batched", size in often and len(part) == most) for size, most, part in found]


def _parts(values: Sequence[T], most: int) -> list[Sequence[T]]:
    return [values[start : start + most] for start in range(0, len(values), most)]


def _missing(unit: Unit) -> Unit:
    """The unit without the images whose rows are there."""
    kept = (replace(batch, works=tuple(work for work in batch.works if not work.done)) for batch in unit.batches)
    return Unit(tuple(batch for batch in kept if batch.works))
