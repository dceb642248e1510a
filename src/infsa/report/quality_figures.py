"""The figures of attention quality, drawn from the summary that ``infsa quality`` and ``infsa align`` write."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .figures import BLUE, GREY, INK, ORANGE, RED, one_panel
from .quality_tables import candidate_label

GREEN, SKY, PINK = "#009E73", "#56B4E9", "#CC79A7"
CYCLE = (BLUE, ORANGE, RED, GREEN, PINK, SKY, INK)
KNOWN = {"softmax": INK, "infsa_pure": ORANGE, "infsa_linear": BLUE, "mean": GREY}
LABELS = {"softmax": "softmax", "infsa_pure": "Pure InfSA", "infsa_linear": "Linear-InfSA", "mean": "mean pooling"}
Summary = dict[str, Any]


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each group; the mechanisms of the paper always have the same one."""
    free = iter(CYCLE * 10)
    used = {KNOWN[name] for name in names if name in KNOWN}
    return {name: KNOWN.get(name) or next(c for c in free if c not in used) for name in names}


def label_of(name: str) -> str:
    """What a figure calls a group: mechanisms by their usual name, other models by their own."""
    return LABELS.get(name, name)


def draw_removal(summary: Summary, fill: str, direction: str, path: str | Path, method: str = "last") -> None:
    """MoRF (``"morf"``) or LeRF (``"lerf"``) of every group, with the random order of the same model dashed.

    Bands: one standard deviation over runs.
    """
    figure, axes = one_panel(6.4, 4.4)
    groups = summary["groups"]
    for name, colour in colours_of(groups).items():
        measured = groups[name]["removal"][fill]
        if method not in measured["methods"]:
            continue
        found, x = measured["methods"][method], measured["fractions"]["mean"]
        area = found["aoc" if direction == "morf" else "lerf_auc"]
        label = f"{label_of(name)}: {'AOC' if direction == 'morf' else 'AUC'} {_percent(area)}"
        _line(axes, x, found[direction], colour, label)
        axes.plot(x, measured["random"]["curve"]["mean"], "--", color=colour, linewidth=1, alpha=0.8)
    axes.plot([], [], "--", color=INK, linewidth=1, label="random order, same model")
    first = "most" if direction == "morf" else "least"
    axes.set(xlabel=f"fraction of patches removed, {first} relevant first", ylabel="score relative to the full image")
    axes.set(xlim=(0, 1), ylim=(0, None), title=f"{'MoRF' if direction == 'morf' else 'LeRF'}, fill: {fill}")
    _finish(figure, axes, path)


def draw_boxes(summary: Summary, kind: str, path: str | Path, method: str = "last", rule: str = "centre") -> None:
    """The pooled ROC (``"roc"``) or precision-recall (``"pr"``) curve against boxes, with its baselines."""
    figure, axes = one_panel(6.4, 4.4)
    groups, key = summary["groups"], "roc" if kind == "roc" else "ap"
    measured = {}
    for name, colour in colours_of(groups).items():
        measured = groups[name]["boxes"]["rules"].get(rule, {})
        found = measured.get("methods", {}).get(method)
        if found is None:
            continue
        x = np.linspace(0, 1, len(found[f"{kind}_curve"]["mean"]))
        _line(axes, x, found[f"{kind}_curve"], colour, f"{label_of(name)}: {_percent(found[key])}")
    if measured.get("methods"):
        centre = measured["methods"]["centre"]
        curve = centre[f"{kind}_curve"]["mean"]
        label = f"centre Gaussian: {_percent(centre[key])}"
        axes.plot(np.linspace(0, 1, len(curve)), curve, ":", color=GREEN, label=label)
        share = measured["share"]["mean"]
        chance = ([0, 1], [0, 1]) if kind == "roc" else ([0, 1], [share, share])
        axes.plot(*chance, "--", color=INK, linewidth=1, label="chance")
    labels = ("false positive rate", "true positive rate") if kind == "roc" else ("recall", "precision")
    title = "Agreement with boxes: " + ("ROC" if kind == "roc" else "precision and recall")
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(0, 1), ylim=(0, 1.02), title=title)
    _finish(figure, axes, path)


def draw_bars(summary: Summary, fill: str, path: str | Path, method: str = "last") -> None:
    """MoRF-AOC, LeRF-AUC, ROC-AUC and average precision of every group, with baselines.

    Error bars: one standard deviation over runs. Dots: single runs. Red lines: the random order of the same model, or
    the centre Gaussian.
    """
    groups = summary["groups"]
    colours = colours_of(groups)
    titles = ["MoRF-AOC", "AOC minus random order", "LeRF-AUC"] + ["box ROC-AUC", "box AP"] * has_boxes(summary)
    figure = Figure(figsize=(2.6 * len(titles), 3.6), layout="constrained")
    for title, axes in zip(titles, figure.subplots(1, len(titles)), strict=True):
        for place, (name, colour) in enumerate(colours.items()):
            value, baseline = _bar(groups[name], fill, method, title)
            if value is None:
                continue
            runs = [run for run in summary["runs"].values() if run["group"] == name]
            axes.bar(place, value["mean"], 0.7, color=colour, yerr=value["over_runs"], capsize=3)
            points = [_bar(run, fill, method, title)[0] for run in runs]
            axes.plot([place] * len(runs), [p["mean"] for p in points if p], "o", color="white", mec=INK, ms=3.5)
            if baseline is not None:
                axes.plot([place - 0.4, place + 0.4], [baseline["mean"]] * 2, color=RED, linewidth=2)
        axes.set_xticks(range(len(colours)), list(map(label_of, colours)), rotation=35, ha="right", fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _bar(summary: Summary, fill: str, method: str, title: str) -> tuple[Summary | None, Summary | None]:
    """The value behind a bar and its baseline, of a run or a group."""
    removal = summary["removal"][fill]
    found = removal["methods"].get(method, {})
    boxes = summary["boxes"]["rules"].get("centre", {}).get("methods", {})
    places: dict[str, tuple[Summary | None, Summary | None]] = {
        "MoRF-AOC": (found.get("aoc"), removal.get("random", {}).get("aoc")),
        "AOC minus random order": (found.get("aoc_over_random"), None),
        "LeRF-AUC": (found.get("lerf_auc"), None),
        "box ROC-AUC": (boxes.get(method, {}).get("roc"), boxes.get("centre", {}).get("roc")),
        "box AP": (boxes.get(method, {}).get("ap"), boxes.get("centre", {}).get("ap")),
    }
    return places[title]


def draw_alignment_bars(summary: Summary, path: str | Path) -> None:
    """Cosine and Spearman with the Perron vector of every candidate, for every group, over all layers."""
    groups = {name: group["all_layers"] for name, group in summary["groups"].items() if group["all_layers"]}
    candidates = list(next(iter(groups.values()))["cosine"])
    figure = Figure(figsize=(11, 0.5 + 0.32 * len(candidates) * max(1, len(groups) / 2)), layout="constrained")
    height = 0.8 / len(groups)
    for measure, axes in zip(("cosine", "spearman"), figure.subplots(1, 2, sharey=True), strict=True):
        for index, (name, colour) in enumerate(colours_of(groups).items()):
            values = [groups[name][measure][candidate] for candidate in candidates]
            places = np.arange(len(candidates)) + (index - (len(groups) - 1) / 2) * height
            means = [value["mean"] if value else 0 for value in values]
            spreads = [value["over_images"] if value else 0 for value in values]
            axes.barh(places, means, 0.92 * height, color=colour, label=label_of(name), xerr=spreads, ecolor=GREY)
        axes.set_yticks(range(len(candidates)), list(map(candidate_label, candidates)))
        axes.set_xlabel(f"{measure} with the Perron vector")
        axes.set_xlim(min(0, axes.get_xlim()[0]), 1.05)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    figure.axes[1].legend(frameon=False, fontsize=9, loc="lower right")
    figure.suptitle(
        "Mean over heads of all layers; error bars: one standard deviation over heads and images", fontsize=10
    )
    figure.savefig(path, dpi=110)


def has_boxes(summary: Summary) -> bool:
    """Whether any map could be compared with boxes."""
    rules = (group["boxes"]["rules"].get("centre", {}) for group in summary["groups"].values())
    return any(rule.get("methods") for rule in rules)


def draw_quality(summary: Summary, folder: str | Path) -> list[Path]:
    """Every figure of a quality study into a folder: MoRF, LeRF, bars, and with boxes ROC and precision-recall."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    method = summary["config"]["boxes"]["methods"][0]
    for fill in summary["config"]["removal"]:
        extra = f"-{fill}" if len(summary["config"]["removal"]) > 1 else ""
        for direction in ("morf", "lerf"):
            paths.append(folder / f"{direction}{extra}.png")
            draw_removal(summary, fill, direction, paths[-1], method)
        paths.append(folder / f"summary{extra}.png")
        draw_bars(summary, fill, paths[-1], method)
    for kind in ("roc", "pr") if has_boxes(summary) else ():
        paths.append(folder / f"{kind}.png")
        draw_boxes(summary, kind, paths[-1], method)
    return paths


def _line(axes: Axes, x: Any, value: Summary, colour: str, label: str) -> None:
    """A mean curve with a band of one standard deviation over runs."""
    mean = np.array(value["mean"])
    axes.plot(x, mean, color=colour, linewidth=2, label=label)
    if value.get("over_runs") is not None:
        width = np.array(value["over_runs"])
        axes.fill_between(x, mean - width, mean + width, color=colour, alpha=0.25, linewidth=0)


def _percent(value: Summary) -> str:
    spread = value["over_runs"]
    return f"{100 * value['mean']:.1f}" + (f" ± {100 * spread:.1f}" if spread else "")


def _finish(figure: Figure, axes: Axes, path: str | Path) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5)
    figure.savefig(path, dpi=110)
