"""The tables of docs/benchmarks.md: the paper's Table 1 as measured, beside what the paper printed."""

from typing import Any

from infsa.bench.cases import VARIANTS, Case
from infsa.bench.presets import DEEP, FOUR
from infsa.bench.scaling import finished, measured_crossover, median, series
from infsa.report.bench_tables import NONE, energy, gibibytes, latency, number
from infsa.report.table import Table

Row = dict[str, Any]
Content = dict[str, Any]
CONFIGS: dict[str, dict[str, Any]] = {"24L-16H": DEEP, "4L-64H": FOUR}
CROSSED = (("infer", "none"), ("infer", "reduce-overhead"), ("train", "none"))
SIDES = (224, 512, 1024, 2048, 4096, 9216)
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


def table1(content: Content, config: str) -> Table:
    """One half of Table 1 beside the paper's numbers; :func:`claim_table` has the ratios."""
    fields, paper = CONFIGS[config], PAPER[config]
    lines = []
    for name, variant in VARIANTS.items():
        infer = find(content, name, size=(1024, 1024), **fields)
        train = find(content, name, size=(512, 512), mode="train", **fields)
        if infer is None and train is None:
            continue
        known = infer or train or {}
        printed = paper.get(name)
        lines.append([
            variant.label, number(known.get("parameters"), 4, 1e-6), _cell(train), _cell(infer),
            number((infer or {}).get("images_per_s")), NONE if infer is None else energy(infer),
            gibibytes((infer or {}).get("peak_bytes")),
            _limit(content, name, fields), NONE if printed is None else f"{printed[0]} / {printed[1]} / {printed[2]}",
        ])  # fmt: skip
    columns = ["mechanism", "parameters, M", "train 512², ms", "infer 1024², ms", "images/s", "J/image",
               "memory, GiB", "largest image", "paper, A100: ms / ms / J"]  # fmt: skip
    return Table(columns, lines)


def stress_table(content: Content) -> Table:
    """The extreme resolutions: training at 4096² and inference at 9216²."""
    lines = []
    for name, variant in VARIANTS.items():
        for compiled in ("none", "default"):
            four = {**FOUR, "compile": compiled}
            found = [
                find(content, name, size=(4096, 4096), mode="train", **four),
                find(content, name, size=(9216, 9216), **four),
                find(content, name, size=(9216, 9216), **{**DEEP, "compile": compiled}),
            ]
            if not any(found):
                continue
            label = variant.label + (", compiled" if compiled != "none" else "")
            memory = [gibibytes((row or {}).get("peak_bytes")) for row in found[:2]]
            lines.append([label, _cell(found[0]), memory[0], _cell(found[1]), memory[1], _cell(found[2])])
    columns = ["mechanism", "4L train 4096², ms", "GiB", "4L infer 9216², ms", "GiB", "24L infer 9216², ms"]
    return Table(columns, lines)


def compiled_table(content: Content) -> Table:
    """Inference at 1024², eager and compiled with CUDA graphs."""
    lines = []
    for name, variant in VARIANTS.items():
        eager = "infsa_pure" if name == "infsa_pure-triton" else name  # what "auto" takes on a GPU, not compiled
        cells = [
            _cell(find(content, mechanism, size=(1024, 1024), compile=compiled, **fields))
            for fields in (FOUR, DEEP)
            for mechanism, compiled in ((eager, "none"), (name, "reduce-overhead"))
        ]
        if cells[1] != NONE or cells[3] != NONE:
            lines.append([variant.label, *cells])
    return Table(["mechanism", "4L eager, ms", "4L compiled, ms", "24L eager, ms", "24L compiled, ms"], lines)


def crossover_table(content: Content) -> Table:
    """From which N on Linear-InfSA is faster than others in the same model, measured.

    In inference, eager and compiled with CUDA graphs, and in training.
    """
    found: dict[str, list[str]] = {}
    rows = content["rows"].values()
    for column, (mode, compiled) in enumerate(CROSSED):
        same = finished(rows, mode=mode, part="model", compile=compiled, batch=1, **FOUR, width=1024)
        points = series((row for row in same if row["case"]["size"][0] == row["case"]["size"][1]), median)
        ours = points.pop("infsa_linear", [])
        for name, theirs in points.items():
            if len(dict(ours).keys() & dict(theirs).keys()) < 2:
                continue
            tokens = measured_crossover(ours, theirs)
            first = min(dict(ours).keys() & dict(theirs).keys())
            text = "not reached" if tokens is None else f"about {_rough(tokens):,} ({_rough(16 * tokens**0.5)}²)"
            text = "every size measured" if tokens == first else text
            found.setdefault(name, [NONE] * len(CROSSED))[column] = text
    lines = [[VARIANTS[name].label, *found[name]] for name in VARIANTS if name in found]
    return Table(["against", "inference, from N", "inference, compiled, from N", "training, from N"], lines)


def resolution_table(content: Content) -> Table:
    """Inference of the 4-layer models at growing sizes, the fastest at the largest size first."""
    found = {name: [find(content, name, size=(side, side), **FOUR) for side in SIDES] for name in VARIANTS}
    found = {name: rows for name, rows in found.items() if sum("latency_ms" in (row or {}) for row in rows) > 2}
    worst = float("inf")
    times = {name: [median(row) if row and "latency_ms" in row else worst for row in found[name]] for name in found}
    order = sorted(found, key=lambda name: times[name][::-1])
    lines = [[VARIANTS[name].label, *map(_cell, found[name])] for name in order]
    return Table(["mechanism", *(f"{side}², ms" for side in SIDES)], lines)


def claim_table(content: Content, config: str = "4L-64H") -> Table:
    """How many times better Linear-InfSA is at 1024² than others: time, energy, memory; and in the paper."""
    size, fields, printed = (1024, 1024), CONFIGS[config], PAPER[config]
    ours = find(content, "infsa_linear", size=size, **fields)
    graph = find(content, "infsa_linear", size=size, compile="reduce-overhead", **fields)
    lines = []
    for name, variant in VARIANTS.items():
        theirs = find(content, name, size=size, **fields)
        compiled = find(content, name, size=size, compile="reduce-overhead", **fields)
        if name == "infsa_linear" or not (theirs or compiled):
            continue
        paper = [f"{printed[name][i] / printed['infsa_linear'][i]:.1f}" if name in printed else NONE for i in (1, 2)]
        lines.append([
            variant.label, _times(theirs, ours), _times(compiled, graph), _ratio(_joules(theirs), _joules(ours)),
            _ratio((theirs or {}).get("peak_bytes"), (ours or {}).get("peak_bytes")), *paper,
        ])  # fmt: skip
    first = f"Linear-InfSA, {config}, 1024², times better than"
    return Table([first, "time", "time, both compiled", "energy", "memory", "paper: time", "paper: energy"], lines)


def _rough(value: float) -> int:
    """Two significant digits: lines between measured sizes give no more."""
    unit = 10 ** max(0, len(str(int(value))) - 2)
    return round(value / unit) * unit


def _joules(row: Row | None) -> float | None:
    return (row or {}).get("energy", {}).get("joules_per_image")


def _ratio(a: float | None, b: float | None) -> str:
    return NONE if a is None or b is None else f"{a / b:.2f}"


def _cell(row: Row | None) -> str:
    return NONE if row is None else latency(row)


def _times(base: Row | None, row: Row | None) -> str:
    known = [None if found is None or "latency_ms" not in found else median(found) for found in (base, row)]
    return _ratio(*known)


def _limit(content: Content, name: str, fields: Row) -> str:
    row = find(content, name, size=(512, 512), limit=True, **fields)
    return f"{row['limit']['side']}² ({row['limit']['ran_out']})" if row and "limit" in row else NONE
