"""The figures of ``infsa demo``."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from .demo import GRID, Demo
from .figures import draw_five_tokens

TITLES = {
    "degree_in": "degree (one hop)",
    "katz_in": "Katz, incoming",
    "katz_out": "Katz, outgoing",
    "eigenvector_left": "eigenvector",
    "pagerank": "PageRank",
    "tokenrank": "TokenRank",
}


def draw_demo(demo: Demo, folder: Path) -> list[Path]:
    """Draw every figure into ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.png" for name in ("five-tokens", "centralities", "hops", "alignment")}
    draw_five_tokens(paths["five-tokens"])
    draw_centralities(demo, paths["centralities"])
    draw_hops(demo, paths["hops"])
    draw_alignment(demo, paths["alignment"])
    return list(paths.values())


def _heatmap(scores: Tensor) -> np.ndarray:
    """Token scores on the patch grid, 0 to 1."""
    grid = scores.reshape(GRID, GRID).numpy()
    return (grid - grid.min()) / max(float(grid.max() - grid.min()), 1e-12)


def draw_centralities(demo: Demo, path: Path) -> None:
    """The photograph beside each centrality as a heatmap, and Linear-InfSA's own vector."""
    maps = {title: demo.centralities[name] for name, title in TITLES.items()}
    maps["Linear-InfSA a (tied layer)"] = demo.linear
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 4).flat
    panel = next(axes)
    panel.imshow(demo.image)
    panel.set_title("image, 14 × 14 tokens", fontsize=11)
    panel.axis("off")
    for title, scores in maps.items():
        panel = next(axes)
        panel.imshow(demo.image.mean(-1), cmap="gray", alpha=0.9)
        side = demo.image.shape[0]
        panel.imshow(_heatmap(scores), cmap="inferno", alpha=0.65, extent=(0, side, side, 0))
        panel.set_title(title, fontsize=11)
        panel.axis("off")
    figure.suptitle("Which tokens matter: head 0 of untrained layers, each map scaled to its own range")
    figure.savefig(path, dpi=110)


def draw_hops(demo: Demo, path: Path) -> None:
    """How fast the K-hop sum reaches the closed form, beside the bound γ^K."""
    gamma = demo.config["gamma"]
    hops = np.arange(1, len(demo.truncation) + 1)
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    panel = figure.subplots()
    panel.semilogy(hops, demo.truncation, "o-", color="#0072B2", label="measured: K hops against the closed form")
    panel.semilogy(hops, gamma**hops, "--", color="#D55E00", label=f"$\\gamma^K$, $\\gamma$ = {gamma}")
    panel.set_xlabel("hops K")
    panel.set_ylabel("relative distance")
    panel.set_title("The Neumann series converges")
    panel.grid(alpha=0.3)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=110)


def draw_alignment(demo: Demo, path: Path) -> None:
    """Linear-InfSA's vector against the Perron vector, token by token, and all candidates side by side."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, *others = figure.subplots(1, 3, width_ratios=(1.1, 1.2, 1.2))
    a, v = (x / x.sum() for x in (demo.linear, demo.perron))
    left.scatter(v, a, s=14, color="#0072B2", alpha=0.7, edgecolor="none")
    limit = 1.05 * float(max(a.max(), v.max()))
    left.plot([0, limit], [0, limit], "--", color="gray", linewidth=1)
    left.set_xlabel("Perron vector (true)")
    left.set_ylabel("Linear-InfSA a")
    left.set_title("head 0, one point per token")
    for panel, (tokens, candidates) in zip(others, demo.alignment.items(), strict=True):
        _draw_candidates(panel, candidates)
        panel.set_title(tokens)
    others[0].legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    others[1].set_yticklabels([])
    figure.suptitle("Agreement with the Perron vector of ReLU(QQᵀ), mean over heads")
    figure.savefig(path, dpi=110)


def _draw_candidates(panel: Axes, candidates: Mapping[str, list[tuple[float, float]]]) -> None:
    """Bars of mean cosine and Spearman, one pair per candidate."""
    places = np.arange(len(candidates))
    for index, label, colour in ((0, "cosine", "#0072B2"), (1, "Spearman", "#E69F00")):
        means = [float(np.mean([pair[index] for pair in pairs])) for pairs in candidates.values()]
        bars = panel.barh(places + 0.4 * index - 0.2, means, 0.38, color=colour, label=label)
        panel.bar_label(bars, fmt="%.3f", padding=3, fontsize=9)
    panel.set_yticks(places, list(candidates))
    panel.invert_yaxis()
    panel.set_xlim(0, 1.2)
    panel.spines[["top", "right"]].set_visible(False)
