"""Two result files of ``infsa bench`` side by side."""

from typing import Any

from .bench_tables import NONE, Content, machine_line, number
from .table import Table

Row = dict[str, Any]


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
