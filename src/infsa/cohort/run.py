"""``infsa.cohort.embed``: a table of embeddings and predictions, one row per image."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .engines import InProcess, Processes, RayTasks
from .files import Unread, file_digest, header_of, quietly, stat_of, why
from .items import Item, Items, Key, list_items
from .network import Network, open_model
from .plan import Unit, Work, make_units
from .settings import Settings
from .table import Kept, Row, Store, as_table, schema_of, stored_key, text

TRIES = 2  # of a unit whose worker dies, before its images are tried one by one


@dataclass
class Progress:
    """How far a run is; rates are those of this run.

    Example:
        >>> infsa.cohort.Progress(images=10, megapixels=5.0).done
        0
    """

    images: int  # to compute
    megapixels: float  # of all of them
    done: int = 0
    done_megapixels: float = 0.0
    failed: int = 0
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Since the first unit was handed out."""
        return time.perf_counter() - self.began

    @property
    def left(self) -> float | None:
        """Seconds left, if the rest goes as fast; None before anything is done."""
        share = self.done_megapixels / self.megapixels if self.megapixels else self.done / max(self.images, 1)
        return self.seconds * (1 / share - 1) if share else None

    def __str__(self) -> str:
        rate = f"{self.done / self.seconds:.1f} images/s, {self.done_megapixels / self.seconds:.2f} Mpx/s"
        left = "" if self.left is None else f", {self.left:.0f} s left"
        return f"{self.done} of {self.images} images, {rate}{left}, {self.failed} failed"


@dataclass
class Summary:
    """What a run did.

    Example:
        >>> infsa.cohort.embed("photo.jpg", "infvit_linear_tiny", "cohort.parquet").failed
        0
    """

    table: Path
    rows: int
    failed: int
    failures: list[tuple[str, str]]  # the first few: path and reason
    kept: int  # rows of images that had not changed
    computed: int
    streamed: int
    megapixels: float  # computed
    seconds: float
    notes: list[str]
    ignored: int
    repeated: int


def embed(
    sources: str | Path | Iterable[str | Path],
    model: str | Path | nn.Module,
    out: str | Path,
    *,
    devices: Sequence[str] = ("cpu",),
    ray: str | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Summary:
    """Compute embeddings and predictions of many images, and write them as a table, one row per image.

    An interrupted run continues when called again, and writes the same table. A file that cannot be read
    becomes a row with the reason. A file that has not changed since the last call is not computed again.

    Args:
        sources: files, folders, patterns, CSV files with a column ``path`` (and perhaps ``id``), WebDataset shards.
        model: an InfViT by name, file or folder; ``timm:`` with a name or a folder; or a model.
        out: the table, ``.parquet``. ``.parts`` beside it holds what is done, ``.timings.parquet`` the times.
        devices: one computes in this process, several in a process each.
        ray: address of a Ray cluster, or ``"auto"``; ``devices`` then says whether its tasks use ``cpu`` or ``cuda``.
        overwrite: replace a table of another model, other settings or other images, or a file that is not a table.
        progress: called after every unit of work.
        settings: those of :class:`Settings`.

    Example:
        >>> infsa.cohort.embed("photo.jpg", "infvit_linear_tiny", "cohort.parquet").rows
        1
    """
    cohort = Cohort(sources, model, devices, ray, Settings(**settings))
    return cohort.run(Path(out), overwrite, progress)


class Cohort:
    """The images and the model of a run; see :func:`embed`."""

    def __init__(
        self,
        sources: str | Path | Iterable[str | Path],
        model: str | Path | nn.Module,
        devices: Sequence[str],
        ray: str | None,
        settings: Settings,
    ) -> None:
        self.settings, self.devices, self.ray = settings, list(devices), ray
        if not self.devices:
            raise ValueError("devices must name one device or more, got none")
        apart = ray is not None or len(self.devices) > 1
        if apart and isinstance(model, nn.Module):
            raise ValueError("several workers open the model themselves: give its name, file or folder, not the model")
        self.model = model if isinstance(model, nn.Module) else _absolute(str(model))
        self.network = Network(open_model(self.model, "cpu" if apart else self.devices[0]), settings)
        self.schema = schema_of(self.network, self.network.meaning())
        self.found: Items = list_items([sources] if isinstance(sources, str | Path) else sources)
        if not self.found.items:
            raise ValueError("; ".join(self.found.notes) or "no images given")

    @quietly()
    def run(self, out: Path, overwrite: bool = False, progress: Callable[[Progress], None] | None = None) -> Summary:
        """Compute what is missing and write the table."""
        began = time.perf_counter()
        store = Store(out, self.schema, overwrite)
        try:
            works, kept = self.works(store.kept(), out, overwrite)
            units = [] if len(kept) == len(works) else make_units(self.network, works)
            at = Progress(sum(len(u.works) for u in units), sum(w.pixels for u in units for w in u.works) / 1e6)
            bad = [(text(os.fsdecode(key[0])), row.error) for key, row in kept.items() if row.error]
            streamed = 0
            for unit, table in self._computed(units, store.parts):
                store.add(unit.name, table)
                errors = table["error"].to_pylist()
                bad += [(path, e) for path, e in zip(table["path"].to_pylist(), errors, strict=True) if e is not None]
                at.done += len(errors)
                at.failed += sum(error is not None for error in errors)
                at.done_megapixels += sum(work.pixels for work in unit.works) / 1e6
                streamed += sum(table["streamed"].to_pylist())
                if progress is not None:
                    progress(at)
            store.finish([work.item for work in works], kept)
        finally:
            store.close()
        seconds, notes = time.perf_counter() - began, self.found.notes
        facts = (len(kept), at.done, streamed, at.done_megapixels, seconds, notes)
        return Summary(out, len(works), len(bad), bad[:10], *facts, self.found.ignored, self.found.repeated)

    def works(
        self, stored: dict[Key, list[Kept]], out: Path | None = None, overwrite: bool = True
    ) -> tuple[list[Work], dict[Key, Kept]]:
        """All items with what is known of them, and the rows that stay as they are."""
        gone = stored.keys() - {stored_key(item) for item in self.found.items}
        if gone and not overwrite:
            raise ValueError(
                f"{out} holds rows of {len(gone)} images that are not among these inputs; --overwrite (overwrite=True) "
                "drops them, another --out keeps them"
            )
        with ThreadPoolExecutor(self.settings.readers) as pool:
            works, rows = zip(*pool.map(lambda item: self._known(item, stored), self.found.items), strict=True)
            if not all(rows):  # the plan depends on all images, those that are done included
                works = tuple(pool.map(self._with_header, works))
        if lost := sum(work.done and bool(work.reason) and work.stat is None for work in works):
            self.found.notes.append(f"{lost} files cannot be accessed now; their earlier rows are kept")
        return list(works), {stored_key(work.item): row for work, row in zip(works, rows, strict=True) if row}

    def _known(self, item: Item, stored: dict[Key, list[Kept]]) -> tuple[Work, Kept | None]:
        """An item with the state of its file, and its row if the file has not changed since."""
        rows = stored.get(stored_key(item), [])
        try:
            stat = stat_of(item)
            kept = next((row for row in rows if row.stat == stat), None)
            if kept is None and rows:
                now = file_digest(item)
                kept = next((row for row in rows if row.digest == now), None)
            return Work(item, stat, done=kept is not None), kept
        except Unread as error:  # what was found before is not thrown away because a disk is not there
            kept = rows[-1] if rows else None
            return Work(item, reason=str(error), done=kept is not None), kept

    def _with_header(self, work: Work) -> Work:
        """An item with the size of its image, or with the reason why there is none."""
        if work.reason:
            return work
        try:
            return replace(work, header=header_of(work.item, self.settings.room, self.network.streams))
        except (OSError, Unread) as error:
            reason = why(error)
            return replace(work, reason=str(reason), final=reason.final)

    def _computed(self, units: list[Unit], scratch: Path) -> Iterable[tuple[Unit, Any]]:
        """Units with their tables. One whose worker dies is tried again, then image by image."""
        if not units:
            return
        queue = deque(units)
        for unit, table in self.engine(scratch).results(queue):
            if table is not None:
                yield unit, table
            elif unit.tries + 1 < TRIES:
                queue.append(replace(unit, tries=unit.tries + 1))
            elif len(unit.works) > 1:
                queue.extend(replace(alone, tries=0) for alone in unit.alone())
            else:
                yield unit, self._died(unit)

    def _died(self, unit: Unit) -> Any:
        """The row of an image that kills its worker."""
        rows = [Row(work, error="the worker died of this image, twice") for work in unit.works]
        return as_table(rows, self.schema, self.network.tasks)

    def engine(self, scratch: Path | None) -> InProcess | Processes | RayTasks:
        """Where units are computed."""
        if self.ray is not None:
            return RayTasks(str(self.model), self.settings, self.ray, self.devices[0])
        if len(self.devices) > 1:
            return Processes(str(self.model), self.settings, self.devices, scratch)
        return InProcess(self.network, self.schema, scratch)


def _absolute(model: str) -> str:
    """A model that other processes find too: paths become absolute."""
    kind, colon, name = model.partition(":")
    if kind == "timm" and colon and os.path.isdir(name):
        return f"timm:{os.path.abspath(name)}"
    return os.path.abspath(model) if os.path.exists(model) else model


def all_devices() -> list[str]:
    """Every GPU of this machine, or its processor."""
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
