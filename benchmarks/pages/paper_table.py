"""The tables of docs/benchmarks.md, from the result file of ``infsa bench``; numbers of the paper beside them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from infsa.bench.cases import PEERS, VARIANTS, Case
from infsa.bench.presets import DEEP, FOUR
from infsa.bench.scaling import finished, median, series
from infsa.report.bench_tables import NONE, gibibytes, number
from infsa.report.table import Table

Row = dict[str, Any]
Content = dict[str, Any]
CONFIGS: dict[str, dict[str, Any]] = {"24L-16H": DEEP, "4L-64H": FOUR}
OURS = VARIANTS["infsa_linear"].label
# the rows of the tables: of several ways to compute one mechanism, the best counts
ROWS = {
    "softmax (unfused)": ("softmax-naive",),
    "softmax (fused)": ("softmax", "softmax-flash", "softmax-cudnn"),
    **{VARIANTS[name].label: (name,) for name in PEERS},
    "Pure InfSA": ("infsa_pure", "infsa_pure-triton"),
    OURS: ("infsa_linear",),
}
CROSSED = {
    "inference": ("infer", "none"),
    "inference, compiled": ("infer", "reduce-overhead"),
    "training": ("train", "none"),
}
SIDES = (224, 512, 1024, 2048, 4096, 9216)
SQUARE = (1024, 1024)  # of the paper's claim
# the paper's Table 1: training at 512² and inference at 1024² in ms, energy of inference in J, on an A100
PAPER: dict[str, dict[str, tuple[float, float, float]]] = {
    "24L-16H": {
        "softmax-naive": (60.18, 113.13, 22.63), "linformer": (55.64, 38.95, 7.79), "performer": (58.14, 42.80, 8.56),
        "soft": (56.10, 36.44, 7.29), "flatten": (57.82, 40.15, 8.03), "agent": (56.55, 35.81, 7.16),
        "mlla": (57.38, 39.52, 7.90), "infsa_pure": (60.25, 110.20, 22.04), "infsa_linear": (55.52, 25.28, 5.06),
    },
    "4L-64H": {
        "softmax-naive": (19.26, 58.16, 11.63), "linformer": (12.49, 5.63, 1.13), "performer": (15.45, 11.63, 2.33),
        "soft": (12.18, 5.38, 1.08), "flatten": (14.92, 10.85, 2.17), "agent": (12.35, 5.45, 1.09),
        "mlla": (14.68, 10.52, 2.10), "infsa_pure": (19.55, 56.27, 11.25), "infsa_linear": (9.41, 4.33, 0.87),
    },
}  # fmt: skip


def find(content: Content, mechanism: str, **fields: Any) -> Row | None:
    """The row of a case, if the file has it."""
    return content["rows"].get(Case(mechanism, **fields).key)


def milliseconds(row: Row) -> float | None:
    """The median time of a row, if it was timed."""
    return median(row) if "latency_ms" in row else None


def joules(row: Row) -> float | None:
    """Measured energy per image, if there is one."""
    return (row.get("energy") or {}).get("joules_per_image")


def peak(row: Row) -> float | None:
    """Peak memory in bytes, if it was measured."""
    return row.get("peak_bytes")


def rows_of(content: Content, names: tuple[str, ...], **fields: Any) -> list[Row]:
    """The rows that the file has of one mechanism, however computed."""
    return [row for name in names if (row := find(content, name, **fields)) is not None]


def best(rows: list[Row], value: Callable[[Row], float | None]) -> float | None:
    """The smallest value of these rows, if one has any."""
    return min((number for row in rows if (number := value(row)) is not None), default=None)


def claim_table(content: Content) -> Table:
    """What others need for an image of 1024², divided by what Linear-InfSA needs; and the same in the paper."""
    graphs = {"compile": "reduce-overhead"}
    measures: dict[str, tuple[Row, Callable[[Row], float | None]]] = {
        "time": ({}, milliseconds),
        "time, compiled": (graphs, milliseconds),
        "energy": ({}, joules),
        "memory": ({}, peak),
    }
    shown = [("4L", "4L-64H", list(measures)), ("24L", "24L-16H", list(measures)[:3])]
    lines = []
    for label, names in ROWS.items():
        if label == OURS:
            continue
        cells = []
        for _, config, wanted in shown:
            for fields, value in (measures[name] for name in wanted):
                both = [rows_of(content, ROWS[key], size=SQUARE, **CONFIGS[config], **fields) for key in (label, OURS)]
                cells.append(_ratio(*(best(rows, value) for rows in both)))
            printed = PAPER[config]
            cells.append(f"{printed[names[0]][1] / printed['infsa_linear'][1]:.1f}" if names[0] in printed else NONE)
        lines.append([label, *cells])
    columns = [f"{depth} {name}" for depth, _, wanted in shown for name in (*wanted, "time (paper)")]
    return Table(["relative to Linear-InfSA, 1024²", *columns], lines)


def resolution_table(content: Content) -> Table:
    """Inference of the 4-layer models in milliseconds at growing sizes, the fastest at the largest size first."""
    found = {label: [rows_of(content, names, size=(side, side), **FOUR) for side in SIDES]
             for label, names in ROWS.items()}  # fmt: skip
    times = {label: [best(rows, milliseconds) or float("inf") for rows in sizes] for label, sizes in found.items()}
    order = sorted(found, key=lambda label: times[label][::-1])
    return Table(["4L-64H, ms", *(f"{side}²" for side in SIDES)], [[n, *map(time_cell, found[n])] for n in order])


def large_table(content: Content) -> Table:
    """Training, peak memory, and the largest image within the limits of the search, of the 4-layer models."""
    lines = []
    for label, names in ROWS.items():
        small, large = (rows_of(content, names, size=(s, s), mode="train", **FOUR) for s in (512, 4096))
        huge = rows_of(content, names, size=(9216, 9216), **FOUR)
        memory = [gibibytes(best(rows, peak)) for rows in (large, huge)]
        lines.append([label, time_cell(small), time_cell(large), *memory, _limit(content, names)])
    columns = ["4L-64H", "train 512², ms", "train 4096², ms", "train 4096², GiB", "infer 9216², GiB", "largest image"]
    return Table(columns, lines)


def crossover_table(content: Content) -> Table:
    """From which N on Linear-InfSA is faster than Pure InfSA and softmax in the same model, measured."""
    lines = []
    for label in ("softmax (unfused)", "softmax (fused)", "Pure InfSA"):
        cells = []
        for mode, compiled in CROSSED.values():
            same = finished(content["rows"].values(), mode=mode, part="model", compile=compiled, batch=1, **FOUR,
                            width=1024)  # fmt: skip
            points = series((row for row in same if row["case"]["size"][0] == row["case"]["size"][1]), median)
            theirs: dict[int, float] = {}
            for tokens, time in (pair for name in ROWS[label] for pair in points.get(name, [])):
                theirs[tokens] = min(time, theirs.get(tokens, time))
            cells.append(_crossing(points.get("infsa_linear", []), sorted(theirs.items())))
        lines.append([label, *cells])
    return Table(["Linear-InfSA is faster than", *CROSSED], lines)


def time_cell(rows: list[Row]) -> str:
    """The smallest median; ~ before it if the medians of its rounds differ by more than 5 %."""
    timed = [row for row in rows if "latency_ms" in row]
    if not timed:
        failed = any(row.get("ran_out") for row in rows)
        return "out of memory" if failed else NONE
    row = min(timed, key=median)
    return ("~" if row["latency_ms"]["drift"] else "") + number(median(row))


def _crossing(ours: list[tuple[int, float]], theirs: list[tuple[int, float]]) -> str:
    common = dict(ours).keys() & dict(theirs).keys()
    if len(common) < 2:
        return NONE
    tokens = measured_crossover(ours, theirs)
    if tokens is None:
        return "at no size measured"
    if tokens == min(common):
        return "at every size measured"
    return f"from {_rough(16 * tokens**0.5)}² ({_rough(tokens):,} tokens)"


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


def _rough(value: float) -> int:
    """Two significant digits: lines between measured sizes give no more."""
    unit = 10 ** max(0, len(str(int(value))) - 2)
    return round(value / unit) * unit


def _ratio(a: float | None, b: float | None) -> str:
    return NONE if a is None or b is None else f"{a / b:.2f}"


def _limit(content: Content, names: tuple[str, ...]) -> str:
    rows = [row for row in rows_of(content, names, size=(512, 512), limit=True, **FOUR) if "limit" in row]
    if not rows:
        return NONE
    found = max((row["limit"] for row in rows), key=lambda limit: limit["side"])
    return f"{found['side']}² ({found['ran_out'].removeprefix('GPU ')})"
