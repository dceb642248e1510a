"""The tables and the figure of docs/high-resolution.md."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digits.runs import RUNS
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.nn import functional as F

from infsa.data import MegapixelDigits
from infsa.report.figures import BLUE, GREY, INK, ORANGE, RED
from infsa.report.table import Table

GREEN = "#009E73"
LABELS = {
    "infsa_linear": "Linear-InfSA", "infsa_pure": "Pure InfSA", "softmax": "softmax", "mean": "mean (control)",
    "mlla": "MLLA core", "flatten": "FLatten",
}  # fmt: skip
TASKS = ("majority", "max", "top", "multi")
Rows = list[dict[str, Any]]


def page_tables(found: dict[str, Any]) -> dict[str, str]:
    """Every table of the page, by its name."""
    tables = {"results": results_table(found), "larger": larger_table(found), "maps": maps_table(found)}
    return tables | ({"streamed": streamed_sentence(found["stream"])} if "stream" in found else {})


def label(run: dict[str, Any]) -> str:
    """The mechanism of a run, and what is special about it."""
    parts = [LABELS[run["attention"]]]
    parts += ["plain patches"] * (run["stem"] == "patch") + [f"shrunk to {run['shown']}²"] * (run["shown"] > 0)
    parts += ["endless data"] * run.get("endless", False) + ["by streaming"] * (run.get("streamed", 0) > 0)
    return ", ".join(parts)


def named(found: dict[str, Any], side: int = 1500) -> dict[str, Rows]:
    """The runs on megapixel digits that end at a side, in the order of ``RUNS``: label -> one run for each seed."""
    rows: dict[str, Rows] = {}
    for name in RUNS:
        run = found[name]["run"] if name in found else {"side": 0}
        if run["side"] == side and run.get("data", "megapixel-digits") == "megapixel-digits":
            rows.setdefault(label(run), []).append(found[name])
    return rows


def percent(*scores: dict[str, float]) -> list[str]:
    """The accuracy of each task as cells of a table: the mean of runs."""
    return [f"{100 * np.mean([own[task] for own in scores]):.1f}" for task in TASKS]


def results_table(found: dict[str, Any]) -> str:
    """A row per mechanism and input: mean accuracy on the test images over the seeds, and the cost of training."""
    rows = []
    for name, runs in named(found).items():

        def mean(read: Callable[[dict[str, Any]], Any], runs: Rows = runs) -> Any:
            known = [value for value in map(read, runs) if value is not None]
            return np.mean(known) if known else None

        joules = mean(lambda row: row["joules"])
        rows.append([
            name, str(len(runs)), *percent(*(row["test"] for row in runs)), f"{mean(lambda row: row['seconds']):.0f}",
            f"{mean(lambda row: row['stages'][-1]['ms_per_step']):.1f}", f"{joules / 1e3:.0f}" if joules else "",
            f"{max(row['peak_bytes'] for row in runs) / 2**30:.1f}",
        ])  # fmt: skip
    return Table(["mechanism", "seeds", *TASKS, "GPU s", "ms/step at 1500²", "kJ", "GiB"], rows).markdown()


def maps_table(found: dict[str, Any]) -> str:
    """A row per mechanism: how much of the map of each layer lies on the digits, and how many of its highest peaks."""
    judged = {name: runs[0]["maps"] for name, runs in named(found).items() if isinstance(runs[0].get("maps"), dict)}
    shown = {name: maps for name, maps in judged.items() if name in LABELS.values()}
    layers = list(next(iter(shown.values())))
    rows = [
        [name, *(f"{100 * maps[layer]['mass']:.1f} / {100 * maps[layer]['peaks']:.0f}" for layer in layers)]
        for name, maps in shown.items()
    ]
    area = 100 * next(iter(shown.values()))[layers[0]]["area"]
    return Table([f"mass on digits (uniform map: {area:.1f}) / peaks on digits, %", *layers], rows).markdown()


def short_table(found: dict[str, Any]) -> str:
    """Every row of a results file in a line: accuracy of its tasks, seconds, milliseconds a step."""
    lines = []
    for name, row in found.items():
        if "test" in row:
            scores = "  ".join(f"{task} {100 * value:.1f}" for task, value in row["test"].items())
            lines.append(f"{name:20} {row['seconds']:5.0f} s {row['stages'][-1]['ms_per_step']:8.1f} ms/step  {scores}")
    return "\n".join(lines)


def larger_table(found: dict[str, Any]) -> str:
    """Larger images: by weights that never saw them, and after some seconds on them."""
    rows = []

    def add(name: str, trained: str, side: Any, scores: dict[str, float]) -> None:
        rows.append([name, trained, f"{side}²", *percent(scores)])

    for last in (1500, 3000, 6000):
        every = [(shown, runs, row) for shown, runs in named(found, last).items() for row in runs]
        for shown, runs, row in every:
            name = f"{shown}, seed {row['run'].get('seed', 0)}" if len(runs) > 1 else shown
            stage, before = row["stages"][-1], len(row["stages"]) - 1
            if last > 1500:
                unseen = next((own for own in row["history"] if own["test"] and own["stage"] < before), None)
                if unseen:
                    add(name, f"{row['stages'][-2]['side']}²", last, unseen["test"])
                add(name, f"{last}² ({stage['steps']:,} steps, {stage['seconds']:.0f} s)", last, row["test"])
            for side, scores in row.get("beyond", {}).items():
                add(name, f"{last}²", side, scores)
    return Table(["mechanism", "trained up to", "tested at", *TASKS], rows).markdown()


def streamed_sentence(row: dict[str, Any]) -> str:
    """What a training step on one large image takes by streaming."""
    seconds = sorted(own["seconds"] for own in row["steps"])[len(row["steps"]) // 2]
    used, limit = (row[key] / 2**30 for key in ("peak_bytes", "limit"))
    return (
        f"By [streaming](streaming.md), a training step on one {row['side']}² image took {seconds:.1f} s and "
        f"{used:.1f} GiB of GPU memory (limit {limit:.0f} GiB), strategy `{row['steps'][0]['strategy']}`.\n"
    )


def accuracy_figure(found: dict[str, Any], mnist: str, path: Path) -> None:
    """Test accuracy over the seconds of training; the first test image, and each mechanism's last map of it."""
    runs = {name: own[0] for name, own in named(found).items() if "example" in own[0]}
    figure = Figure(figsize=(3.4 * (len(runs) + 2.6), 3.6), layout="constrained")
    curves, picture, *fields = figure.subplots(1, 2 + len(runs), width_ratios=[1.6, *[1] * (1 + len(runs))])
    for colour, (name, row) in zip((BLUE, INK, RED, ORANGE, GREY, GREEN), runs.items(), strict=False):
        for style, task in (("-", "majority"), (":", "top")):
            points = [(own["seconds"], 100 * own["here"][task]) for own in row["history"] if own["here"]]
            curves.plot(*zip(*points, strict=True), style, color=colour, label=f"{name}, {task}", linewidth=1.6)
    curves.set(xlabel="GPU seconds", ylabel="test accuracy at the stage's size, %", ylim=(0, 101))
    curves.legend(frameon=False, fontsize=8)
    image, _, boxes = MegapixelDigits(mnist or None, "val", length=1).compose(torch.tensor([0]))
    picture.imshow(F.max_pool2d(image.float(), 6)[0, 0], cmap="gray")
    picture.set_title("test image, digits framed", fontsize=9)
    for x, y, *_ in (boxes[0] / 6).tolist():
        picture.add_patch(Rectangle((x - 5, y - 5), 28 / 6 + 10, 28 / 6 + 10, fill=False, edgecolor=ORANGE))
    for axes, (name, row) in zip(fields, runs.items(), strict=True):
        axes.imshow(np.array(row["example"][-1]), cmap="magma")
        axes.set_title(f"{name}: map of the last layer", fontsize=9)
    for axes in (picture, *fields):
        axes.set_axis_off()
    figure.savefig(path, dpi=110)
