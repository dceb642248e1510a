"""The figures of ``infsa bench``, from its result files only: the same file gives the same bytes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..bench.cases import VARIANTS
from ..bench.scaling import activation_bytes, finished, groups_of_sizes, median, series, slopes
from .bench_tables import in_order
from .figures import BLUE, GREY, INK, ORANGE, RED
from .quality_figures import GREEN, PINK, SKY
from .training import tidy

Row = dict[str, Any]
Content = dict[str, Any]
COLOURS = {
    "softmax": INK, "softmax-naive": GREY, "softmax-flash": INK, "softmax-cudnn": "#777777", "linformer": GREEN,
    "performer": PINK, "soft": "#1B7837", "flatten": "#A6486F", "agent": SKY, "mlla": "#7B3294", "infsa_pure": ORANGE,
    "infsa_pure-naive": "#F2C572", "infsa_pure-triton": RED, "infsa_linear": BLUE,
}  # fmt: skip
TIER_COLOURS = {"N² d": INK, "N d²": PINK, "N d": GREEN, "N": BLUE}
CONFIGS = ("4L-64H", "24L-16H")
SIDE = 1024


def save(figure: Figure, path: Path) -> Path:
    """Write a figure without anything that changes from run to run.

    Example:
        >>> save(Figure(), Path("empty.png"))
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path


def draw_bench(content: Content, folder: str | Path) -> list[Path]:
    """Every figure that a result file has the rows for.

    Example:
        >>> draw_bench(read_results("runs/bench.json"), "runs/bench")
    """
    folder = Path(folder)
    files = []
    for name, draw in FIGURES.items():
        figure = draw(content)
        if figure is not None:
            files.append(save(figure, folder / f"{name}.png"))
    return files


def at_1024(content: Content, config: str) -> list[Row]:
    """Rows of one configuration as the paper's figures show them: inference at 1024², batch 1, not compiled.

    Example:
        >>> at_1024(content, "4L-64H")
    """
    rows = finished(content["rows"].values(), mode="infer", part="model", batch=1, compile="none", size=[SIDE, SIDE])
    return in_order(row for row in rows if row["config"] == config)


def joules(row: Row) -> float | None:
    """Measured energy per image, if there is one.

    Example:
        >>> joules({"energy": {"joules_per_image": 2.0}})
        2.0
    """
    return (row.get("energy") or {}).get("joules_per_image")


def _name(row: Row) -> str:
    return row["case"]["mechanism"]


def _bars(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float | None], title: str) -> None:
    for place, row in enumerate(rows):
        height = value(row)
        if height is not None:
            axes.barh(place, height, color=COLOURS[_name(row)])
            axes.text(height, place, f" {height:.3g}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)
    tidy(axes)
    axes.grid(False)


def dashboard(content: Content) -> Figure | None:
    """Speed-up over unfused and fused softmax, throughput and energy of 4L-64H at 1024².

    Example:
        >>> dashboard(content)
    """
    rows = at_1024(content, CONFIGS[0])
    times = {_name(row): median(row) for row in rows}
    if len(rows) < 2 or "softmax-naive" not in times:
        return None
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    base = f"{CONFIGS[0]}, inference at {SIDE}²"
    _bars(panels[0], rows, lambda row: times["softmax-naive"] / median(row), "speed-up over unfused softmax")
    fused = min((times[name] for name in ("softmax-flash", "softmax-cudnn", "softmax") if name in times), default=None)
    _bars(panels[1], rows, lambda row: fused and fused / median(row), "speed-up over the best fused softmax")
    _bars(panels[2], rows, lambda row: row["images_per_s"], "images per second")
    _bars(panels[3], rows, joules, "joules per image, measured")
    panels[0].invert_yaxis()  # shared: the first row on top
    figure.suptitle(base, fontsize=11)
    return figure


def tiers(content: Content) -> Figure | None:
    """Throughput against measured energy, coloured by claimed complexity.

    Example:
        >>> tiers(content)
    """
    rows = [row for row in at_1024(content, CONFIGS[0]) if joules(row)]
    if len(rows) < 2:
        return None
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    shown = set()
    for row in rows:
        tier, place = row["tier"], (joules(row) or 0.0, row["images_per_s"])
        marker, size = ("*", 11) if _name(row).startswith("infsa") else ("o", 7)
        label = None if tier in shown else f"O({tier})"
        axes.plot(*place, marker, color=TIER_COLOURS[tier], ms=size, label=label)
        axes.annotate(row["label"], place, (5, 4), textcoords="offset points", fontsize=8)
        shown.add(tier)
    axes.set(xscale="log", yscale="log", xlabel="joules per image, measured", ylabel="images per second")
    axes.set_title(f"{CONFIGS[0]}, inference at {SIDE}²", fontsize=10)
    axes.legend(frameon=False, title="claimed")
    tidy(axes)
    return figure


def depths(content: Content) -> Figure | None:
    """4 layers of 64 heads beside 24 layers of 16: throughput and energy.

    Example:
        >>> depths(content)
    """
    four, deep = (at_1024(content, config) for config in CONFIGS)
    if not four or not deep:
        return None
    names = [name for name in VARIANTS if name in {_name(row) for row in (*four, *deep)}]
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    values: tuple[Callable[[Row], float | None], ...] = (lambda row: row["images_per_s"], joules)
    titles = ("images per second", "joules per image, measured")
    for axes, value, title in zip(figure.subplots(1, 2), values, titles, strict=True):
        for shift, rows, colour in ((-0.2, four, BLUE), (0.2, deep, ORANGE)):
            points = {names.index(_name(row)): value(row) for row in rows}
            kept = {place: height for place, height in points.items() if height is not None}
            label = CONFIGS[0] if shift < 0 else CONFIGS[1]
            axes.bar([place + shift for place in kept], list(kept.values()), 0.38, color=colour, label=label)
        axes.set_xticks(range(len(names)), [VARIANTS[n].label for n in names], rotation=40, ha="right", fontsize=8)
        axes.set(yscale="log", title=title)
        axes.legend(frameon=False)
        tidy(axes)
    return figure


def _square(content: Content, mode: str) -> list[Row]:
    rows = finished(content["rows"].values(), mode=mode, part="model", batch=1, compile="none")
    return [row for row in rows if row["config"] == CONFIGS[0] and row["case"]["size"][0] == row["case"]["size"][1]]


def _curves(content: Content, value: Callable[[Row], float | None], label: str) -> Figure | None:
    """A quantity against the side of the image: inference solid, training dotted."""
    figure = Figure(figsize=(8.4, 5), layout="constrained")
    axes = figure.subplots()
    drawn: set[str] = set()
    ticks: set[int] = set()
    for mode, style in (("infer", "-o"), ("train", ":o")):
        found = series(_square(content, mode), value)
        for name in (name for name in VARIANTS if len(found.get(name, ())) > 1):
            sides = [round(16 * (tokens - 1) ** 0.5) for tokens, _ in found[name]]
            ticks.update(sides)
            text = None if name in drawn else VARIANTS[name].label
            axes.plot(sides, [y for _, y in found[name]], style, color=COLOURS[name], ms=3, lw=1.4, label=text)
            drawn.add(name)
    if not drawn:
        return None
    axes.set(xscale="log", yscale="log", xlabel="side of a square image, pixels", ylabel=label)
    axes.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_title(f"{CONFIGS[0]}: inference solid, training dotted", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside right upper", fontsize=8)
    tidy(axes)
    return figure


def latencies(content: Content) -> Figure | None:
    """Latency against resolution.

    Example:
        >>> latencies(content)
    """
    return _curves(content, median, "milliseconds per image")


def memories(content: Content) -> Figure | None:
    """Peak memory against resolution.

    Example:
        >>> memories(content)
    """

    def gibibytes(row: Row) -> float | None:
        return None if row.get("peak_bytes") is None else row["peak_bytes"] / 2**30

    return _curves(content, gibibytes, "peak memory, GiB, weights included")


def speedups(content: Content) -> Figure | None:
    """How much faster than the best fused softmax each mechanism is, at every resolution.

    Example:
        >>> speedups(content)
    """
    found = series(_square(content, "infer"), median)
    fused = [dict(found[name]) for name in ("softmax-flash", "softmax-cudnn", "softmax") if name in found]
    sizes = sorted({tokens for points in fused for tokens in points})
    names = [name for name in VARIANTS if name in found and not name.startswith("softmax")]
    if not sizes or not names:
        return None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.84 / len(names)
    for index, name in enumerate(names):
        points = dict(found[name])
        places = [place for place, tokens in enumerate(sizes) if tokens in points]
        ratios = [min(points_[sizes[p]] for points_ in fused if sizes[p] in points_) / points[sizes[p]] for p in places]
        shifted = [place + (index - len(names) / 2 + 0.5) * width for place in places]
        axes.bar(shifted, ratios, width, color=COLOURS[name], label=VARIANTS[name].label)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xticks(range(len(sizes)), [f"{16 * (tokens - 1) ** 0.5:.0f}²" for tokens in sizes])
    axes.set(yscale="log", ylabel="speed-up over the best fused softmax", title=f"{CONFIGS[0]}, inference")
    axes.legend(frameon=False, fontsize=8, ncols=3)
    tidy(axes)
    return figure


def growth(content: Content) -> Figure | None:
    """Time and memory against N for every series of three sizes or more of a single layer, with the slopes.

    Example:
        >>> growth(content)
    """
    groups = groups_of_sizes(content["rows"].values())
    groups = {name: rows for name, rows in groups.items() if name.startswith("attention")}
    if not groups:
        return None
    figure = Figure(figsize=(12, 4.6 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for (title, rows), (left, right) in zip(groups.items(), panels, strict=True):
        exponents = slopes(rows)
        for axes, value in ((left, median), (right, activation_bytes)):
            found = series(rows, value)
            for name in (name for name in VARIANTS if name in found):
                fitted = exponents.get(name)
                text = VARIANTS[name].label + (f": N^{fitted.value:.2f}" if fitted else "")
                axes.plot(*zip(*found[name], strict=True), "-o", color=COLOURS[name], ms=3.5, lw=1.4, label=text)
            axes.set(xscale="log", yscale="log", xlabel="tokens N")
            tidy(axes)
        left.set(ylabel="milliseconds", title=title)
        right.set(ylabel="bytes beyond the weights", title="peak memory")
        left.legend(frameon=False, fontsize=7, loc="upper left")
    return figure


FIGURES: dict[str, Callable[[Content], Figure | None]] = {
    "dashboard": dashboard,
    "tiers": tiers,
    "depths": depths,
    "latency": latencies,
    "memory": memories,
    "speed-up": speedups,
    "growth": growth,
}
