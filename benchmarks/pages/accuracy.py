"""Accuracy against parameters: published figures, with their sources, and what this project measured."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox, BboxBase

from infsa.report.figures import BLUE, INK, ORANGE
from infsa.report.published import published
from infsa.report.quality_figures import GREEN, PINK
from infsa.report.training import tidy

COLOURS = {"softmax": INK, "linear": GREEN, "state space, convolution": PINK, "InfSA": ORANGE}

TICKS = (25, 50, 100, 200, 300)
SIDES = (
    ((6, 0), "left", "center"),
    ((-6, 0), "right", "center"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
)


def accuracy_figure(ours: list[dict[str, Any]] | None = None) -> Figure:
    """Top-1 on ImageNet-1K and ImageNet-V2 against parameters; ``ours`` has rows of the same form, drawn apart."""
    rows = published()["rows"]
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    titles = {"imagenet_1k": "ImageNet-1K", "imagenet_v2": "ImageNet-V2"}
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for family, colour in COLOURS.items():
            found = [row for row in rows if row["family"] == family and row[name] is not None]
            marker = "*" if family == "InfSA" else "o"
            x, y = [row["parameters_m"] for row in found], [row[name] for row in found]
            axes.plot(x, y, marker, color=colour, ms=10 if marker == "*" else 5, label=f"{family}, published")
        for row in ours or []:
            if row[name] is not None:
                label = f"{row['method']}, measured here"
                axes.plot(row["parameters_m"], row[name], "D", color=BLUE, ms=7, label=label)
        axes.set(xscale="log", xlabel="parameters, millions", ylabel="top-1, %", title=title)
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.set_xticks([], minor=True)
        axes.margins(x=0.12)
        tidy(axes)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.draw_without_rendering()
    for axes, name in zip(figure.axes, titles, strict=True):
        put_names(axes, {row["method"]: (row["parameters_m"], row[name]) for row in rows if row[name] is not None})
    return figure


def put_names(axes: Axes, places: dict[str, tuple[float, float]]) -> None:
    """A name beside each point, on the side where it covers least of the points and names, and of the margin."""
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform(list(places.values()))]
    for name, place in sorted(places.items(), key=lambda item: -item[1][0]):
        found: list[tuple[float, Annotation]] = []
        for offset, ha, va in SIDES:
            text = axes.annotate(name, place, offset, textcoords="offset points", fontsize=6.5, color=INK, ha=ha, va=va)
            text.set_in_layout(False)
            box = text.get_window_extent()
            outside = box.width * box.height - common(box, axes.bbox)
            found.append((outside + sum(common(box, other) for other in taken), text))
        _, best = min(found, key=lambda one: one[0])
        taken.append(best.get_window_extent())
        for _, text in found:
            if text is not best:
                text.remove()


def common(one: Bbox, other: BboxBase) -> float:
    """The area that two boxes share."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)
