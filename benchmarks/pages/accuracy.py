"""Accuracy against parameters: published figures, with their sources, and what this project measured."""

from typing import Any

from matplotlib.figure import Figure

from infsa.report.figures import BLUE, INK, ORANGE
from infsa.report.published import published
from infsa.report.quality_figures import GREEN, PINK
from infsa.report.training import tidy

COLOURS = {"softmax": INK, "linear": GREEN, "state space, convolution": PINK, "InfSA": ORANGE}

TICKS = (25, 50, 100, 200, 300)


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
        shown = sorted((row for row in rows if row[name] is not None), key=lambda row: row[name])
        for index, row in enumerate(shown):  # names to the right and to the left in turn, so that fewer overlap
            place, side = (row["parameters_m"], row[name]), 1 if index % 2 else -1
            axes.annotate(
                row["method"], place, (5 * side, 0), textcoords="offset points", fontsize=6.5, color=INK, va="center",
                ha="left" if side > 0 else "right",
            )  # fmt: skip
        axes.set(xscale="log", xlabel="parameters, millions", ylabel="top-1, %", title=title)
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.set_xticks([], minor=True)
        axes.margins(x=0.12)
        tidy(axes)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure
