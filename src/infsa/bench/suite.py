"""Running a plan: rows in turns, a worker that may die, a budget, and a file that is valid at every moment."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .cases import Case
from .child import COMMAND, Child
from .energy import WINDOW
from .memory import explain, largest
from .results import Results, Row, counted, measured
from .timing import LONG

ONE_ROUND = 2000.0  # milliseconds: a call that takes longer is timed in one round only


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    Example:
        >>> Settings(budget=280).rounds
        3
    """

    seconds: float = 0.25  # of timed calls per row and round
    rounds: int = 3
    window: float = WINDOW  # seconds of an energy window
    row_limit: float = 180.0  # seconds after which a row is given up
    budget: float | None = None  # seconds after which no further row is started
    cap: int | None = None  # bytes of memory in limit rows; None: all there is
    limit_seconds: float = 10.0  # that a call may take in limit rows
    tolerance: float = 0.03  # of the side, in limit rows
    most: int = 65536  # pixels: no larger side is tried in limit rows
    retry: bool = False  # measure failed rows again

    def __post_init__(self) -> None:
        for name in ("seconds", "window", "row_limit", "limit_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if self.rounds < 1:
            raise ValueError(f"rounds must be 1 or more, got {self.rounds!r}")


@dataclass
class Entry:
    """A row of the group that is being measured."""

    case: Case
    prepared: Row
    start: int  # of the worker: after another start it has to be prepared again
    rounds: list[list[float]] = field(default_factory=list)
    states: list[Row] = field(default_factory=list)
    energy: Row | None = None
    counts: Row = field(default_factory=dict)


Report = Callable[[str, int, int], None]


def _counted(case: Case) -> Row:
    """Multiply-adds, or why they could not be counted: no reason to lose a measurement."""
    try:
        return counted(case)
    except Exception as error:
        return {"not_counted": explain(error)}


def run_plan(
    plan: Iterable[Iterable[Case]],
    path: str | Path,
    device: str,
    settings: Settings | None = None,
    *,
    report: Report = lambda text, done, total: None,
    command: tuple[str, ...] = COMMAND,
) -> dict[str, Any]:
    """Measure what the result file does not have yet, group by group, and return the file's content.

    Example:
        >>> run_plan([[Case("soft", depth=1, size=(64, 64), dtype="float32")]], "runs/bench.json", "cpu")
    """
    return Suite(path, device, settings or Settings(), report, command).run(plan)


class Suite:
    """One run of a plan on one device."""

    def __init__(
        self, path: str | Path, device: str, settings: Settings, report: Report, command: tuple[str, ...]
    ) -> None:
        self.results = Results(path)
        self.device, self.settings, self.report, self.command = device, settings, report, command
        self.begin = time.monotonic()
        self.child = Child(device, command=command)
        self.searcher = Child(device, settings.cap, command)  # for limit rows: its memory may be capped
        self.seen: set[str] = set()
        self.idle = 0.0
        self.done = self.total = 0

    def run(self, plan: Iterable[Iterable[Case]]) -> dict[str, Any]:
        """Everything that is missing, in order."""
        groups = [self._missing(cases) for cases in plan]
        groups = [cases for cases in groups if cases]
        self.total = sum(map(len, groups))
        with self.child, self.searcher:
            if groups:
                self._start()
            for cases in groups:
                timed = [case for case in cases if not case.limit]
                if timed:
                    self.searcher.stop()  # its memory belongs to the rows
                    self._group(timed)
                for case in cases:
                    if case.limit:
                        self._limit(case)
            if groups and not self._late() and self.child.process is not None:
                self._check("end")
        return self.results.content

    def _missing(self, cases: Iterable[Case]) -> list[Case]:
        """What the file does not have; of a row that several presets name, the first."""
        found = []
        for case in cases:
            if case.key not in self.seen and self.results.missing(case, self.settings.retry):
                found.append(case)
            self.seen.add(case.key)
        return found

    def _late(self) -> bool:
        budget = self.settings.budget
        return budget is not None and time.monotonic() - self.begin > budget

    def _start(self) -> None:
        """Who measures, how fast it is, what it draws when idle."""
        self.report("starting", 0, self.total)
        machine = self.child.ask({"job": "facts"}, 60)
        if "failed" in machine:
            raise RuntimeError(f"the worker does not start: {machine['failed']}")
        self.results.start(machine, asdict(self.settings))
        idle = self.child.ask({"job": "idle", "seconds": min(2.0, self.settings.window)}, 60).get("watts")
        self.idle = idle or 0.0
        self.results.content["idle_watts"] = idle
        self._check("start")

    def _check(self, when: str) -> None:
        """The known matrix product, so that a slower machine shows."""
        answer = self.child.ask({"job": "gemm"}, 60)
        seconds = round(time.monotonic() - self.begin, 1)
        self.results.content["checks"].append({"when": when, "after_s": seconds, **answer})
        self.results.save()

    def _group(self, cases: list[Case]) -> None:
        """Prepare all, time them in turns, then the energy windows."""
        entries = [entry for entry in map(self._prepare, cases) if entry is not None]
        for turn in range(self.settings.rounds):
            for entry in list(entries):
                if entry.rounds and entry.prepared["once_ms"] > ONE_ROUND:
                    continue
                self.report(f"{entry.case.key}, round {turn + 1}", self.done, self.total)
                if not self._round(entry, {"job": "sample", "seconds": self.settings.seconds}):
                    entries.remove(entry)
        for entry in entries:
            if entry.case.energy and not self._late():
                self.report(f"{entry.case.key}, energy", self.done, self.total)
                if not self._round(entry, {"job": "energy", "seconds": self.settings.window}):
                    continue
            self._put(entry, "done")
            self.done += 1
        for entry in entries:
            if entry.start == self.child.starts and self.child.process is not None:
                self.child.ask({"job": "release", "key": entry.case.key}, self.settings.row_limit)

    def _prepare(self, case: Case) -> Entry | None:
        """Build a row in the worker; None, and a row that says why, if that fails."""
        if self._late():
            self._fail(case, "not run", "budget")
            return None
        self.report(f"{case.key}, preparing", self.done, self.total)
        counts: Row = {}
        answer = self.child.ask(
            {"job": "prepare", "case": case.as_dict(), "key": case.key},
            self.settings.row_limit,
            meanwhile=lambda: counts.update(_counted(case)),
        )
        if "failed" in answer:
            self._fail(case, "failed", answer["failed"], ran_out=answer["ran_out"], **counts)
            return None
        entry = Entry(case, answer, self.child.starts, counts=counts)
        if answer["once_ms"] >= 1e3 * LONG:  # long enough to count, too long to repeat
            entry.rounds.append([answer["once_ms"]])
        return entry

    def _round(self, entry: Entry, job: Row) -> bool:
        """Ask for one more round; False, and a row that says why, if that fails."""
        if entry.start != self.child.starts or self.child.process is None:  # another row took the worker down
            again = self._prepare(entry.case)
            if again is None:
                return False
            entry.prepared, entry.start = again.prepared, again.start
        answer = self.child.ask({**job, "key": entry.case.key}, self.settings.row_limit)
        if "failed" in answer:
            self._fail(entry.case, "failed", answer["failed"], ran_out=answer["ran_out"], **entry.counts)
            return False
        if job["job"] == "energy":
            entry.energy = answer
        if answer.get("times"):
            entry.rounds.append(answer["times"])
        if answer.get("state"):
            entry.states.append(answer["state"])
        self._put(entry, "partial")
        return True

    def _put(self, entry: Entry, status: str) -> None:
        numbers = measured(entry.case, entry.prepared, entry.rounds, entry.states, entry.energy, self.idle)
        self.results.put(entry.case, status, **entry.counts, **numbers)

    def _fail(self, case: Case, status: str, reason: str, **fields: Any) -> None:
        self.done += 1
        self.results.put(case, status, reason=reason, **fields)

    def _limit(self, case: Case) -> None:
        """The largest square image that runs."""
        if self._late():
            self._fail(case, "not run", "budget")
            return
        self.child.stop()  # its memory belongs to the search
        settings, unit = self.settings, case.patch

        def try_size(size: int) -> str | None:
            self.report(f"{case.key}, {size * unit}²", self.done, self.total)
            job = {"job": "probe", "case": replace(case.at(size * unit), limit=False).as_dict()}
            answer = self.searcher.ask(job, 20 + 4 * settings.limit_seconds)
            if "failed" in answer:
                return answer["ran_out"] or f"error: {answer['failed']}"
            return "time" if answer["seconds"] > settings.limit_seconds else None

        found = largest(try_size, case.size[0] // unit, settings.most // unit, settings.tolerance)
        limit = {
            "side": found.size * unit,
            "tokens": 1 + found.size**2,
            "ran_out": found.ran_out,
            "cap_bytes": settings.cap,
            "limit_seconds": settings.limit_seconds,
            "probes": [[probe.size * unit, probe.ran_out] for probe in found.probes],
        }
        self.done += 1
        self.results.put(case, "done", limit=limit)
