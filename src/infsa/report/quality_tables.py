"""The tables of attention quality, in percent, from the summaries of a study."""

from collections.abc import Sequence
from typing import Any

from .table import Table

Summary = dict[str, Any]
BASELINES = {"random": "random map", "centre": "centre Gaussian"}  # independent of the model


def cell(value: Summary | None, scale: float = 100, digits: int = 1, images: bool = True) -> str:
    """A mean ± its standard deviation over runs and, in brackets, over images; a dash where there is none."""
    if value is None:
        return "–"
    text = f"{scale * value['mean']:.{digits}f}"
    if value.get("over_runs"):
        text += f" ± {scale * value['over_runs']:.{digits}f}"
    return text + (f" ({scale * value['over_images']:.{digits}f})" if images and "over_images" in value else "")


def count(value: Summary) -> str:
    """A number of things, rounded if it is a mean over runs.

    Example:
        >>> count({"mean": 251.6, "over_runs": 3.0})
        '252'
    """
    return f"{value['mean']:.0f}"


def removal_table(summary: Summary, fill: str) -> Table:
    """MoRF and LeRF of every group and method under one fill, in percent."""
    areas = ["MoRF-AOC", "random order", "minus random", "LeRF-AUC", "ABPC"]
    columns = ["model", "runs", "images", "top-1", "map", *areas]
    rows = []
    for name, group in summary["groups"].items():
        removal = group["removal"][fill]
        fixed = [name, str(group["runs"]), count(removal["kept"]), cell(removal["top1"])]
        for method, found in removal["methods"].items():
            values = (
                found["aoc"],
                removal["random"]["aoc"],
                *(found[key] for key in ("aoc_over_random", "lerf_auc", "abpc")),
            )
            rows.append([*fixed, method, *map(cell, values)])
        if not removal["methods"]:
            rows.append([*fixed, *["–"] * (len(columns) - len(fixed))])
    return Table(columns, rows)


def box_table(summary: Summary, rule: str = "centre") -> Table:
    """Agreement with boxes of every group and map, in percent, with the baselines of the same images."""
    columns = ["model", "map", "images", "ROC-AUC", "AP", "pooled ROC", "pooled AP", "pointing", "box IoU"]
    rows: list[list[str]] = []
    baselines: list[list[str]] = []
    for name, group in summary["groups"].items():
        measured = group["boxes"]["rules"].get(rule)
        if not measured or not measured["methods"]:
            rows.append([name, *["–"] * (len(columns) - 1)])
            continue
        images = count(measured["images"])
        for method, found in measured["methods"].items():
            values = [cell(found["roc"]), cell(found["ap"]), cell(found["pooled_roc"]), cell(found["pooled_ap"])]
            values += [cell(found["pointing"], images=False), cell(group["boxes"]["iou"][method], images=False)]
            where, label = (baselines, "") if method in BASELINES else (rows, name)
            where.append([label, BASELINES.get(method, method), images, *values])
        chance = [cell(measured["chance_ap"]), "50.0", cell(measured["share"], images=False)]
        baselines.append(["", "chance", images, "50.0", *chance, "", ""])
    return Table(columns, rows + [row for place, row in enumerate(baselines) if row not in baselines[:place]])


def candidate_label(key: str) -> str:
    """What a table calls a candidate of ``infsa align``.

    Example:
        >>> candidate_label("a, 2 rounds")
        'a, 2 iterations'
    """
    return key.replace("rounds", "iterations")


def alignment_table(summary: Summary, layers: bool = False) -> Table:
    """Cosine and Spearman with the Perron vector of every group and candidate; with ``layers``, of a by layer."""
    rows: list[list[str]] = []
    if not layers:
        for name, group in summary["groups"].items():
            found = group["all_layers"] or {"cosine": {}}
            rows += [
                [name, candidate_label(key), cell(value, 1, 3), cell(found["spearman"][key], 1, 3)]
                for key, value in found["cosine"].items()
            ]
        return Table(["model", "candidate", "cosine", "Spearman"], rows)
    for name, group in summary["groups"].items():
        for layer, found in group["layers"].items():
            values = [found["cosine"]["a"], found["cosine"]["uniform"], found["spearman"]["a"], found["ratio"]]
            counts = [count(found[key]) for key in ("samples", "degenerate")]
            rows.append([name, layer, *(cell(value, 1, 3) for value in values), *counts])
    return Table(
        ["model", "layer", "cosine of a", "of uniform", "Spearman of a", "|λ₂|/|λ₁|", "heads", "degenerate"], rows
    )


def caption(config: Summary) -> str:
    """What the numbers of :func:`removal_table` and :func:`box_table` are, in one sentence."""
    removal: Sequence[Summary] = list(config["removal"].values())
    first = removal[0]
    which = "correctly classified images" if first["only_correct"] else "images"
    return (
        f"Percent. Mean ± standard deviation over runs (over images). Removal: {which} with p ≥ "
        f"{first['min_probability']:g}, {first['levels']} steps, score: {first['score']}. The random order is that of "
        "the same model; the centre Gaussian does not depend on the image."
    )
