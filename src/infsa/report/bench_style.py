"""How the figures of ``infsa bench`` look: a colour for each mechanism, and axes a stranger can read."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .figures import BLUE, GREY, INK, ORANGE, RED
from .quality_figures import GREEN, PINK, SKY

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
