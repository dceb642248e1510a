"""The tables of ``infsa bench``, from its result files only."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..bench.cases import VARIANTS, read_case
from ..bench.scaling import CLAIMED, LARGEST, Slope, groups_of_sizes, memory_slopes, slopes
from .table import Table

Row = dict[str, Any]
Content = dict[str, Any]
NONE = "–"


def number(value: float | None, digits: int = 3, scale: float = 1.0) -> str:
    """So many significant digits, never in scientific notation; a dash for nothing."""
    if value is None:
        return NONE
    value *= scale
    size = abs(value)
    after = 0
    while after < 6 and size and size < 10 ** (digits - 1):
        size, after = size * 10, after + 1
    return f"{value:,.{after}f}"


def gibibytes(value: float | None) -> str:
    """Bytes in GiB."""
    return number(value, scale=2**-30)


def latency(row: Row) -> str:
    """Median ± half the interquartile range, with ~ if the medians of the rounds differ; or why there is no time."""
    found = row.get("latency_ms")
    if found is None:
        return reason(row)
    spread = (found["p75"] - found["p25"]) / 2
    text = number(found["median"]) + (f" ± {number(spread, 2)}" if spread else "") + (" ~" if found["drift"] else "")
    return text + (", partial" if row.get("status") == "partial" else "")


def energy(row: Row) -> str:
    """Joules per image: measured, or the paper's formula in brackets."""
    found = row.get("energy") or {}
    if found.get("source"):
        return number(found["joules_per_image"])
    return f"({number(row['paper_formula_joules'])})" if "paper_formula_joules" in row else NONE


def reason(row: Row) -> str:
    """Why a row has no numbers; empty if it has."""
    if row["status"] == "done":
        return ""
    if row["status"] == "failed" and row.get("ran_out"):
        return f"out of {row['ran_out']}" if "memory" in row["ran_out"] else row["reason"]
    return f"{row['status']}: {row['reason']}" if "reason" in row else row["status"]


def timed_groups(content: Content) -> dict[str, list[Row]]:
    """Rows that were timed in turns, by what they have in common."""
    groups: dict[str, list[Row]] = {}
    for row in content["rows"].values():
        case = read_case(row["case"])
        if not case.limit:
            groups.setdefault(case.group, []).append(row)
    return {name: in_order(rows) for name, rows in groups.items()}


def label_of(row: Row) -> str:
    """What a reader calls the mechanism of a row."""
    return VARIANTS[row["case"]["mechanism"]].label


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of VARIANTS."""
    order = list(VARIANTS)
    return sorted(rows, key=lambda row: order.index(row["case"]["mechanism"]))


def group_table(rows: Sequence[Row]) -> Table:
    """One group: time, throughput, memory, energy and multiply-adds of each mechanism."""
    columns = ["mechanism", "ms", "images/s", "GiB", "J/image", "GMAC", "Mparam"]
    lines = [
        [label_of(row), latency(row), number(row.get("images_per_s")), gibibytes(row.get("peak_bytes")), energy(row),
         number(row.get("macs"), scale=1e-9), number(row.get("parameters"), 4, 1e-6)]
        for row in rows
    ]  # fmt: skip
    return Table(columns, lines)


def interval(found: Slope | None) -> str:
    """A slope with its confidence interval."""
    return NONE if found is None else f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def slope_table(rows: Sequence[Row]) -> Table:
    """Exponents of N for time and memory beside the claimed one, for rows that differ in mechanism and size only."""
    lines = []
    times, ends, memories = slopes(rows), slopes(rows, LARGEST), memory_slopes(rows)
    labels = {row["case"]["mechanism"]: row for row in in_order(rows)}
    for name, row in labels.items():
        found = times.get(name)
        if found is None:
            continue
        claimed = f"O({row['tier']}): {CLAIMED[row['tier']]:.0f}"
        cells = [label_of(row), claimed, *map(interval, (found, ends[name], memories.get(name))), str(found.points)]
        lines.append(cells)
    return Table(
        ["mechanism", "claimed", "time exponent", f"{LARGEST} largest sizes", "memory exponent", "sizes"], lines
    )


def slope_tables(content: Content) -> dict[str, Table]:
    """A slope table for every series of sizes in a result file."""
    return {name: slope_table(rows) for name, rows in groups_of_sizes(content["rows"].values()).items()}


def limit_table(content: Content) -> Table:
    """The largest square image of each mechanism and what the next one ran out of."""
    lines = []
    for row in in_order(row for row in content["rows"].values() if row["case"].get("limit")):
        found = row.get("limit")
        name = [label_of(row), row["config"], row["case"]["mode"]]
        if found is None:
            lines.append([*name, NONE, NONE, reason(row), NONE, NONE])
            continue
        cap = gibibytes(found["cap_bytes"]) if found["cap_bytes"] else "none"
        partial = row["status"] == "partial"
        side = f"{'at least ' if partial else ''}{found['side']}²" if found["side"] else "none"
        ran_out = reason(row) if partial else found["ran_out"] or "nothing: largest tried"
        seconds = number(found.get("limit_seconds"), 2)
        lines.append([*name, side, f"{found['tokens']:,}", ran_out, cap, seconds])
    what = ["largest image", "tokens", "ran out of", "memory cap, GiB", "time limit, s"]
    return Table(["mechanism", "model", "mode", *what], lines)


def check_table(content: Content) -> Table:
    """The known matrix product: as the harness times it, and directly."""
    lines = [
        [f"{check['when']}, after {check['after_s']:.0f} s", number(check["harness_ms"]), number(check["direct_ms"]),
         f"{check['ratio']:.3f}", number(check["tflops"])]
        for check in content["checks"] if "harness_ms" in check
    ]  # fmt: skip
    return Table(["matrix product", "harness, ms", "directly, ms", "ratio", "TFLOP/s"], lines)


def machine_line(content: Content) -> str:
    """Machine, versions, idle power, and how many rows a GPU was slowed down in."""
    if not content.get("machines"):
        return "an unknown machine."
    facts = content["machines"][-1]
    where = facts.get("gpu") or f"{facts.get('cpu')}, {facts.get('threads')} threads"
    several = f", {len(content['machines'])} machines of this kind" if len(content["machines"]) > 1 else ""
    idle = content.get("idle_watts")
    watts = f", idle {idle:.0f} W" if idle else ""
    return f"{where}{several}; torch {facts['torch']}; energy: {facts.get('energy')}{watts}{throttled(content)}."


def throttled(content: Content) -> str:
    """In how many rows the GPU lowered its clock, and why; empty if in none."""
    rows = [row["gpu"]["throttled"] for row in content["rows"].values() if row.get("gpu", {}).get("throttled")]
    names = ", ".join(sorted({name for names in rows for name in names}))
    return f"; reduced clock in {len(rows)} of {len(content['rows'])} rows ({names})" if rows else ""


def compare_rows(a: Content, b: Content) -> list[Row]:
    """Rows that two result files share: times or largest images, and ratios of the second to the first."""
    found = []
    for key, rows in ((key, (row, b["rows"][key])) for key, row in a["rows"].items() if key in b["rows"]):
        measures = {
            "ms": [(row.get("latency_ms") or {}).get("median") for row in rows],
            "bytes": [row.get("peak_bytes") for row in rows],
            "joules": [(row.get("energy") or {}).get("joules_per_image") for row in rows],
            "side": [(row.get("limit") or {}).get("side") for row in rows],
        }
        ratios = {f"{name}_ratio": _ratio(*pair) for name, pair in measures.items()}
        if ratios["ms_ratio"] is not None or ratios["side_ratio"] is not None:
            found.append({"row": key, "first": measures["ms"][0], "second": measures["ms"][1], **ratios})
            if measures["side"][0] is not None:
                found[-1] |= {"first": measures["side"][0], "second": measures["side"][1]}
    return found


def compare_table(a: Content, b: Content) -> Table:
    """The same as words; the first two numbers are milliseconds, or pixels where the largest image was searched."""
    ratios = ("ms_ratio", "bytes_ratio", "joules_ratio", "side_ratio")
    lines = [
        [row["row"], *(number(row[name]) for name in ("first", "second")), *(_three(row[name]) for name in ratios)]
        for row in compare_rows(a, b)
    ]
    columns = ["row", "first, ms or px", "second, ms or px", "time", "memory", "energy", "side"]
    return Table(columns, lines)


def compare_note(a: Content, b: Content) -> str:
    """On what both were measured, and how many rows only one of them has."""
    alone = len(a["rows"].keys() - b["rows"].keys()), len(b["rows"].keys() - a["rows"].keys())
    return (
        f"Ratios: second over first. First: {machine_line(a)} Second: {machine_line(b)} "
        f"Rows that only one file has: {alone[0]} and {alone[1]}."
    )


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if not first or second is None else second / first


def _three(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
