"""Figures of the documentation, drawn with matplotlib's object interface: no window, no global state."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

from infsa.graph import AttentionGraph, five_token_graph

Place = tuple[float, float]  # x, y
# Okabe-Ito: told apart by every kind of colour vision, and in grey
INK, GREY, BLUE, ORANGE, RED = "#222222", "#B8BCC2", "#0072B2", "#E69F00", "#D55E00"
CENTRALITIES = {  # what figures call those that they compare
    "degree_in": "degree (one hop)",
    "katz_in": "Katz, incoming",
    "katz_out": "Katz, outgoing",
    "eigenvector_left": "eigenvector",
    "pagerank": "PageRank",
    "tokenrank": "TokenRank",
}
TOKEN_COLOURS = (ORANGE, GREY, GREY, GREY, BLUE)
TOKEN_PLACES = ((1.75, 0.35), (0.0, 1.5), (0.0, -0.45), (3.4, 1.5), (5.05, 0.35))  # x, y
ABSORBING_PLACE = (2.75, -1.95)
RADIUS = 0.31  # of a token
# how far each arrow bends, so that none crosses a token or hides another
EDGE_BENDS = {(0, 3): 0.16, (3, 0): 0.16, (3, 4): 0.16, (4, 3): 0.16, (1, 3): -0.12}
ABSORPTION_BENDS = (0.06, 0.08, 0.2, -0.05, -0.14)
ABSORPTION_ENDS = ((-0.12, 0.27), (-0.42, 0.27), (-0.69, 0.0), (0.16, 0.27), (0.5, 0.27))  # on the box's edge


def one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches, and the one panel in it."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def draw_five_tokens(path: str | Path) -> None:
    """Write the five-token figure to `path`: the matrix Â, its absorbing chain, and three rankings."""
    graph = five_token_graph()
    figure = Figure(figsize=(12.4, 4.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.0, 1.45, 1.35))
    _draw_matrix(left, graph)
    _draw_chain(middle, graph)
    _draw_rankings(right, graph)
    figure.savefig(path, dpi=130)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=11.5, color=INK, pad=10)


def _draw_matrix(axes: Axes, graph: AttentionGraph) -> None:
    weights = graph.path_matrix(1).numpy()
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=weights.max() * 1.15)
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            colour = "white" if weight > 0.4 else INK
            axes.text(j, i, f"{weight:.2f}" if weight > 0 else "·", ha="center", va="center", color=colour)
    axes.set(xticks=range(5), yticks=range(5), xlabel="attended token", ylabel="attending token")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _title(axes, r"Attention matrix $\hat{A}$,  $\|\hat{A}\|_F = 1$")


def _draw_chain(axes: Axes, graph: AttentionGraph) -> None:
    moves = graph.transition().tolist()
    for i, row in enumerate(moves):
        for j, chance in enumerate(row):
            if chance > 0 and i != j:
                _arrow(axes, TOKEN_PLACES[i], TOKEN_PLACES[j], chance, EDGE_BENDS.get((i, j), 0.0), INK, "-")
            elif chance > 0:
                _loop(axes, TOKEN_PLACES[i], chance)
    for i, chance in enumerate(graph.absorption().tolist()):
        end = ABSORBING_PLACE[0] + ABSORPTION_ENDS[i][0], ABSORBING_PLACE[1] + ABSORPTION_ENDS[i][1]
        _arrow(axes, TOKEN_PLACES[i], end, chance, ABSORPTION_BENDS[i], RED, (0, (4, 2)))
    for i, place in enumerate(TOKEN_PLACES):
        axes.add_patch(Circle(place, RADIUS, facecolor=TOKEN_COLOURS[i], edgecolor=INK, linewidth=1, zorder=3))
        colour = "white" if TOKEN_COLOURS[i] == BLUE else INK
        axes.text(*place, str(i), ha="center", va="center", fontsize=12, color=colour, zorder=4)
    x, y = ABSORBING_PLACE
    box = FancyBboxPatch((x - 0.62, y - 0.2), 1.24, 0.4, boxstyle="round,pad=0.06", zorder=3)
    box.set(facecolor="white", edgecolor=RED, linewidth=1.4)
    axes.add_patch(box)
    axes.text(x, y, "absorbed", ha="center", va="center", color=RED, zorder=4)
    axes.set(xlim=(-0.45, 5.95), ylim=(-2.35, 2.1), aspect="equal")
    axes.axis("off")
    _title(axes, r"Absorbing chain $M = 0.7\,\hat{A}$  (dashed: absorption $R_i$)")


def _arrow(axes: Axes, start: Place, end: Place, chance: float, bend: float, colour: str, dashes: Any) -> None:
    away = 1 if colour == RED else 15.5  # points left free before the end: none at a box, a radius at a token
    arrow = FancyArrowPatch(
        start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", shrinkA=15.5, shrinkB=away
    )
    arrow.set(linewidth=_width(chance), color=colour, linestyle=dashes, mutation_scale=11)
    arrow.set_zorder(1 if colour == RED else 2)
    axes.add_patch(arrow)


def _loop(axes: Axes, place: Place, chance: float) -> None:
    x, y = place
    ends = (x + 0.3, y + 0.14), (x + 1.05, y + 0.5), (x + 1.05, y - 0.5), (x + 0.33, y - 0.14)
    loop = FancyArrowPatch(path=Curve(ends, [Curve.MOVETO] + 3 * [Curve.CURVE4]), arrowstyle="-|>")
    loop.set(linewidth=_width(chance), color=INK, mutation_scale=11, zorder=2)
    axes.add_patch(loop)


def _width(chance: float) -> float:
    return 0.7 + 4 * chance


def _draw_rankings(axes: Axes, graph: AttentionGraph) -> None:
    moves = graph.transition()
    rankings = {
        "1 hop": graph.degree("in"),
        "2 hops": (moves @ moves).sum(dim=0),
        "all hops\n(Katz in)": graph.katz_in(),
    }
    for group, scores in enumerate(rankings.values()):
        shares = (scores / scores.max()).tolist()
        places = [group * 6 + token for token in range(5)]
        axes.bar(places, shares, width=0.85, color=TOKEN_COLOURS, edgecolor=INK, linewidth=0.6)
        first = int(scores.argmax())
        axes.text(places[first], 1.02, f"token {first}", ha="center", va="bottom", color=INK)
        for token, place in enumerate(places):
            axes.text(place, -0.03, str(token), ha="center", va="top", fontsize=9, color=INK)
        axes.text(group * 6 + 2, -0.12, list(rankings)[group], ha="center", va="top", fontsize=10.5, color=INK)
    axes.set(xlim=(-1.4, 17.6), ylim=(0, 1.15), xticks=[], yticks=[0, 0.5, 1], ylabel="score / largest score")
    axes.spines[["top", "right"]].set_visible(False)
    _title(axes, "Who is most important?")
