"""The tables and figures of docs/attention-quality.md, from the result files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from infsa.files import read_json
from infsa.report.quality_figures import LABELS, draw_boxes, draw_removal
from infsa.report.quality_tables import BASELINES, cell
from infsa.report.table import Table

from .marks import write_tables

Summary = dict[str, Any]
PAPER = ("softmax", "infsa_pure", "infsa_linear")
MAPS = {
    "last": "last layer",
    "rollout": "rollout",
    "gradient": "gradient-weighted rollout",
    "tokenrank": "TokenRank",
    "degree": "degree",
}
CANDIDATES = {  # as in the result files -> in the tables
    "a": "a",
    "a, 3 rounds": "a, 3 iterations",
    "power, 1 step": "one power iteration",
    "power, 3 steps": "three power iterations",
    "energy": "query norms",
    "uniform": "uniform",
}


def page_tables(results: Path) -> dict[str, str]:
    """Every table of the page, by its name."""
    study, rivals, aligned = (
        read_json(results / f"{name}.json")["groups"]
        for name in ("attention-quality", "attention-quality-rivals", "alignment")
    )
    tables = {
        "removal": removal_table(study),
        "boxes": boxes_table(study),
        "methods": methods_table(rivals),
        "alignment": alignment_table(aligned),
    }
    return {name: table.markdown() for name, table in tables.items()}


def write_page(results: Path, figures: Path, document: Path) -> None:
    """Draw the figures and fill in the tables of the page."""
    study = read_json(results / "attention-quality.json")
    figures.mkdir(parents=True, exist_ok=True)
    for direction in ("morf", "lerf"):
        draw_removal(study, "mean", direction, figures / f"{direction}.png")
    draw_boxes(study, "roc", figures / "roc.png")
    write_tables(document, page_tables(results))


def value(found: Summary | None) -> str:
    """A mean with its standard deviation over runs, in percent."""
    return cell(found, images=False)


def each(read: Callable[[str], str]) -> list[str]:
    """A cell for each of the paper's mechanisms."""
    return [read(name) for name in PAPER]


def removal_table(groups: Summary) -> Table:
    """A row per mechanism: MoRF, its random baseline, LeRF."""
    rows = []
    for name in PAPER:
        found = groups[name]["removal"]["mean"]
        own = found["methods"]["last"]
        cells = [
            found["top1"],
            own["aoc"],
            found["random"]["aoc"],
            own["aoc_over_random"],
            own["lerf_auc"],
            own["abpc"],
        ]
        rows.append([LABELS[name], *map(value, cells)])
    return Table(["model", "top-1", "MoRF-AOC", "random order", "MoRF-AOC − random", "LeRF-AUC", "ABPC"], rows)


def boxes_table(groups: Summary) -> Table:
    """A row per mechanism and baseline: agreement of its map with the boxes."""
    keys, rows = ("roc", "ap", "pointing"), []
    rules = {name: groups[name]["boxes"]["rules"]["centre"] for name in PAPER}
    for name, rule in rules.items():
        rows.append([LABELS[name], *(value(rule["methods"]["last"][key]) for key in keys)])
    shared = rules[PAPER[0]]  # the images are the same for every mechanism
    for name, label in BASELINES.items():
        rows.append([label, *(value(shared["methods"][name][key]) for key in keys)])
    return Table(["map of", "ROC-AUC", "AP", "pointing game"], rows)


def methods_table(groups: Summary) -> Table:
    """A row per kind of map: MoRF-AOC above the random order, and ROC-AUC against boxes."""

    def morf(method: str, name: str) -> str:
        return value(groups[name]["removal"]["mean"]["methods"][method]["aoc_over_random"])

    def roc(method: str, name: str) -> str:
        return value(groups[name]["boxes"]["rules"]["centre"]["methods"][method]["roc"])

    rows = [
        [label, *each(lambda name, m=method: morf(m, name)), *each(lambda name, m=method: roc(m, name))]
        for method, label in MAPS.items()
    ]
    heads = [f"{what}, {LABELS[name]}" for what in ("MoRF", "ROC") for name in PAPER]
    return Table(["map", *heads], rows)


def alignment_table(groups: Summary) -> Table:
    """A row per candidate: cosine with the Perron vector, and Spearman correlation in Linear-InfSA."""

    def show(measure: str, candidate: str, name: str) -> str:
        return cell(groups[name]["all_layers"][measure][candidate], 1, 3, images=False)

    rows = [
        [label, *each(lambda name, key=key: show("cosine", key, name)), show("spearman", key, PAPER[-1])]
        for key, label in CANDIDATES.items()
    ]
    heads = [f"cosine, {LABELS[name]}" for name in PAPER]
    return Table(["candidate", *heads, f"Spearman, {LABELS[PAPER[-1]]}"], rows)
