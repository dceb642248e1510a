"""The rows of a unit: the same code in every engine."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.decode import MAX_PIXELS, decode
from .files import Unread, digest, file_digest, read, stat_of, why
from .network import Network
from .plan import Batch, Unit, Work
from .table import Row

Seen = tuple[Work, str | None, tuple[int, int] | None, Tensor | Unread, float]  # digest, size, input, seconds


class Computer:
    """Computes units one after another; the images of the next batch are read while the model runs.

    Args:
        network: the model.
        scratch: a folder for the states of streams, which then continue where they were killed.
    """

    def __init__(self, network: Network, scratch: Path | None = None) -> None:
        self.network, self.scratch = network, scratch
        self.pool = ThreadPoolExecutor(network.settings.readers)

    def __call__(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """Units with their rows."""
        rows: list[Row] = []
        for unit, batch, seen in self._ahead((one, batch) for one in units for batch in one.batches):
            rows += self._rows(batch, seen)
            if batch is unit.batches[-1]:
                yield unit, rows
                rows = []

    def _ahead(self, steps: Iterator[tuple[Unit, Batch]]) -> Iterator[tuple[Unit, Batch, Iterator[Seen]]]:
        """Every batch with its images; those of the next are read meanwhile."""
        waiting = None
        for unit, batch in steps:
            reading = self.pool.map(self._see, batch.works) if batch.kind == "batched" else iter(())
            if waiting is not None:
                yield waiting
            waiting = unit, batch, reading
        if waiting is not None:
            yield waiting

    def _see(self, work: Work) -> Seen:
        """Read, check and decode one image."""
        began, found, size = time.perf_counter(), None, work.header and work.header[:2]
        result: Tensor | Unread
        try:
            data = read(work.item, self.network.settings.room)
            if stat_of(work.item) != work.stat:
                raise Unread("the file changed while it was read: run the same command again")
            found = digest(data)
            image = decode(data, MAX_PIXELS, "image")
            size, result = image.size, self.network.see(image)
        except Exception as error:  # damaged files raise almost anything
            result = why(error)
            found = found if result.final else None
        return work, found, size, result, time.perf_counter() - began

    def _rows(self, batch: Batch, seen: Iterator[Seen]) -> Iterator[Row]:
        if batch.kind == "unread":
            yield from map(self._unread, batch.works)
        elif batch.kind == "streamed":
            yield from map(self._streamed, batch.works)
        else:
            shapes: dict[Any, list[Seen]] = {}  # one, unless a header told another size than the pixels have
            for one in seen:
                shapes.setdefault(one[3].shape if isinstance(one[3], Tensor) else None, []).append(one)
            for work, found, size, error, seconds in shapes.pop(None, []):
                yield Row(work, found, size, error=str(error), seconds=seconds)
            for same in shapes.values():
                yield from self._batch(same, batch.often and len(same) == len(batch.works))

    def _batch(self, seen: list[Seen], often: bool) -> Iterator[Row]:
        began = time.perf_counter()
        images = torch.stack([one[3] for one in seen if isinstance(one[3], Tensor)])
        height, width = images.shape[-2:]
        try:
            values = self.network.batch(images, [one[0].item.id for one in seen], often)
            error = ""
        except (RuntimeError, MemoryError) as failure:  # out of memory, above all
            values, error = {}, str(why(failure))[:200]
        each = (time.perf_counter() - began) / len(seen)
        for place, (work, found, size, _, seconds) in enumerate(seen):
            own = {name: value[place].numpy() for name, value in values.items()}
            known = None if error else found
            yield Row(work, known, size, (width, height), own, error=error, seconds=seconds + each)

    def _unread(self, work: Work) -> Row:
        """The row of an image that cannot be computed; it is tried again unless that lies in the file's content."""
        try:
            known = file_digest(work.item) if work.final else None
        except Unread:
            known = None
        size = None if work.header is None else (work.header.width, work.header.height)
        return Row(work, known, size, error=work.reason)

    def _streamed(self, work: Work) -> Row:
        began = time.perf_counter()
        state = None if self.scratch is None else self.scratch / f".{Unit((Batch((work,), ''),)).name}.state"
        assert work.header is not None
        size, known = (work.header.width, work.header.height), None
        values: dict[str, Any] = {}
        error = ""
        try:
            known = file_digest(work.item)
            found, size = self.network.streamed(work.item.place, None if state is None else str(state))
            if stat_of(work.item) != work.stat:
                raise Unread("the file changed while it was read: run the same command again")
            values = {name: value[0].numpy() for name, value in found.items()}
        except Exception as failure:  # damaged files raise almost anything from inside a codec
            reason = why(failure)
            damaged = isinstance(failure, ValueError) and "memory=" not in str(reason)  # OSErrors are the disk's
            error, known = str(reason).replace(f"{work.item.place}: ", ""), known if damaged else None
            error = error.removesuffix("; on_error='skip' leaves such tiles out")
            if state is not None:
                state.unlink(missing_ok=True)
        seen = None if error else self.network.size(*size)
        return Row(work, known, size, seen, values, True, error, time.perf_counter() - began)
