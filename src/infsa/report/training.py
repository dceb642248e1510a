"""Figures of training runs, drawn from their logs and result files."""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .figures import BLUE, GREY, INK, ORANGE


def read_log(run: str | Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of a run's ``log.jsonl`` by kind: ``train`` and ``val``."""
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}
    for line in (Path(run) / "log.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["kind"]].append(row)
    return rows


def draw_curve(run: str | Path) -> Path:
    """Write ``curve.png`` into a run's folder: loss and accuracy over the epochs."""
    log = read_log(run)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*_xy(log["train"], "loss"), color=GREY, linewidth=1.2, label="training (augmented)")
    left.plot(*_xy(log["val"], "val_loss"), color=BLUE, linewidth=1.8, label="validation")
    left.set_ylabel("cross entropy")
    left.legend(frameon=False)
    right.plot(*_xy(log["val"], "top1", 100), color=BLUE, linewidth=1.8, label="top-1")
    right.plot(*_xy(log["val"], "top5", 100), color=ORANGE, linewidth=1.8, label="top-5")
    right.set_ylabel("validation accuracy, %")
    right.legend(frameon=False)
    for axes in (left, right):
        tidy(axes)
        axes.set_xlabel("epoch")
    path = Path(run) / "curve.png"
    figure.savefig(path, dpi=130)
    return path


def tidy(axes: Axes) -> None:
    """Leave out what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color=GREY, alpha=0.35, linewidth=0.6)


def _xy(rows: list[dict[str, Any]], name: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    return [row["epoch"] for row in rows], [row[name] * scale for row in rows]
