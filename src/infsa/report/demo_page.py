"""The page of ``infsa demo``: its figures, its sections, and one HTML file with everything that was measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..bench.cases import NINE, VARIANTS
from ..provenance import provenance
from .bench_figures import COLOURS
from .bench_tables import number
from .demo import GRID, Demo, Models
from .figures import BLUE, CENTRALITIES, INK, ORANGE, draw_five_tokens, one_panel
from .html import Picture, Section, write_page
from .panels import overlay, picture, scaled, short
from .table import Table
from .training import tidy

MECHANISM_COLOURS = {"softmax": INK, "Pure InfSA": ORANGE, "Linear-InfSA": BLUE}
SHOWN = 320  # pixels of the longer side of a picture in the gallery


def demo_sections(demo: Demo, models: Models, timing: dict[str, Any], pictures: list[Path]) -> list[Section]:
    """What the page and the terminal show; ``pictures`` are the figures of :func:`draw_demo`."""
    named = {path.stem: path for path in pictures}
    return [
        maps_section(models),
        morf_section(models),
        idea_section(demo, named),
        alignment_section(models, named),
        speed_section(timing),
    ]


def write_report(folder: Path, sections: list[Section]) -> Path:
    """Write ``report.html`` into the folder."""
    facts = provenance()
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    footer = f"infsa {facts['infsa']}, torch {facts['torch']}, {facts['cpu']}, {threads}. "
    footer += "Seeds, settings and all numbers are in demo.json beside this page."
    opening = (
        "Attention can be read as a walk on a graph of image patches. This page shows where that helps and where it "
        "does not, measured on this machine with the small models that come with the package (2.5 to 2.7 million "
        "parameters, 64 pixels, 50 classes). It compares softmax, Pure InfSA (all pairs, ReLU, no softmax) and "
        "Linear-InfSA (one weighting of the patches, in time proportional to their number)."
    )
    return write_page(folder / "report.html", "Infinite Self-Attention in a minute", opening, sections, footer)


def maps_section(models: Models) -> Section:
    """Photographs, predictions and overlays."""
    galleries = []
    for image, found in models.explanations.items():
        photo = scaled(models.images[image], SHOWN)
        row = [Picture.of(photo, f"photograph: {image}", image)]
        for name, explanation in found.items():
            label, chance = explanation.predictions[0]
            words = f"where {name} looks in the {image}"
            row.append(Picture.of(overlay(photo, explanation.map), words, f"{name}: {short(label)}, {chance:.0%}"))
        galleries.append(row)
    rows = [
        [image, *(f"{short(one.predictions[0][0])} {one.predictions[0][1]:.0%}" for one in found.values())]
        for image, found in models.explanations.items()
    ]
    return Section(
        "What the models see, and where they look",
        f"{len(models.images)} photographs that come with Python packages, three models, one map each.",
        "Bright patches weigh most in the last layer. Below each map: the class that the model prefers and how sure it "
        "is. The models have 50 classes and see about 64 × 64 pixels; most of these photographs show none of the 50: "
        "the answer is the most similar class (a launching rocket looks much like a fountain).",
        galleries,
        [Table(["photograph", *models.areas], rows)],
    )


def morf_section(models: Models) -> Section:
    """Removal curves."""
    figure, axes = one_panel(6.6, 4.3)
    for name, curves in models.curves.items():
        colour = MECHANISM_COLOURS[name]
        axes.plot(models.removed, curves["map"], color=colour, linewidth=2, label=name)
        axes.plot(models.removed, curves["random order"], "--", color=colour, linewidth=1, alpha=0.7)
    axes.plot([], [], "--", color=INK, linewidth=1, label="random order, same model")
    axes.set(xlabel="share of patches removed", ylabel="probability / that of the whole image")
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.legend(frameon=False)
    tidy(axes)
    gains = {name: areas["map"] - areas["random order"] for name, areas in models.areas.items()}
    rows = [
        [name, *(f"{100 * area:.1f}" for area in areas.values()), f"{100 * gains[name]:+.1f}"]
        for name, areas in models.areas.items()
    ]
    best = max(gains, key=gains.__getitem__)
    return Section(
        "Do the bright patches matter? Most relevant first (MoRF)",
        f"Against its own random order, the map of {best} gains most here.",
        f"Patches are removed, brightest first, in {models.views} views of the photographs: the earlier the prediction "
        "falls, the better the map. A large area over the curve alone says little, because a brittle model falls early "
        "in any order: compare each model with its own random order.",
        tables=[Table(["model", "area over the curve, %", "random order, %", "gain"], rows)],
        pictures=[Picture.of(figure, "MoRF curves of three mechanisms")],
    )


def idea_section(demo: Demo, named: dict[str, Path]) -> Section:
    """The identities of the theory."""
    worst = max(demo.identities.values())
    rows = [[" ".join(claim.split()), f"{difference:.0e}"] for claim, difference in demo.identities.items()]
    caption = (
        f"{demo.config['tokens']} tokens, gamma = {demo.config['gamma']}, float64; spectral radius "
        f"{demo.spectrum['spectral_radius']:.3f}, largest row sum {demo.spectrum['largest_row_sum']:.2f}"
    )
    ranking = [
        [name.replace("_", " "), ", ".join(map(str, one["top_tokens"])), f"{one['spearman_with_katz_in']:.4f}"]
        for name, one in demo.summary()["ranking"].items()
    ]
    return Section(
        "One operator, computed in three ways",
        f"Attention over paths of every length, the Neumann series and the Markov chain agree to {worst:.0e}.",
        "Summing over all paths from patch to patch, each hop weighted by γ, gives (I − γÂ)⁻¹: the expected visits of "
        "a random walk that may stop at every step. The five-token example shows why several hops matter: token 0 gets "
        "the most attention, but walks that reach it move on to token 4.",
        tables=[
            Table(["identity", "difference"], rows, caption=caption),
            Table(["centrality", "first five patches", "Spearman with Katz (in)"], ranking),
        ],
        pictures=[
            Picture.of(named["five-tokens"], "a graph of five tokens, its chain and three rankings", wide=True),
            Picture.of(named["hops"], "distance of K hops from the closed form"),
        ],
    )


def alignment_section(models: Models, named: dict[str, Path]) -> Section:
    """Agreement with the Perron vector, trained and untrained."""
    found = models.alignment
    rows = [[name, *(f"{value:.3f}" for value in values.values())] for name, values in found.items()]
    a, uniform = found["Linear-InfSA a"]["cosine"], found["uniform"]["cosine"]
    return Section(
        "Does Linear-InfSA find the most central patches?",
        f"Trained, its vector has cosine {a:.3f} with the Perron vector; the uniform one has {uniform:.3f}.",
        "The Perron vector ranks each patch by the importance of those that attend to it; computing it needs all "
        "pairs. Linear-InfSA estimates it in one pass. Any two non-negative vectors have a fairly high cosine: compare "
        "with the simple candidates. In untrained layers (figure), agreement is mostly a direction that all tokens "
        "share.",
        tables=[Table(["candidate, trained model, all layers and heads", "cosine", "Spearman"], rows)],
        pictures=[
            Picture.of(named["alignment"], "agreement with the Perron vector", wide=True),
            Picture.of(named["centralities"], "centralities of the patches of a photograph", wide=True),
        ],
    )


def speed_section(timing: dict[str, Any]) -> Section:
    """Times over growing N."""
    tokens = timing["tokens"]
    figure, axes = one_panel(6.6, 4.6)
    for name in NINE:
        label = VARIANTS[name].label
        ours = name.startswith("infsa")
        axes.loglog(tokens, timing["milliseconds"][label], "o-", color=COLOURS[name], label=label,
                    linewidth=2.4 if ours else 1.2, markersize=4)  # fmt: skip
    axes.set(xlabel="tokens N", ylabel="milliseconds per layer", xticks=tokens, xticklabels=[f"{n:,}" for n in tokens])
    axes.set_xticks([], minor=True)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    tidy(axes)
    growth = {name: times[-1] / times[0] for name, times in timing["milliseconds"].items()}
    rows = [[name, *map(number, times), f"{growth[name]:.0f} ×"] for name, times in timing["milliseconds"].items()]
    linear, softmax = (VARIANTS[name].label for name in ("infsa_linear", "softmax"))
    return Section(
        "Time over growing images",
        f"{tokens[-1] / tokens[0]:.0f} times the tokens cost {growth[linear]:.0f} times the time with {linear}, and "
        f"{growth[softmax]:.0f} times with {softmax}.",
        "One attention layer of width 128 with 2 heads, inference, one thread of this CPU: the fastest of several "
        "calls, which other programs disturb least. A sketch, not a benchmark (that is infsa bench). Fused softmax is "
        "PyTorch's.",
        tables=[Table(["mechanism, ms", *(f"N = {n:,}" for n in tokens), "growth"], rows)],
        pictures=[Picture.of(figure, "time of nine mechanisms over the number of tokens")],
    )


def draw_demo(demo: Demo, folder: Path) -> list[Path]:
    """Draw every figure into ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "five-tokens.png"]
    draw_five_tokens(paths[0])
    for name, draw in {"centralities": draw_centralities, "hops": draw_hops, "alignment": draw_alignment}.items():
        paths.append(folder / f"{name}.png")
        draw(demo, paths[-1])
    return paths


def _heatmap(scores: Tensor) -> np.ndarray:
    """Token scores on the patch grid, 0 to 1."""
    grid = scores.reshape(GRID, GRID).numpy()
    return (grid - grid.min()) / max(float(grid.max() - grid.min()), 1e-12)


def draw_centralities(demo: Demo, path: Path) -> None:
    """The photograph beside each centrality as a heatmap, and Linear-InfSA's own vector."""
    maps = {title: demo.centralities[name] for name, title in CENTRALITIES.items()}
    maps["Linear-InfSA a (tied layer)"] = demo.linear
    figure = Figure(figsize=(11, 6), layout="constrained")
    first, *panels = figure.subplots(2, 4).flat
    picture(first, demo.image, "image, 14 × 14 tokens", 11)
    for panel, (title, scores) in zip(panels, maps.items(), strict=True):
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
    figure, panel = one_panel(6.5, 4)
    panel.semilogy(hops, demo.truncation, "o-", color="#0072B2", label="measured: K hops against the closed form")
    panel.semilogy(hops, gamma**hops, "--", color="#D55E00", label=f"$\\gamma^K$, $\\gamma$ = {gamma}")
    panel.set(xlabel="hops K", ylabel="relative distance", title="The Neumann series converges")
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
    left.set(xlabel="Perron vector (true)", ylabel="Linear-InfSA a", title="head 0, one point per token")
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
