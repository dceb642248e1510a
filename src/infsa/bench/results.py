"""The result file: rows by key, written whole after every step, so that what was measured is never lost."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..files import read_json, write_atomically, write_json
from .cases import Case, read_case
from .energy import formula_joules
from .flops import count
from .timing import describe

FORMAT = 1
SAME = ("gpu", "torch", "infsa")  # what rows of one file must have in common; without a GPU the processor too
Row = dict[str, Any]
NOT_NUMBERS = ("case", "status", "reason", "ran_out", "machine")  # of a row
COLUMNS = (
    "key", "mechanism", "config", "part", "mode", "height", "width_px", "tokens", "batch", "dtype", "compile",
    "status", "reason", "parameters", "macs", "flops", "attention_macs", "median_ms", "p25_ms", "p75_ms", "count",
    "outliers", "drift", "images_per_s", "peak_bytes", "joules_per_image", "joules_above_idle", "energy_source",
    "paper_formula_joules", "max_side", "ran_out",
)  # fmt: skip


class Results:
    """Rows of one machine, kept in a JSON file and a CSV file beside it.

    Example:
        >>> results = Results("runs/bench.json")
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != ".json":
            raise ValueError(f"the result file must end in .json, got {str(path)!r}")
        self.content: dict[str, Any] = {"format": FORMAT, "machines": [], "settings": {}, "checks": [], "rows": {}}
        if self.path.exists():
            self.content = read_results(self.path)

    @property
    def rows(self) -> dict[str, Row]:
        """Rows by key."""
        return self.content["rows"]

    def start(self, machine: dict[str, Any], settings: dict[str, Any]) -> None:
        """Note machine and settings; refuse to mix kinds of machine or versions in one file."""
        machines = self.content["machines"]
        for before in machines:
            for name in (*SAME, *(() if "gpu" in machine else ("cpu",))):
                if before.get(name) != machine.get(name):
                    raise ValueError(
                        f"{self.path} holds rows with {name}={before.get(name)!r}, here it is {machine.get(name)!r}: "
                        "choose another --out"
                    )
        if machine not in machines:
            machines.append(machine)
        self.machine = machines.index(machine)
        self.content["settings"] = settings
        self.save()

    def missing(self, case: Case, retry: bool = False, terms: Mapping[str, Any] = MappingProxyType({})) -> bool:
        """Whether a case still has to be measured; failures stay unless ``retry``, searches if under these terms."""
        row = self.rows.get(case.key)
        if row is None or row["status"] in ("partial", "not run"):
            return True
        if row["status"] == "failed":
            return retry
        return not under(terms, row) if case.limit else case.energy and "energy" not in row

    def put(self, case: Case, status: str, **fields: Any) -> None:
        """Write a row, and the file."""
        known = {"case": case.as_dict(), **about(case), "machine": self.machine}
        self.rows[case.key] = {**known, "status": status, **fields}
        self.save()

    def promise(self, case: Case, status: str, reason: str) -> None:
        """Say why a row has no numbers yet; one that has some, or that failed before, keeps what it has."""
        before = self.rows.get(case.key, {})
        failed = status == "not run" and before.get("status") == "failed"
        if not failed and not before.keys() & {"latency_ms", "limit"}:
            self.put(case, status, reason=reason)

    def fail(self, case: Case, reason: str, ran_out: str | None, **fields: Any) -> None:
        """Say why a row came to nothing, or to nothing more: numbers that it has stay."""
        before = self.rows.get(case.key, {})
        numbers = {name: value for name, value in before.items() if "latency_ms" in before and name not in NOT_NUMBERS}
        self.put(case, "failed", **{**numbers, **fields, "reason": reason, "ran_out": ran_out})

    def save(self) -> None:
        """Write both files."""
        write_json(self.content, self.path)
        text = as_csv(self.rows.values())
        write_atomically(self.path.with_suffix(".csv"), lambda aside: aside.write_text(text, encoding="utf-8"))


def read_results(path: str | Path) -> dict[str, Any]:
    """The content of a result file."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a complete JSON file: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("rows"), dict):
        raise ValueError(f"{path} is not a result file of infsa bench")
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} has format {content.get('format')!r}, this version reads {FORMAT}")
    for key, row in content["rows"].items():
        try:
            read_case(row["case"])
            row["status"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, row {key!r}: cannot be read: {error}") from error
    return {"machines": [], "settings": {}, "checks": [], **content}


def under(terms: Mapping[str, Any], row: Row) -> bool:
    """Whether a search, finished or not, was made with this memory cap and time limit."""
    found = row.get("limit", {})
    return all(name in found and found[name] == value for name, value in terms.items())


def about(case: Case) -> Row:
    """What is known of a case without running it, except its multiply-adds."""
    variant = case.variant
    return {"label": variant.label, "tier": variant.tier, "config": case.config, "tokens": case.tokens}


def counted(case: Case) -> Row:
    """Multiply-adds and FLOPs of a case, per image."""
    found = count(case)
    return {"macs": found.macs, "flops": found.flops, "attention_macs": found.attention_macs}


def measured(
    case: Case, prepared: Row, rounds: Sequence[Sequence[float]], states: Sequence[Row], energy: Row | None, idle: float
) -> Row:
    """The numbers of a row from what the worker answered."""
    latency = describe(rounds)
    clocks = [state["sm_mhz"] for state in states if "sm_mhz" in state]
    throttled = sorted({reason for state in states for reason in state.get("throttled", ())})
    row: Row = {
        "parameters": prepared["parameters"],
        "first_call_s": prepared["first_s"],
        "latency_ms": latency,
        "images_per_s": 1e3 * case.batch / latency["median"],
        "peak_bytes": prepared["peak_bytes"],
        "weights_bytes": prepared["weights_bytes"],
        "paper_formula_joules": formula_joules(latency["median"] / 1e3 / case.batch, case.mode),
    }
    if states:
        row["gpu"] = {"states": list(states), "throttled": throttled}
        row["gpu"]["clock_moved"] = clocks[-1] / clocks[0] - 1 if clocks else 0.0
    if energy is not None:
        row["energy"] = energy_row(energy, case.batch, idle)
    return row


def energy_row(answer: Row, batch: int, idle: float) -> Row:
    """Joules per image from a window's answer; only the reason where there is no counter."""
    if answer.get("source") is None:
        return dict(answer)
    images = answer["calls"] * batch
    return {
        "source": answer["source"],
        "joules_per_image": answer["joules"] / images,
        "joules_above_idle": (answer["joules"] - idle * answer["seconds"]) / images,
        "watts": answer["joules"] / answer["seconds"],
        "seconds": answer["seconds"],
        "images": images,
    }


def as_csv(rows: Any) -> str:
    """All rows as one table, a column for each number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(flat(row))
    return text.getvalue()


def flat(row: Row) -> Row:
    """A row with one level."""
    case, latency, energy = read_case(row["case"]).as_dict(), row.get("latency_ms", {}), row.get("energy", {})
    limit = row.get("limit", {})
    found = {
        "key": read_case(case).key,
        **{name: case[name] for name in ("mechanism", "part", "mode", "batch", "dtype", "compile")},
        "height": None if case["limit"] else case["size"][0],
        "width_px": None if case["limit"] else case["size"][1],
        **{name: row.get(name) for name in COLUMNS if name in row},
        **{name: latency.get(name.removesuffix("_ms")) for name in ("median_ms", "p25_ms", "p75_ms")},
        **{name: latency.get(name) for name in ("count", "outliers", "drift")},
        **{name: energy.get(name) for name in ("joules_per_image", "joules_above_idle")},
        "energy_source": energy.get("source"),
        "max_side": limit.get("side"),
        "ran_out": limit.get("ran_out", row.get("ran_out")),
    }
    return {name: found.get(name) for name in COLUMNS}
