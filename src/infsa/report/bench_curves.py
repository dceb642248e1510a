"""What ``infsa bench`` measured against the size of the image, and how its figures look: colours, axes to read."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..bench.cases import VARIANTS
from ..bench.scaling import LARGEST, activation_bytes, finished, groups_of_sizes, median, memory_slopes, series, slopes
from .figures import BLUE, GREY, INK, ORANGE, RED, one_panel
from .quality_figures import GREEN, PINK, SKY
from .training import tidy

Row = dict[str, Any]
Content = dict[str, Any]
Draw = Callable[[Content], Figure | None]
COLOURS = {
    "softmax": INK, "softmax-naive": GREY, "softmax-flash": "#4D4D4D", "softmax-cudnn": "#808080", "linformer": GREEN,
    "performer": PINK, "soft": "#1B7837", "flatten": "#A6486F", "agent": SKY, "mlla": "#7B3294", "infsa_pure": ORANGE,
    "infsa_pure-naive": "#F2C572", "infsa_pure-triton": RED, "infsa_linear": BLUE, "mean": "#8CC5E3",
    "energy": "#4C9FD4", "fastformer": "#5A9E6F",
}  # fmt: skip
CONFIGS = ("4L-64H", "24L-16H")


def _square(content: Content, mode: str) -> list[Row]:
    rows = finished(content["rows"].values(), mode=mode, part="model", batch=1, compile="none")
    return [row for row in rows if row["config"] == CONFIGS[0] and row["case"]["size"][0] == row["case"]["size"][1]]


def _curves(content: Content, value: Callable[[Row], float | None], label: str) -> Figure | None:
    """A quantity against the side of the image: inference solid, training dotted."""
    figure, axes = one_panel(8.4, 5)
    drawn: set[str] = set()
    ticks: set[int] = set()
    for mode, dashes in (("infer", "-"), ("train", ":")):
        found = series(_square(content, mode), value)
        for name in (name for name in VARIANTS if len(found.get(name, ())) > 1):
            sides = [round(16 * (tokens - 1) ** 0.5) for tokens, _ in found[name]]
            ticks.update(sides)
            text = None if name in drawn else VARIANTS[name].label
            axes.plot(sides, [y for _, y in found[name]], linestyle=dashes, label=text, **line_style(name))
            drawn.add(name)
    if not drawn:
        return None
    logarithmic(axes.xaxis, axes.yaxis)
    axes.set(xlabel="side of a square image, pixels", ylabel=label)
    axes.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_title(f"{CONFIGS[0]}: inference solid, training dotted", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside right upper", fontsize=8)
    tidy(axes)
    return figure


def latencies(content: Content) -> Figure | None:
    """Latency against resolution."""
    return _curves(content, median, "milliseconds per image")


def memories(content: Content) -> Figure | None:
    """Peak memory against resolution."""
    return _curves(content, lambda row: over(row.get("peak_bytes"), 2**30), "peak memory, GiB, weights included")


def speedups(content: Content) -> Figure | None:
    """How much faster than the best fused softmax each mechanism is, at every resolution."""
    found = series(_square(content, "infer"), median)
    fused = [dict(found[name]) for name in ("softmax-flash", "softmax-cudnn", "softmax") if name in found]
    sizes = sorted({tokens for points in fused for tokens in points})
    names = [name for name in VARIANTS if name in found and not name.startswith("softmax")]
    if not sizes or not names:
        return None
    figure, axes = one_panel(11, 4.2)
    width = 0.84 / len(names)
    for index, name in enumerate(names):
        points = dict(found[name])
        places = [place for place, tokens in enumerate(sizes) if tokens in points]
        ratios = [min(points_[sizes[p]] for points_ in fused if sizes[p] in points_) / points[sizes[p]] for p in places]
        shifted = [place + (index - len(names) / 2 + 0.5) * width for place in places]
        axes.bar(shifted, ratios, width, color=COLOURS[name], label=VARIANTS[name].label)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xticks(range(len(sizes)), [f"{16 * (tokens - 1) ** 0.5:.0f}²" for tokens in sizes])
    logarithmic(axes.yaxis)
    axes.set_ylabel("speed-up over the best fused softmax")
    axes.set_title(f"{CONFIGS[0]}, inference; above the line: faster than softmax", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside right upper", fontsize=8)
    tidy(axes)
    return figure


def growth(content: Content) -> Figure | None:
    """Time and memory against N for every series of three sizes or more of a single layer, with the slopes.

    That of time is over the largest sizes.
    """
    groups = groups_of_sizes(content["rows"].values())
    groups = {name: rows for name, rows in groups.items() if name.startswith("attention")}
    if not groups:
        return None
    figure = Figure(figsize=(12.5, 5.2 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for (title, rows), (left, right) in zip(groups.items(), panels, strict=True):
        time, memory = series(rows, median), series(rows, lambda row: over(activation_bytes(row), 2**20))
        for axes, found, fits in ((left, time, slopes(rows, LARGEST)), (right, memory, memory_slopes(rows))):
            for name in (name for name in VARIANTS if name in found):
                fitted = fits.get(name)
                text = VARIANTS[name].label + (f": N^{fitted.value:.2f}" if fitted else "")
                axes.plot(*zip(*found[name], strict=True), label=text, **line_style(name))
            logarithmic(axes.xaxis, axes.yaxis)
            _guides(axes)
            axes.set_xlabel("tokens N")
            axes.legend(frameon=False, fontsize=7, loc="upper left")
            tidy(axes)
        left.set_title(f"time: {title}; exponents over the {LARGEST} largest sizes", fontsize=10)
        left.set_ylabel("milliseconds")
        right.set_title("peak memory beyond the weights", fontsize=10)
        right.set_ylabel("MiB")
    return figure


def over(value: float | None, unit: int) -> float | None:
    """So many bytes in a larger unit."""
    return None if value is None else value / unit


def _guides(axes: Axes) -> None:
    """Two lines in the lower right corner, growing with N and N²."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    start, end = left * (right / left) ** 0.62, left * (right / left) ** 0.86
    for exponent, text in ((1, "N"), (2, "N²")):
        top = 1.15 * low * (end / start) ** exponent
        axes.plot([start, end], [1.15 * low, top], color=GREY, lw=1, ls="--", zorder=0)
        axes.annotate(text, (end, top), (3, -2), textcoords="offset points", color=GREY, fontsize=9)
    axes.set(xlim=(left, right), ylim=(low, high))


def name_of(row: Row) -> str:
    """The mechanism of a row."""
    return row["case"]["mechanism"]


def line_style(name: str) -> dict[str, Any]:
    """Squares for softmax, thick lines with stars for InfSA, points for the others."""
    ours = name.startswith("infsa")
    marker, size = ("*", 7.0) if ours else ("s" if name.startswith("softmax") else "o", 3.5)
    return {"color": COLOURS[name], "marker": marker, "ms": size, "lw": 2.2 if ours else 1.3}


def logarithmic(*axes: Axis) -> None:
    """A logarithmic axis whose ticks are plain numbers: 0.5, 20, 1,000."""
    for axis in axes:
        drawn: Axes = axis.axes
        (drawn.set_xscale if axis is drawn.xaxis else drawn.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
