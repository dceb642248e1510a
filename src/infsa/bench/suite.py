"""Running a plan: rows in turns, a worker that may die, a budget, and a file that is valid at every moment."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .cases import Case
from .child import COMMAND, Child
from .memory import explain, largest, next_side
from .results import Results, Row, counted, measured, under
from .settings import Settings
from .timing import LONG

ONE_ROUND = 2000.0  # milliseconds: a call that takes longer is timed in one round only
GRACE = 15.0  # seconds that a job may take beyond the budget
BUILD = 20.0  # seconds that building a model may take in a search
STOPPED = "interrupted"  # what a row says until it is finished
COMPILING = 30.0  # seconds that compiling takes: with less left, a compiled row is not begun
ERROR = "error: "  # before what stopped a search and is no resource


class OutOfBudget(Exception):
    """The time is over in the middle of a row."""


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
Probes = dict[int, str | None]  # side of the image: what ran out


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
    """Measure what the result file does not have yet, group by group, and return the file's content."""
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
        plan = [list(cases) for cases in plan]
        metered = {case.key for cases in plan for case in cases if case.energy}
        groups = [self._missing(cases, metered) for cases in plan]
        groups = [cases for cases in groups if cases]
        self.total = sum(map(len, groups))
        with self.child, self.searcher:
            if groups:
                self._start([case for cases in groups for case in cases])
            for cases in groups:
                timed = [case for case in cases if not case.limit]
                if timed:
                    self.searcher.stop()  # its memory belongs to the rows
                    self._group(timed)
                for case in cases:
                    if case.limit:
                        self._limit(case)
            if groups and self._left() > 0 and self.child.process is not None:
                self._check("end", self.child)
        return self.results.content

    def _missing(self, cases: Iterable[Case], metered: set[str]) -> list[Case]:
        """What the file does not have; of a row that several presets name, the first, with energy if one asks."""
        found = []
        for case in (replace(case, energy=case.key in metered) for case in cases):
            if case.key not in self.seen and self.results.missing(case, self.settings.retry, self.settings.terms):
                found.append(case)
            self.seen.add(case.key)
        return found

    def _left(self) -> float:
        """Seconds of the budget that are left."""
        budget = self.settings.budget
        return math.inf if budget is None else budget - (time.monotonic() - self.begin)

    def _ask(self, child: Child, job: Row, limit: float, meanwhile: Callable[[], object] | None = None) -> Row:
        """The worker's answer; a job that is still running when the budget and some grace are over is stopped."""
        allowed = max(self._left(), 0.0) + GRACE
        answer = child.ask(job, min(limit, allowed), meanwhile)
        if answer.get("ran_out") == "time" and allowed < limit:
            raise OutOfBudget
        return answer

    def _start(self, cases: list[Case]) -> None:
        """Who measures, how fast it is, and what it draws when idle if energy is asked for."""
        self.report("starting", 0, self.total)
        worker = self.searcher if all(case.limit for case in cases) else self.child  # a start takes seconds
        machine = worker.ask({"job": "facts"}, 60)
        if "failed" in machine:
            raise RuntimeError(f"the worker process did not start: {machine['failed']}")
        self.results.start(machine, asdict(self.settings))
        if any(case.energy for case in cases):
            idle = worker.ask({"job": "idle", "seconds": min(2.0, self.settings.window)}, 60).get("watts")
            self.idle = idle or 0.0
            self.results.content["idle_watts"] = idle
        self._check("start", worker)

    def _check(self, when: str, worker: Child) -> None:
        """The known matrix product, so that a slower machine shows."""
        answer = worker.ask({"job": "gemm"}, 60)
        seconds = round(time.monotonic() - self.begin, 1)
        self.results.content["checks"].append({"when": when, "after_s": seconds, **answer})
        self.results.save()

    def _group(self, cases: list[Case]) -> None:
        """A first round of each, so that what comes later cannot lose it; further rounds in turns; energy windows."""
        entries = []
        for case in cases:
            entry = self._prepare(case)
            if entry is not None and self._sample(entry, 1):
                entries.append(entry)
        for turn in range(2, self.settings.rounds + 1):
            entries = [entry for entry in entries if self._sample(entry, turn)]
        for entry in entries:
            if entry.case.energy and self._left() > 0:
                self.report(f"{entry.case.key}, energy", self.done, self.total)
                if not self._round(entry, {"job": "energy", "seconds": self.settings.window}):
                    continue
            self._put(entry, "done")
            self.done += 1
        if self.child.process is not None:
            self.child.ask({"job": "release"}, self.settings.row_limit)

    def _prepare(self, case: Case) -> Entry | None:
        """Build a row in the worker; None, and a row that says why, if that fails."""
        if self._left() <= (0 if case.compile in ("none", "graph") else COMPILING):
            self._skip(case)
            return None
        self.report(f"{case.key}, preparing", self.done, self.total)
        self.results.promise(case, "partial", STOPPED)
        counts: Row = {}
        job = {"job": "prepare", "case": case.as_dict(), "key": case.key}
        try:
            answer = self._ask(self.child, job, self.settings.row_limit, lambda: counts.update(_counted(case)))
        except OutOfBudget:
            self._skip(case)
            return None
        if "failed" in answer:
            self._fail(case, answer, counts)
            return None
        entry = Entry(case, answer, self.child.starts, counts=counts)
        if answer["once_ms"] >= 1e3 * LONG:  # long enough to count, too long to repeat
            entry.rounds.append([answer["once_ms"]])
            self._put(entry, "partial", reason=STOPPED)
        return entry

    def _sample(self, entry: Entry, turn: int) -> bool:
        """A round of timed calls, where one more pays."""
        if entry.rounds and entry.prepared["once_ms"] > ONE_ROUND:
            return True
        self.report(f"{entry.case.key}, round {turn}", self.done, self.total)
        return self._round(entry, {"job": "sample", "seconds": self.settings.seconds})

    def _round(self, entry: Entry, job: Row) -> bool:
        """Ask for one more round; False, and a row that says why, if that fails."""
        if entry.start != self.child.starts or self.child.process is None:  # another row took the worker down
            again = self._prepare(entry.case)
            if again is None:
                return False
            entry.prepared, entry.start = again.prepared, again.start
        try:
            answer = self._ask(self.child, {**job, "key": entry.case.key}, self.settings.row_limit)
        except OutOfBudget:
            self._skip(entry.case)
            return False
        if "failed" in answer:
            if entry.rounds:
                self._put(entry, "partial")
            self._fail(entry.case, answer, entry.counts)
            return False
        if job["job"] == "energy":
            entry.energy = answer
        if answer.get("times"):
            entry.rounds.append(answer["times"])
        if answer.get("state"):
            entry.states.append(answer["state"])
        if len(entry.rounds) == 1:  # what later rounds add is not worth a file each
            self._put(entry, "partial", reason=STOPPED)
        return True

    def _put(self, entry: Entry, status: str, **fields: Any) -> None:
        numbers = measured(entry.case, entry.prepared, entry.rounds, entry.states, entry.energy, self.idle)
        self.results.put(entry.case, status, **entry.counts, **numbers, **fields)

    def _fail(self, case: Case, answer: Row, fields: Row) -> None:
        self.done += 1
        self.results.fail(case, answer["failed"], answer["ran_out"], **fields)

    def _skip(self, case: Case) -> None:
        """No time for a row, or for the rest of it: what it has is kept, and the next run measures it."""
        self.done += 1
        self.results.promise(case, "not run", "budget")

    def _limit(self, case: Case) -> None:
        """The largest square image that runs; a search that was stopped goes on with what it has tried."""
        if self._left() <= 0:
            self._skip(case)
            return
        self.child.stop()  # its memory belongs to the search
        settings, unit = self.settings, case.patch
        before = self.results.rows.get(case.key, {})
        known = dict(before["limit"]["probes"]) if "limit" in before and under(settings.terms, before) else {}
        probes: Probes = {}
        seconds: dict[int, float] = {}  # that a size took, by its side

        def try_size(size: int) -> str | None:
            side = size * unit
            probes[side] = known[side] if side in known else self._probe(case, side, seconds)
            self._put_limit(case, "partial", probes, reason=STOPPED)
            return probes[side]

        def grow(size: int) -> int:
            if size * unit not in seconds:
                return 2 * size
            return next_side(case, size * unit, seconds[size * unit], settings.limit_seconds) // unit

        try:
            found = largest(try_size, case.size[0] // unit, settings.most // unit, settings.tolerance, grow)
        except OutOfBudget:
            if probes:
                self._put_limit(case, "partial", probes, reason="budget")
            self._skip(case)
            return
        if not found.size and (found.ran_out or "").startswith(ERROR):
            self._fail(case, {"failed": found.ran_out, "ran_out": None}, {})
            return
        self.done += 1
        self._put_limit(case, "done", probes, found.ran_out)

    def _probe(self, case: Case, side: int, times: dict[int, float]) -> str | None:
        """What a square image of this side runs out of, or None; the time it took goes to ``times``."""
        if self._left() <= 0:
            raise OutOfBudget
        self.report(f"{case.key}, {side}²", self.done, self.total)
        seconds = self.settings.limit_seconds
        job = {"job": "probe", "seconds": seconds, "case": replace(case.at(side), limit=False).as_dict()}
        answer = self._ask(self.searcher, job, BUILD + 4 * seconds)
        if answer.get("died") and answer["ran_out"] != "time":  # of its size, or of something else?
            answer = self._ask(self.searcher, job, BUILD + 4 * seconds)
        if "failed" in answer:
            return answer["ran_out"] or f"{ERROR}{answer['failed']}"
        times[side] = answer["seconds"]
        return "time" if answer["seconds"] > seconds else None

    def _put_limit(self, case: Case, status: str, probes: Probes, ran_out: str | None = None, **fields: Any) -> None:
        side = max((side for side, lacking in probes.items() if lacking is None), default=0)
        limit = {
            "side": side,
            "tokens": 1 + (side // case.patch) ** 2 if side else 0,
            "ran_out": ran_out,
            **self.settings.terms,
        }
        self.results.put(case, status, limit={**limit, "probes": [list(probe) for probe in probes.items()]}, **fields)
