"""The figures of ``infsa bench``, from its result files only: the same file gives the same bytes."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..bench.cases import VARIANTS
from ..bench.scaling import finished, median
from . import bench_curves as curves
from .bench_curves import COLOURS, CONFIGS, Content, Draw, Row, logarithmic, name_of
from .bench_tables import in_order, label_of
from .figures import BLUE, GREY, INK, ORANGE, one_panel
from .quality_figures import GREEN, PINK
from .training import tidy

TIER_COLOURS = {"N² d": INK, "N d²": PINK, "N d": GREEN, "N": BLUE}
SIDE = 1024


def save(figure: Figure, path: Path) -> Path:
    """Write a figure without anything that changes from run to run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path


def draw_bench(content: Content, folder: str | Path, names: Iterable[str] | None = None) -> list[Path]:
    """The figures of these names, or all, that a result file has the rows for."""
    folder = Path(folder)
    files = []
    for name in FIGURES if names is None else names:
        figure = FIGURES[name](content)
        if figure is not None:
            files.append(save(figure, folder / f"{name}.png"))
    return files


def at_1024(content: Content, config: str) -> list[Row]:
    """Rows of one configuration that the paper's figures show: inference at 1024², batch 1, eager."""
    rows = finished(content["rows"].values(), mode="infer", part="model", batch=1, compile="none", size=[SIDE, SIDE])
    return in_order(row for row in rows if row["config"] == config)


def joules(row: Row) -> float | None:
    """Measured energy per image, if there is one."""
    return (row.get("energy") or {}).get("joules_per_image")


MEASURED: dict[str, Callable[[Row], float | None]] = {
    "images per second": lambda row: row["images_per_s"],
    "joules per image, measured": joules,
}


def _bars(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float | None], title: str) -> None:
    for place, row in enumerate(rows):
        height = value(row)
        if height is not None:
            axes.barh(place, height, color=COLOURS[name_of(row)])
            axes.text(height, place, f" {height:.3g}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(rows)), [label_of(row) for row in rows], fontsize=8)
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)
    tidy(axes)
    axes.grid(False)


def dashboard(content: Content) -> Figure | None:
    """Speed-up over unfused and fused softmax, throughput and energy of 4L-64H at 1024²."""
    rows = at_1024(content, CONFIGS[0])
    times = {name_of(row): median(row) for row in rows}
    if len(rows) < 2 or "softmax-naive" not in times:
        return None
    fused = min((times[name] for name in ("softmax-flash", "softmax-cudnn", "softmax") if name in times), default=None)
    bars: dict[str, Callable[[Row], float | None]] = {
        "speed-up over unfused softmax": lambda row: times["softmax-naive"] / median(row),
        "speed-up over the best fused softmax": lambda row: fused and fused / median(row),
        **MEASURED,
    }
    bars = {title: value for title, value in bars.items() if any(map(value, rows))}
    figure = Figure(figsize=(3.5 * len(bars), 4.4), layout="constrained")
    panels = figure.subplots(1, len(bars), sharey=True)
    for axes, (title, value) in zip(panels, bars.items(), strict=True):
        _bars(axes, rows, value, title)
    panels[0].invert_yaxis()  # shared: the first row on top
    figure.suptitle(f"{CONFIGS[0]}, inference at {SIDE}²", fontsize=11)
    return figure


def tiers(content: Content) -> Figure | None:
    """Throughput against measured energy, coloured by claimed complexity."""
    rows = [row for row in at_1024(content, CONFIGS[0]) if joules(row)]
    if len(rows) < 2:
        return None
    rows.sort(key=lambda row: row["images_per_s"])
    figure, axes = one_panel(7.6, 4.8)
    for tier in TIER_COLOURS:
        if any(row["tier"] == tier for row in rows):
            axes.plot([], [], "o", color=TIER_COLOURS[tier], ms=7, label=f"O({tier})")
    for index, row in enumerate(rows):
        tier, place = row["tier"], (joules(row) or 0.0, row["images_per_s"])
        marker, size = ("*", 11) if name_of(row).startswith("infsa") else ("o", 7)
        axes.plot(*place, marker, color=TIER_COLOURS[tier], ms=size)
        height = (index + 0.5) / len(rows)  # names in a column, so that none hides another
        axes.annotate(label_of(row), place, (1.04, height), textcoords="axes fraction", fontsize=8, va="center",
                      arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.6})  # fmt: skip
    logarithmic(axes.xaxis, axes.yaxis)
    axes.set(xlabel="joules per image, measured", ylabel="images per second")
    axes.set_title(f"{CONFIGS[0]}, inference at {SIDE}²", fontsize=10)
    axes.legend(frameon=False, title="claimed complexity")
    tidy(axes)
    return figure


def depths(content: Content) -> Figure | None:
    """4 layers of 64 heads beside 24 layers of 16: throughput, and energy where both have it."""
    four, deep = (at_1024(content, config) for config in CONFIGS)
    if not four or not deep:
        return None
    shown = {}
    for title, value in MEASURED.items():
        both = [{name_of(row): value(row) for row in rows} for rows in (four, deep)]
        if names := [name for name in VARIANTS if all(half.get(name) is not None for half in both)]:
            shown[title] = names, both
    figure = Figure(figsize=(1 + 5 * len(shown), 4.4), layout="constrained")
    columns = figure.subplots(1, max(1, len(shown)), squeeze=False)[0]
    for axes, (title, (names, both)) in zip(columns, shown.items(), strict=False):
        for shift, half, colour, label in zip((-0.2, 0.2), both, (BLUE, ORANGE), CONFIGS, strict=True):
            places = [place + shift for place in range(len(names))]
            axes.bar(places, [half[name] for name in names], 0.38, color=colour, label=label)
        axes.set_xticks(range(len(names)), [VARIANTS[n].label for n in names], rotation=40, ha="right", fontsize=8)
        logarithmic(axes.yaxis)
        axes.set_title(title, fontsize=10, loc="right")
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2, fontsize=9)
        tidy(axes)
    return figure


FIGURES: dict[str, Draw] = {
    "dashboard": dashboard,
    "tiers": tiers,
    "depths": depths,
    "latency": curves.latencies,
    "memory": curves.memories,
    "speed-up": curves.speedups,
    "growth": curves.growth,
}
