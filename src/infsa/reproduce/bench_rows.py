"""Rows of the benchmark: times, energies, which are launch-bound, and ratios of them."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..bench.cases import NINE, Case
from ..bench.presets import FOUR
from .claims import Reading, Unavailable
from .sources import Sources

OURS = {name: name for name in NINE} | {"softmax": "softmax-naive"}  # the paper's is unfused
PURE_NAIVE = "infsa_pure-naive"
A100 = "an A100 with 40 GB"
LESS_WORK = 0.3  # of the multiply-adds: an image so much smaller tells what a call costs without its work
SAME_TIME = 2 / 3  # of the time: from here on the work is not what takes it
Row = dict[str, Any]
Value = Callable[[Row], float]


def bench_row(sources: Sources, mechanism: str, side: int, mode: str = "infer", **fields: Any) -> Row:
    """A finished row of the benchmark."""
    key = Case(mechanism, size=(side, side), mode=mode, **fields).key
    row = sources.bench()["rows"].get(key)
    if row is None or "latency_ms" not in row:
        if row is None:
            raise Unavailable("needs more rows (infsa bench --preset table1 --preset graphs)")
        raise Unavailable(f"needs the row {key}, which failed: {row.get('reason') or row['status']}")
    return row


def measured(sources: Sources, mechanism: str, side: int, mode: str = "infer", **fields: Any) -> bool:
    """Whether the benchmark has a time for a row."""
    row = sources.bench()["rows"].get(Case(mechanism, size=(side, side), mode=mode, **fields).key)
    return row is not None and "latency_ms" in row


def machine(sources: Sources) -> str:
    """The device of the benchmark."""
    facts = sources.bench()["machines"][-1]
    return str(facts.get("gpu") or facts["cpu"])


def milliseconds(row: Row) -> float:
    """A row's median time."""
    return float(row["latency_ms"]["median"])


def joules(row: Row) -> float:
    """A row's measured energy per image."""
    energy = row.get("energy") or {}
    if not energy.get("source"):
        raise Unavailable("needs measured energy (infsa bench --energy)")
    return float(energy["joules_per_image"])


def noise(row: Row) -> float:
    """The relative standard error of a row's time, from the medians of its rounds; 0 if there was one round."""
    rounds = row["latency_ms"].get("rounds", ())
    return statistics.stdev(rounds) / math.sqrt(len(rounds)) / milliseconds(row) if len(rounds) > 1 else 0.0


def launch_bound(sources: Sources, row: Row) -> bool:
    """Whether launches and other fixed costs of a call, not its work, make an eager row's time.

    They do if a smaller image with at most 30 % of the multiply-adds takes at least two thirds as long, or if the
    4-layer model at the same size is launch-bound: 24 layers launch the same kernels per layer, with as much work.
    """
    case = row["case"]
    if case["compile"] != "none":
        return False
    alike = [other for other in sources.bench()["rows"].values() if _alike(other, case)]
    for other in alike:
        small = 0 < other.get("macs", 0) <= LESS_WORK * row.get("macs", 0)
        if other["case"]["depth"] == case["depth"] and small and milliseconds(other) >= SAME_TIME * milliseconds(row):
            return True
    if case["depth"] <= FOUR["depth"]:
        return False
    return any(
        all(other["case"][name] == value for name, value in FOUR.items())
        and other["case"]["size"] == case["size"]
        and launch_bound(sources, other)
        for other in alike
    )


def _alike(row: Row, case: dict[str, Any]) -> bool:
    names = ("mechanism", "mode", "batch", "dtype", "compile", "part", "width", "patch")
    return "latency_ms" in row and all(row["case"][name] == case[name] for name in names)


def rows_of(sources: Sources, wanted: Sequence[tuple[str, int, str, Row]]) -> tuple[list[Row], bool]:
    """Rows to compare, all as CUDA graphs or all eager; and whether they are graphs.

    Graph rows are taken where an eager row is launch-bound and the file has all of them.
    """
    eager = [bench_row(sources, name, side, mode, **fields) for name, side, mode, fields in wanted]
    if any(launch_bound(sources, row) for row in eager):
        graph = [(n, s, m, {**f, "compile": "graph"}) for n, s, m, f in wanted]
        if all(measured(sources, n, s, m, **f) for n, s, m, f in graph):
            return [bench_row(sources, n, s, m, **f) for n, s, m, f in graph], True
    return eager, False


def ratio(over: str, under: str, value: Value, side: int, fields: Row, mode: str, sources: Sources) -> Reading:
    """How many times larger a number of one mechanism is than another's, in one run."""
    return quotient([(over, side, mode, fields), (under, side, mode, fields)], value, sources)


def quotient(wanted: Sequence[tuple[str, int, str, Row]], value: Value, sources: Sources) -> Reading:
    """The quotient of a number of two rows."""
    rows, graphs = rows_of(sources, wanted)
    first, second = map(value, rows)
    bound = [launch_bound(sources, row) for row in rows]
    detail = f"{first:.4g} against {second:.4g}"
    if graphs:
        plain = [value(bench_row(sources, n, s, m, **f)) for n, s, m, f in wanted]
        detail += f" as CUDA graphs; eager {plain[0] / plain[1]:.3g}×"
    error = first / second * math.hypot(*map(noise, rows))
    return Reading(
        first / second, error, machine(sources), detail, same=True, file=sources.bench_name,
        launch_bound=any(bound), at_least=bound == [False, True],
    )  # fmt: skip


def absolute(mechanism: str, value: Value, side: int, fields: Row, mode: str, sources: Sources) -> Reading:
    """A number of one mechanism, on the GPU of the result file."""
    row = bench_row(sources, mechanism, side, mode, **fields)
    gpu = machine(sources)
    found, same = value(row), "A100" in gpu and "40GB" in gpu
    return Reading(found, found * noise(row), gpu, "", same, sources.bench_name, A100, comparable=False)


def unfused(sources: Sources, names: Sequence[str], **fields: Any) -> list[str]:
    """Mechanisms as the paper ran them: softmax unfused, Pure InfSA unfused where the file has it, else left out."""
    found = [OURS[name] for name in names if name != "infsa_pure"]
    if "infsa_pure" in names and measured(sources, PURE_NAIVE, 1024, **fields):
        found.append(PURE_NAIVE)
    return found


def lead(value: Value, fields: Row, others: Sequence[str], sources: Sources) -> Reading:
    """How far Linear-InfSA is ahead of the best of the others at 1024²."""
    return _against(min, value, fields, others, sources)


def lead_over_last(value: Value, fields: Row, others: Sequence[str], sources: Sources) -> Reading:
    """How far Linear-InfSA is ahead of the slowest of the others at 1024²."""
    return _against(max, value, fields, others, sources)


def _against(choose: Any, value: Value, fields: Row, others: Sequence[str], sources: Sources) -> Reading:
    names = unfused(sources, others, **fields)
    wanted = [(name, 1024, "infer", fields) for name in (*names, "infsa_linear")]
    rows, _ = rows_of(sources, wanted)
    found = dict(zip(names, map(value, rows), strict=False))
    other = choose(found, key=found.__getitem__)
    reading = ratio(other, "infsa_linear", value, 1024, fields, "infer", sources)
    missing = "; unfused Pure InfSA not measured" if "infsa_pure" in others and PURE_NAIVE not in names else ""
    return replace(reading, detail=f"{reading.detail} ({other}){missing}")


def tier(names: Sequence[str], sources: Sources) -> Reading:
    """The mean speed-up of a tier over unfused softmax, 4 layers at 1024²."""
    found = [ratio("softmax-naive", name, milliseconds, 1024, FOUR, "infer", sources) for name in names]
    detail = ", ".join(f"{n} {x.value:.2f}" for n, x in zip(names, found, strict=True))
    mean, error = statistics.mean(x.value for x in found), math.hypot(*(x.error for x in found)) / len(found)
    return replace(
        found[0], value=mean, error=error, detail=detail, launch_bound=any(x.launch_bound for x in found),
        at_least=all(x.at_least or not x.launch_bound for x in found),
    )  # fmt: skip


def divided(a: Reading, b: Reading) -> Reading:
    """One reading over another, such as the speed-ups of two tiers or depths."""
    error = a.value / b.value * math.hypot(a.error / a.value, b.error / b.value)
    bound = a.launch_bound or b.launch_bound
    detail = f"{a.value:.3g} against {b.value:.3g}"
    return replace(a, value=a.value / b.value, error=error, detail=detail, launch_bound=bound, at_least=False)
