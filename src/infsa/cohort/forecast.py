"""What a run would do, and how long it would take by a short measurement."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..streaming import stream
from .engines import InProcess, RayTasks
from .files import quietly
from .plan import Batch, Unit, make_units
from .run import Cohort
from .table import Store

KINDS = ("batched", "streamed", "unread")
RUNTIME = 3 << 29  # bytes that a process holds beside the tokens of a stream, about


@dataclass
class Forecast:
    """Images, megapixels and seconds by what happens to them, and the seconds of the run with all its workers."""

    kept: int
    images: dict[str, int]
    megapixels: dict[str, float]
    seconds: dict[str, float]
    sizes: int  # different input sizes that are batched
    batches: int
    workers: int
    total_seconds: float
    notes: list[str]


def forecast(cohort: Cohort, out: Path, overwrite: bool = False) -> Forecast:
    """Look at the headers of all images, time a few batches and a streamed tile, and add up.

    Args:
        cohort: images and model.
        out, overwrite: as in :func:`infsa.cohort.embed`; rows that are there need not be computed.
    """
    with quietly():
        works, kept = cohort.works(Store(out, cohort.schema, overwrite, write=False).kept(), out, overwrite)
    units = [] if len(kept) == len(works) else make_units(cohort.network, works)
    batches = {kind: [b for unit in units for b in unit.batches if b.kind == kind] for kind in KINDS}
    seconds = dict.fromkeys(KINDS, 0.0)
    seconds["batched"] = _batched(cohort, batches["batched"])
    seconds["streamed"] = _streamed(cohort, batches["streamed"])
    engine = None if cohort.ray is None else cohort.engine(None)
    workers = engine.slots if isinstance(engine, RayTasks) else len(cohort.devices)
    workers = max(1, min(workers, len(units)))
    largest = max(map(_pixels, batches["streamed"]), default=0) / max(sum(map(_pixels, batches["streamed"])), 1)
    total = max(sum(seconds.values()) / workers, seconds["streamed"] * largest)  # one image is one worker's
    return Forecast(
        len(kept),
        {kind: sum(len(b.works) for b in found) for kind, found in batches.items()},
        {kind: sum(map(_pixels, found)) / 1e6 for kind, found in batches.items()},
        seconds,
        len({cohort.network.size(*b.works[0].header[:2]) for b in batches["batched"] if b.works[0].header}),
        len(batches["batched"]),
        workers,
        total,
        cohort.found.notes,
    )


def _pixels(batch: Batch) -> int:
    return sum(work.pixels for work in batch.works)


def _batched(cohort: Cohort, batches: list[Batch]) -> float:
    """Seconds of all batches, between those measured of the smallest, a middle one and the largest."""
    if not batches:
        return 0.0
    engine = InProcess(cohort.network, cohort.schema, None)
    order = sorted(batches, key=_pixels)
    tried = {_pixels(b): b for b in (order[0], order[len(order) // 2], order[-1])}
    engine.one(Unit((order[0],)))  # the first costs more than the others
    times = []
    for batch in tried.values():
        began = time.perf_counter()
        engine.one(Unit((batch,)))
        times.append(time.perf_counter() - began)
    return float(np.interp([_pixels(b) for b in batches], list(tried), times).sum())


def _streamed(cohort: Cohort, batches: list[Batch]) -> float:
    """Seconds of all streamed images, from those of one tile of noise; decoding them is not in it."""
    network, settings = cohort.network, cohort.settings
    sizes = {"spill": 0.0, "recompute": 0.0}
    rows, columns = network.step
    for pixels in map(_pixels, batches):
        stored = pixels / (rows * columns) * network.streaming_model.embed_dim * network.dtype.itemsize
        sizes["spill" if stored < 2 * settings.room - RUNTIME else "recompute"] += pixels
    found = 0.0
    for strategy, area in sizes.items():
        if area:
            noise = np.random.default_rng(0).integers(0, 255, (settings.tile, settings.tile, 3), np.uint8)
            began = time.perf_counter()
            stream(network.streaming_model, noise, tile=settings.tile, strategy=strategy)
            found += (time.perf_counter() - began) * area / settings.tile**2
    return found
