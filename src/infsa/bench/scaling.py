"""What the rows of a result file say together: growth with N, series over sizes."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .cases import read_case

Row = dict[str, Any]
CLAIMED = {"N² d": 2.0, "N d²": 1.0, "N d": 1.0, "N": 1.0}  # exponent of N
CONFIDENCE = 0.95
LARGEST = 3  # sizes that show how a mechanism grows in the end


class Slope(NamedTuple):
    """An exponent of N with its confidence interval, from so many sizes."""

    value: float
    low: float
    high: float
    points: int


def slope(tokens: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Least squares of log value on log N; None with fewer than three sizes."""
    from scipy import stats

    if len(tokens) < 3:
        return None
    fit = stats.linregress([math.log(n) for n in tokens], [math.log(value) for value in values])
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(tokens) - 2)) * float(fit.stderr)
    return Slope(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half, len(tokens))


def finished(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Rows with a time whose case has these fields."""
    found = [row for row in rows if "latency_ms" in row]
    return [row for row in found if all(row["case"][name] == value for name, value in fields.items())]


def series(rows: Iterable[Row], value: Callable[[Row], float | None]) -> dict[str, list[tuple[int, float]]]:
    """Points (N, value) in the order of N, by mechanism."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        number = value(row)
        if number is not None and number > 0:
            points.setdefault(row["case"]["mechanism"], []).append((row["tokens"], number))
    return {name: sorted(pairs) for name, pairs in points.items()}


def median(row: Row) -> float:
    """A row's median latency in milliseconds."""
    return row["latency_ms"]["median"]


def activation_bytes(row: Row) -> float | None:
    """A row's peak memory without the weights; None where it was not measured."""
    return None if row.get("peak_bytes") is None else row["peak_bytes"] - row["weights_bytes"]


def groups_of_sizes(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Finished rows by what they have in common besides mechanism and size, where there are three sizes or more."""
    groups: dict[str, list[Row]] = {}
    for row in finished(rows):
        case = read_case(row["case"])
        if case.size[0] == case.size[1]:
            compiled = "" if case.compile == "none" else f", {case.compile}"
            name = f"{case.part} {case.config}, {case.mode}, batch {case.batch}, {case.dtype}{compiled}"
            groups.setdefault(name, []).append(row)
    return {name: found for name, found in groups.items() if len({row["tokens"] for row in found}) >= 3}


def slopes(rows: Iterable[Row], largest: int | None = None) -> dict[str, Slope | None]:
    """The exponent of time, by mechanism, among rows that differ in mechanism and size only.

    ``largest``: among so many of the largest sizes, where what every call costs, such as launches, weighs least.
    """
    points = {name: found[-largest:] if largest else found for name, found in series(rows, median).items()}
    return {name: slope(*zip(*found, strict=True)) for name, found in points.items()}


def memory_slopes(rows: Iterable[Row]) -> dict[str, Slope | None]:
    """The exponent of the memory of activations, by mechanism."""
    return {name: slope(*zip(*points, strict=True)) for name, points in series(rows, activation_bytes).items()}
