"""What the rows of a result file say together: growth with N, crossovers, resolutions."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .cases import Case, read_case
from .flops import flop_crossover

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


def measured_crossover(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> float | None:
    """N from which ``a`` is faster than ``b``, by straight lines between the common points in log-log.

    The smallest common N if ``a`` is always faster; None if it is not faster at the largest.
    """
    times_a, times_b = dict(a), dict(b)
    common = sorted(times_a.keys() & times_b.keys())
    if not common:
        return None
    gaps = [math.log(times_a[n] / times_b[n]) for n in common]  # negative: a is faster
    if gaps[-1] >= 0:
        return None
    last = max((i for i, gap in enumerate(gaps) if gap >= 0), default=None)
    if last is None:
        return float(common[0])
    share = gaps[last] / (gaps[last] - gaps[last + 1])
    return math.exp(math.log(common[last]) + share * math.log(common[last + 1] / common[last]))


def paper_crossover() -> dict[str, Any]:
    """Sides from which Linear InfViT-4L needs fewer multiply-adds than softmax models, and the paper's own figure.

    The paper puts it near 512², from 59 GFLOPs at 224² for its own model against a ViT-B/16. ``paper_macs`` takes
    its 59 G as multiply-adds, growing with the patches, and ViT-B/16 as counted: the side where the two meet;
    ``paper_flops`` takes them as twice as many operations.
    """
    linear, vit_b = Case("infsa_linear"), Case("softmax", 12, 12, width=768)
    per_token = 59e9 / (224 // 16) ** 2
    fixed, growing = 12 * 12 * 768**2, 12 * 2 * 768  # of ViT-B/16 per token, and per token and token
    sides = [round(16 * math.sqrt((per_token / operations - fixed) / growing)) for operations in (1, 2)]
    return {
        "softmax_4l": flop_crossover(linear, Case("softmax")),
        "pure_4l": flop_crossover(linear, Case("infsa_pure")),
        "vit_b": flop_crossover(linear, vit_b),
        "paper_macs": sides[0],
        "paper_flops": sides[1],
        "paper_claim": 512,
    }
