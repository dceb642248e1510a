"""The table cells and the figure of an ablation, from its ``ablation.json``."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .figures import BLUE, INK
from .training import tidy

COLUMNS = {  # name → heading, factor, format
    "top1": ("top-1, %", 100, ".1f"),
    "top5": ("top-5, %", 100, ".1f"),
    "morf_aoc": ("MoRF AOC, %", 100, ".1f"),
    "morf_aoc_random": ("random order, %", 100, ".1f"),
    "lerf_auc": ("LeRF AUC, %", 100, ".1f"),
    "roc_auc": ("box ROC, %", 100, ".1f"),
    "average_precision": ("box AP, %", 100, ".1f"),
    "epochs_to_convergence": ("epochs to conv.", 1, ".1f"),
    "train_ms": ("train, ms", 1, ".1f"),
    "infer_ms": ("infer, ms", 1, ".1f"),
}


def cell(row: dict[str, Any], name: str) -> str:
    """A number of a row with its deviation; empty if the row has none."""
    _, factor, form = COLUMNS[name]
    if name in row["mean"]:
        return f"{row['mean'][name] * factor:{form}} ± {row['deviation'][name] * factor:{form}}"
    if name in row.get("latency", {}):
        return f"{row['latency'][name]:{form}}"
    return ""


def draw_ablation(summary: dict[str, Any], path: str | Path) -> Path:
    """One panel per number that the points share, every seed as a dot, the mean as a bar."""
    rows = summary["rows"]
    names = [name for name in COLUMNS if any(name in row["mean"] for row in rows) and name != "top5"]
    labels = ["\n".join(str(value) for value in row["point"].values()) for row in rows]
    across = min(4, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(1 + across * max(2.4, 0.55 * len(rows)), 3.0 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes in panels[len(names) :]:
        axes.remove()
    for axes, name in zip(panels, names, strict=False):
        heading, factor, _ = COLUMNS[name]
        dots = [seed[name] * factor for row in rows for seed in row["seeds"] if name in seed]
        for place, row in enumerate(rows):
            if name not in row["mean"]:
                axes.text(place, min(dots), "none", ha="center", va="bottom", fontsize=8, color=INK)
                continue
            values = [seed[name] * factor for seed in row["seeds"]]
            axes.plot([place] * len(values), values, "o", color=BLUE, markersize=4, alpha=0.8)
            axes.hlines(row["mean"][name] * factor, place - 0.3, place + 0.3, color=INK, linewidth=1.6)
        axes.set_xticks(range(len(rows)), labels, fontsize=8)
        axes.set_xlim(-0.6, len(rows) - 0.4)
        axes.set_title(heading, fontsize=10, color=INK)
        tidy(axes)
        axes.set_ylim(_limits(dots))
    figure.supxlabel(" / ".join(rows[0]["point"]), fontsize=9, color=INK)
    figure.savefig(path, dpi=130)
    return Path(path)


def _limits(values: list[float]) -> tuple[float, float]:
    margin = 0.15 * ((max(values) - min(values)) or abs(max(values)) or 1.0)
    return min(values) - margin, max(values) + margin
