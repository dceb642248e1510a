"""Figures of the page: the token graph with a walk on it, centralities side by side, removal curves."""

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from PIL import Image
from torch import Tensor

from ..graph.statistics import spearman
from ..report.figures import BLUE, GREY, ORANGE, RED
from ..report.panels import overlay
from .look import on_grid
from .removal import ORDERS, Removal
from .walks import Walk

EDGES = 40  # strongest moves of the whole graph that are drawn
FROM_START = 8  # strongest moves from the start
CURVE_PLACE = (0.1, 0.17, 0.87, 0.72)  # left, bottom, width, height of the axes in the figure of the curves

THEME = "#010101"  # stands for the colour of text, which depends on the theme of the page
COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
THEMED: dict[Any, Any] = dict.fromkeys(COLOURED, THEME) | {"axes.facecolor": "none"}

_LOCK = threading.Lock()


@contextmanager
def _drawing() -> Iterator[None]:
    """matplotlib draws one figure at a time, in the colours of the page."""
    with _LOCK, rc_context(THEMED):
        yield


def _written(figure: Figure) -> str:
    """The figure as SVG inside the page: transparent, its text in the colour of the text around it."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", dpi=130, transparent=True, metadata={"Date": None})
    written = re.search(r"<svg.*</svg>", re.sub(r"<metadata>.*?</metadata>", "", stream.getvalue(), flags=re.S), re.S)
    assert written is not None
    return written[0].replace(THEME, "currentColor").replace("<svg ", '<svg role="img" ', 1)


def draw_walk(image: Image.Image, walk: Walk, grid: tuple[int, int], prefix: int) -> str:
    """The token graph over the picture, where a walk is after each hop, and how soon it ends: SVG."""
    steps = len(walk.places) - 1
    with _drawing():
        wide = image.width > image.height
        figure = Figure(figsize=(10, 5.3 if wide else 5.8), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1.5, 1) if wide else (1, 1), squeeze=False)[0]
        _draw_graph(left.subplots(), image, walk, grid, prefix)
        panels = right.subplots(*((3, 2) if wide else (2, 3))).flat
        for step in range(1, 6):
            panel = next(panels)
            panel.axis("off")
            if step <= steps:
                here = walk.places[step, prefix:]
                panel.imshow(_over(image, here, grid))
                panel.set_title(
                    f"after {step} hop{'s' * (step > 1)}\n{1 - walk.ended[step]:.0%} still walking", fontsize=9
                )
        _draw_ended(next(panels), walk)
        return _written(figure)


def _over(image: Image.Image, scores: Tensor, grid: tuple[int, int]) -> Image.Image:
    """A distribution over the patches on top of the picture; an empty one darkens it evenly."""
    scores = scores if float(scores.sum()) > 0 else torch.ones_like(scores)
    return overlay(image, on_grid(scores, grid))


def _draw_graph(axes: Axes, image: Image.Image, walk: Walk, grid: tuple[int, int], prefix: int) -> None:
    places = _places(image.size, grid, prefix)
    grey = image.convert("L")
    axes.imshow(np.asarray(Image.blend(Image.new("L", grey.size, 255), grey, 0.45)), cmap="gray", vmin=0, vmax=255)
    strongest = walk.moves.clone().fill_diagonal_(0)
    axes.set(xlim=(0, image.width), ylim=(image.height, -0.16 * image.height))
    axes.axis("off")
    _arrows(axes, strongest, places, EDGES, BLUE, 0.35)
    only = torch.zeros_like(strongest)
    only[walk.start] = strongest[walk.start]
    _arrows(axes, only, places, FROM_START, ORANGE, 0.95)
    visits = walk.visits - walk.places[0]  # the start itself is no visit
    size = 14 + 200 * (visits / visits.max().clamp_min(1e-12)).numpy()
    colours: dict[str, Any] = {"c": walk.ending.numpy(), "vmin": 0, "vmax": 1, "cmap": "viridis", "edgecolor": "white"}
    shown = axes.scatter(places[:, 0], places[:, 1], s=size, zorder=4, **colours)
    x, y = places[walk.start]
    axes.scatter(x, y, s=330, facecolor="none", edgecolor=ORANGE, linewidth=2.4, zorder=5)
    if prefix:
        axes.annotate("class token", places[0], xytext=(14, 0), textcoords="offset points", va="center")
    bar = axes.figure.colorbar(shown, ax=axes, orientation="horizontal", shrink=0.6, aspect=32, pad=0.02)
    bar.set_label("chance that the walk ends at a token (absorption)", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _places(size: tuple[int, int], grid: tuple[int, int], prefix: int) -> np.ndarray:
    """Where tokens are drawn, (N, 2): patches at their centres, the prefix above the picture."""
    rows, columns = grid
    width, height = size
    x, y = np.meshgrid((np.arange(columns) + 0.5) * width / columns, (np.arange(rows) + 0.5) * height / rows)
    above = np.array([[width * (k + 1) / (prefix + 1), -0.08 * height] for k in range(prefix)]).reshape(prefix, 2)
    return np.concatenate([above, np.stack([x.ravel(), y.ravel()], 1)])


def _arrows(axes: Axes, moves: Tensor, places: np.ndarray, count: int, colour: str, alpha: float) -> None:
    chances, edges = moves.flatten().topk(min(count, moves.numel()))
    top = float(chances.max())
    for chance, edge in zip(chances.tolist(), edges.tolist(), strict=True):
        if chance <= 0:
            return
        start, end = divmod(edge, len(moves))
        arrow = FancyArrowPatch(
            tuple(places[start]), tuple(places[end]), connectionstyle="arc3,rad=0.12", arrowstyle="-|>"
        )
        arrow.set(linewidth=0.5 + 1.6 * chance / top, color=colour, alpha=alpha, mutation_scale=8, zorder=3)
        axes.add_patch(arrow)


def _draw_ended(axes: Axes, walk: Walk) -> None:
    axes.plot(range(len(walk.ended)), walk.ended, "o-", color=RED, markersize=4)
    axes.set(ylim=(0, 1.03), xlim=(0, max(5, len(walk.ended) - 1)))
    axes.set_title("chance that it\nhas ended", fontsize=9)
    axes.set_xlabel("hops", fontsize=8)
    axes.set_box_aspect(0.7)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_centralities(image: Image.Image, scores: dict[str, Tensor], grid: tuple[int, int], prefix: int) -> str:
    """Every centrality as an overlay, with its rank agreement with incoming Katz: SVG."""
    katz = scores["Katz, incoming"][prefix:]
    with _drawing():
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        for panel, (name, values) in zip(figure.subplots(2, 3).flat, scores.items(), strict=True):
            patches = values[prefix:]
            panel.axis("off")
            if bool(patches.isnan().any()):
                panel.set_title(f"{name}\nnone: the graph has no cycle", fontsize=10)
                continue
            panel.imshow(_over(image, patches, grid))
            agreement = float(spearman(patches, katz))
            panel.set_title(f"{name}\nSpearman with Katz in: {agreement:+.2f}", fontsize=10)
        return _written(figure)


def draw_removal(removal: Removal) -> str:
    """The three curves of a removal, axes at ``CURVE_PLACE``: SVG."""
    share = removal.counts.numpy() / removal.ranks.numel()
    with _drawing():
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.add_axes(CURVE_PLACE)
        styles = ((RED, "-"), (BLUE, "-"), (GREY, "--"))
        for name, curve, area, (colour, dashes) in zip(ORDERS, removal.curves, removal.areas, styles, strict=True):
            axes.plot(share, curve, dashes, color=colour, linewidth=2, label=f"{name}, area {area:.3f}")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="patches removed", ylabel="probability of the top prediction")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        return _written(figure)
