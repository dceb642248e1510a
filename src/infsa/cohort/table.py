"""The table on the disk: parts that are written whole during the run, and one file at the end.

``cohort.parquet.parts`` holds a file for every unit that is done, which together are a valid table at every moment. At
the end they become ``cohort.parquet``, in the order of the inputs, and ``cohort.timings.parquet`` with the measured
times, so that the table itself depends on nothing but inputs, settings and hardware.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.tasks import Task
from ..files import flush, read_json, write_atomically, write_json
from ..streaming.readers import needed
from .files import Stat
from .items import Item, Key
from .network import Network
from .plan import Work

MARK = b"infsa.cohort"  # in the metadata of our files
RUN = "_run.json"  # readers of folders of parquet files pass over names that begin so
GROUP = 4096  # rows of a row group of the table
CHUNK = 1 << 30  # bytes of rows that are put in order at a time
TIMES = ("seconds", "worker")
KEY = ["path_bytes", "member", "offset", "id"]
KNOWN = [*KEY, *Stat._fields, "hash", "error"]  # what a later run asks of a row


def arrow() -> Any:
    """pyarrow, or one line that says how to get it."""
    needed("pyarrow.parquet", "pyarrow", "a table of a cohort", extra="cohort")
    import pyarrow

    return pyarrow


@dataclass
class Row:
    """One image in the table: what the model found, or the reason why there is nothing."""

    work: Work
    digest: str | None = None  # of the file's content; None: to be tried again
    size: tuple[int, int] | None = None  # of the upright image
    seen: tuple[int, int] | None = None  # width and height of the model's input
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    streamed: bool = False
    error: str = ""
    seconds: float = 0.0

    def cells(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """The row by the names of its columns."""
        item, (width, height) = self.work.item, self.size or (None, None)
        known = dict.fromkeys(Stat._fields) if self.work.stat is None else self.work.stat._asdict()
        inside = item.offset >= 0
        found: dict[str, Any] = {
            "id": text(item.id), "path": text(item.path), "path_bytes": os.fsencode(item.path),
            "member": text(item.member) if inside else None, "offset": item.offset if inside else None,
            **known, "hash": self.digest, "width": width, "height": height, "streamed": self.streamed,
            "input_width": self.seen and self.seen[0], "input_height": self.seen and self.seen[1],
            "error": text(self.error) or None, "seconds": self.seconds,
            "worker": f"{os.uname().nodename}:{os.getpid()}",
        }  # fmt: skip
        for name, value in self.values.items():
            found[name] = value.reshape(-1)
        if "map" in self.values:
            found["map_height"], found["map_width"] = self.values["map"].shape
        if "logits" in self.values:
            logits = self.values["logits"].astype(np.float64)
            for task, names, own in zip(tasks, answers(tasks), np.split(logits, ends(tasks)), strict=True):
                best = int(own.argmax())
                rivals = np.append(0.0, own[best]) if task.multilabel else own
                values = task.classes[best], best, 1 / np.exp(rivals - own[best]).sum()
                found.update(zip(names, values, strict=True))
        return found


def answers(tasks: Sequence[Task]) -> list[list[str]]:
    """The columns for the likeliest class of each task: its name, its number, its probability."""
    columns = ("label", "label_index", "probability")
    return [[f"{column}_{task.name}" if len(tasks) > 1 else column for column in columns] for task in tasks]


def ends(tasks: Sequence[Task]) -> list[int]:
    """Where a row of logits passes from one task to the next."""
    return np.cumsum([len(task.classes) for task in tasks]).tolist()[:-1]


def text(name: str) -> str:
    """A name as UTF-8: bytes that are no text are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def schema_of(network: Network, meaning: dict[str, Any]) -> Any:
    """The columns of the table, and what they mean."""
    pa = arrow()
    numbers = pa.list_(pa.float32())
    columns = [
        ("id", pa.string()), ("path", pa.string()), ("path_bytes", pa.binary()), ("member", pa.string()),
        ("offset", pa.int64()), *((name, pa.int64()) for name in Stat._fields), ("hash", pa.string()),
        ("width", pa.int32()), ("height", pa.int32()), ("input_width", pa.int32()), ("input_height", pa.int32()),
        ("streamed", pa.bool_()), ("error", pa.string()),
    ]  # fmt: skip
    for names in answers(network.tasks):
        columns += zip(names, (pa.string(), pa.int32(), pa.float32()), strict=True)
    columns += [("logits", numbers)] if network.classes else []
    columns += [(name, numbers) for name in network.columns]
    if network.settings.maps:
        columns += [("map", numbers), ("map_height", pa.int32()), ("map_width", pa.int32())]
    facts = json.dumps({"meaning": meaning, "classes": network.classes}, sort_keys=True)
    return pa.schema(columns, metadata={MARK: facts.encode()})


def as_table(rows: Sequence[Row], schema: Any, tasks: Sequence[Task]) -> Any:
    """Rows as an Arrow table, with their times."""
    pa = arrow()
    timed = schema.append(pa.field("seconds", pa.float64())).append(pa.field("worker", pa.string()))
    cells = [row.cells(tasks) for row in rows]
    return pa.table([pa.array([c.get(f.name) for c in cells], f.type) for f in timed], schema=timed)


@dataclass(frozen=True)
class Kept:
    """A row that is on the disk: where, and what it says of its file."""

    file: Path
    row: int
    stat: Stat | None = None
    digest: str = ""
    error: str = ""


class Store:
    """The table of one cohort, locked for as long as this exists.

    Args:
        out: the table, ``.parquet``.
        schema: see :func:`schema_of`.
        overwrite: replace a table of another model or other settings, or another file.
        write: False only to look at what is there; no lock then, and nothing is made.
    """

    def __init__(self, out: Path, schema: Any, overwrite: bool = False, write: bool = True) -> None:
        self.out, self.schema = out, schema
        self.added: dict[Key, Kept] = {}  # in this run
        self.times = out.with_suffix(".timings.parquet")
        self.parts = out.with_name(f"{out.name}.parts")
        self.meaning = json.loads(schema.metadata[MARK])["meaning"]
        self.ours = self._check(overwrite)  # whether the finished table belongs to this run
        if write:
            self._take()

    def _take(self) -> None:
        """Lock the folder of parts, and clear it of another run's."""
        self.parts.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.parts, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ValueError(f"{self.out} is being written by another run") from error
        try:
            if self._run() not in (None, self.meaning):
                self._clear()
            write_json({"meaning": self.meaning}, self.parts / RUN)
        except OSError:
            os.close(self._lock)
            raise

    def _check(self, overwrite: bool) -> bool:
        """Refuse places that cannot be written or that hold something else."""
        out, hint = self.out, "--overwrite (overwrite=True) replaces it, another --out leaves it alone"
        if out.suffix != ".parquet":
            raise ValueError(f"the table must end in .parquet, got {out.name!r}")
        if out.is_dir():
            raise ValueError(f"{out} must be a file, got a folder")
        if self.parts.exists() and (not self.parts.is_dir() or (self._run() is None and self._strange())):
            raise FileExistsError(f"{self.parts} exists already and does not belong to this command")
        found = [(out, marked(out)), (self.times, marked(self.times))]
        for path, facts in found:
            if path.exists() and facts is None and not overwrite:
                raise FileExistsError(f"{path} exists already and is not a table of infsa embed; {hint}")
        others = [facts.get("meaning") for _, facts in found if facts] + [self._run()]
        for other in others:
            if other not in (None, self.meaning) and not overwrite:
                raise ValueError(f"{out} was made with {_difference(other, self.meaning)}; {hint}")
        return bool(found[0][1]) and others[0] == self.meaning

    def _strange(self) -> bool:
        """Whether a folder of parts that says nothing about itself holds more than a run leaves that dies at once."""
        return any(not fnmatch(path.name, ".*.part.json") for path in self.parts.iterdir())

    def _run(self) -> Any:
        try:
            return read_json(self.parts / RUN)["meaning"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def kept(self) -> dict[Key, list[Kept]]:
        """The rows that are on the disk and need not be tried again, by item; several if its file changed."""
        found: dict[Key, list[Kept]] = {}
        parts = sorted(self.parts.glob("[!._]*.parquet")) if self._run() == self.meaning else []
        for file in [self.out, *parts] if self.ours else parts:
            try:
                rows = arrow().parquet.read_table(file, columns=KNOWN)
            except (OSError, ValueError, KeyError):  # a damaged part is computed again
                continue
            for number, (key, row) in enumerate(zip(_keys(rows), rows.to_pylist(), strict=True)):
                if row["hash"] is not None:
                    stat = Stat(*(row[name] for name in Stat._fields))
                    one = Kept(file, number, stat, row["hash"], row["error"] or "")
                    found.setdefault(key, []).append(one)
        return found

    def add(self, name: str, table: Any) -> None:
        """Write the rows of a unit, whole or not at all."""
        file = self.parts / f"{name}.parquet"
        self._write(file, lambda aside: arrow().parquet.write_table(table, aside))
        self.added |= {key: Kept(file, number) for number, key in enumerate(_keys(table))}

    def finish(self, items: Sequence[Item], kept: dict[Key, Kept]) -> bool:
        """Put the rows of all items together in their order; False if the table was finished before.

        Args:
            items: all of them.
            kept: the rows of those that were not computed in this run.
        """
        rows = [self.added.get(key) or kept[key] for key in map(stored_key, items)]
        whole = {row.file for row in rows} == {self.out} and [row.row for row in rows] == list(range(self._length()))
        if not whole:
            table, times = self.parts / "_table.parquet", self.parts / "_times.parquet"
            self._write(table, lambda aside: self._assemble(aside, rows, times))
            os.replace(times, self.times)
            os.replace(table, self.out)
            flush(self.out.parent)  # before what it was made of goes
        self._clear()
        return not whole

    def _length(self) -> int:
        return int(arrow().parquet.read_metadata(self.out).num_rows)

    def _assemble(self, aside: Path, rows: Sequence[Kept], times: Path) -> None:
        """Write rows in order, as many at a time as are a gigabyte."""
        pa = arrow()
        total = sum(path.stat().st_size for path in {row.file for row in rows})
        step = max(GROUP, int(CHUNK / max(total, 1) * len(rows)) // GROUP * GROUP)
        clock = pa.schema([("id", pa.string()), ("path", pa.string()), ("seconds", pa.float64()),
                           ("worker", pa.string())], metadata=self.schema.metadata)  # fmt: skip
        aside_times = times.with_name(".times.part.parquet")
        with (
            pa.parquet.ParquetWriter(aside, self.schema, compression="zstd") as main,
            pa.parquet.ParquetWriter(aside_times, clock) as second,
        ):
            for start in range(0, len(rows), step):
                chunk = self._gather(rows[start : start + step])
                main.write_table(chunk.select(self.schema.names).cast(self.schema), row_group_size=GROUP)
                second.write_table(chunk.select(clock.names).cast(clock), row_group_size=GROUP)
        os.replace(aside_times, times)

    def _gather(self, rows: Sequence[Kept]) -> Any:
        """The rows of several files, in order."""
        pa = arrow()
        by_file: dict[Path, list[int]] = {}
        for number, row in enumerate(rows):
            by_file.setdefault(row.file, []).append(number)
        tables, order = [], []
        for file, numbers in by_file.items():
            wanted = np.array([rows[number].row for number in numbers])
            if file == self.out:
                groups, inside = np.unique(wanted // GROUP, return_inverse=True)
                found, wanted = self._with_times(groups.tolist()), inside * GROUP + wanted % GROUP
            else:
                found = pa.parquet.read_table(file)
            tables.append(found.take(wanted))
            order += numbers
        place = np.argsort(np.asarray(order, np.int64))
        return pa.concat_tables(table.replace_schema_metadata() for table in tables).combine_chunks().take(place)

    def _with_times(self, groups: list[int]) -> Any:
        """Row groups of the finished table with their times, or without where that file is gone."""
        pa = arrow()
        table, times = pa.parquet.ParquetFile(self.out).read_row_groups(groups), None
        with contextlib.suppress(OSError, ValueError, IndexError):
            times = pa.parquet.ParquetFile(self.times).read_row_groups(groups)
        if times is None or not times["id"].equals(table["id"]):
            rows = table.num_rows
            times = {"seconds": pa.nulls(rows, pa.float64()), "worker": pa.nulls(rows, pa.string())}
        for name in TIMES:
            table = table.append_column(name, times[name])
        return table

    def _write(self, path: Path, write: Any) -> None:
        try:
            write_atomically(path, write)
        except OSError as error:
            left = f"{error.strerror or error}; what is done is in {self.parts}, the same command continues from it"
            raise OSError(error.errno, left, str(self.out)) if error.errno else OSError(left) from error

    def _clear(self) -> None:
        """Remove our own files from the folder of parts."""
        for pattern in ("*.parquet", ".*.parquet", ".*.state", ".*.part.json", RUN):
            for path in self.parts.glob(pattern):
                path.unlink()

    def close(self) -> None:
        """Let another run have the table; a folder of parts without any goes."""
        if {path.name for path in self.parts.iterdir()} <= {RUN}:
            self._clear()
            self.parts.rmdir()
        os.close(self._lock)


def stored_key(item: Item) -> Key:
    """The key of an item as the table tells it."""
    path, member, offset, name = item.key
    return path, text(member), offset, text(name)


def marked(path: Path) -> dict[str, Any] | None:
    """What a table of ours says about itself; None of any other file."""
    try:
        return dict(json.loads(arrow().parquet.read_schema(path).metadata[MARK]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keys(table: Any) -> list[Key]:
    """The keys of the items of a table."""
    columns = (table[name].to_pylist() for name in KEY)
    keys = zip(*columns, strict=True)
    return [(path, member or "", -1 if offset is None else offset, name) for path, member, offset, name in keys]


def _difference(other: Any, ours: dict[str, Any]) -> str:
    """The first setting that differs, in words."""
    other = other if isinstance(other, dict) else {}
    name = next((name for name in ours if other.get(name) != ours[name]), "other settings")
    if name == "weights":
        return "another model"
    return f"{name}={other.get(name)!r}, this run has {ours.get(name)!r}"
