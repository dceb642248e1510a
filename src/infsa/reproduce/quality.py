"""Quality of attention maps: removal, boxes, consistency, alignment with the Perron vector."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .claims import Claim, Reading
from .conditions import trained
from .errors import difference, stratified
from .sources import Sources, paper

QUALITY, ALIGNMENT = "attention-quality.json", "alignment.json"
IMAGENET = "training on ImageNet"
LABELS = {"softmax": "softmax", "infsa_pure": "Pure", "infsa_linear": "Linear"}
RULE_OF_THREE = 3.0  # cases that a count of none is compatible with, at 95 %
Run = dict[str, Any]
Strata = dict[str, list[float]]


def last(run: Run, part: str) -> Any:
    """The numbers of the last layer's map in one run: of removal, or of boxes."""
    found = run["removal"]["mean"] if part == "removal" else run["boxes"]["rules"]["centre"]
    return found["methods"]["last"]


METRICS: dict[str, Callable[[Run], float]] = {
    "morf": lambda run: last(run, "removal")["aoc"]["mean"],
    "lerf": lambda run: last(run, "removal")["lerf_auc"]["mean"],
    "over_random": lambda run: last(run, "removal")["aoc_over_random"]["mean"],
    "random": lambda run: run["removal"]["mean"]["random"]["aoc"]["mean"],
    "roc": lambda run: last(run, "boxes")["roc"]["mean"],
    "pr": lambda run: last(run, "boxes")["ap"]["mean"],
    "pointing": lambda run: last(run, "boxes")["pointing"]["mean"],
    "roc_spread": lambda run: last(run, "boxes")["roc"]["deviation"],
    "centre_roc": lambda run: run["boxes"]["rules"]["centre"]["methods"]["centre"]["roc"]["mean"],
}


def by_shard(sources: Sources, file: str, group: str, value: Callable[[Run], float]) -> Strata:
    """A number of every run of a mechanism, by dataset."""
    found: Strata = {}
    for run in sources.file(file)["runs"].values():
        if run["group"] == group:
            found.setdefault(run["data"], []).append(value(run))
    return found


def percent(sources: Sources, group: str, metric: str) -> Strata:
    """A quality number of every run in percent."""
    return by_shard(sources, QUALITY, group, lambda run: 100 * METRICS[metric](run))


def value_of(group: str, metric: str, sources: Sources) -> Reading:
    """A quality number of one mechanism."""
    value, error = stratified(percent(sources, group, metric))
    return Reading(value, error, trained(sources), needs=IMAGENET, file=QUALITY)


def gap(first: str, second: str, metric: str, sources: Sources) -> Reading:
    """How far one mechanism is above another."""
    found = compared(percent(sources, first, metric), percent(sources, second, metric), trained(sources), QUALITY)
    detail, note = f"{found.detail}; {sources.file(QUALITY)['config']['images']} images a run", ""
    if metric == "morf" and second == "softmax":
        left, error = difference(percent(sources, first, "over_random"), percent(sources, second, "over_random"))
        note = f"{left:+.1f}±{error:.1f} over random order"
    return replace(found, detail=detail, note=note)


def compared(first: Strata, second: Strata, setting: str, file: str) -> Reading:
    """How far the runs of one mechanism are above those of another, in percent."""
    value, error = difference(first, second)
    detail = f"{stratified(first)[0]:.1f} against {stratified(second)[0]:.1f}"
    return Reading(value, error, setting, detail, needs=IMAGENET, file=file)


def quality() -> list[Claim]:
    """The bars: MoRF-AOC, ROC-AUC and PR-AUC against softmax."""
    said = paper()["quality"]["groups"]
    names = {"morf": "MoRF-AOC", "roc": "ROC-AUC", "pr": "PR-AUC"}
    return [
        Claim(f"{LABELS[group]} above softmax, {label}", "difference",
              round(said[group][metric] - said["softmax"][metric], 1), partial(gap, group, "softmax", metric), "points")
        for group in ("infsa_linear", "infsa_pure")
        for metric, label in names.items()
    ]  # fmt: skip


def curves(metrics: dict[str, str]) -> list[Claim]:
    """The values that the curves of the supplement carry."""
    return [
        Claim(f"{LABELS[group]}, {label}", "value", values[metric], partial(value_of, group, metric), "%", 0.05,
              f", {label}")
        for metric, label in metrics.items()
        for group, values in paper()["quality"]["groups"].items()
        if metric in values
    ]  # fmt: skip


def leads(label: str, first: str, second: str, metric: str) -> Claim:
    """Who leads, by the paper's own numbers; LeRF of Linear is printed in the γ sweep only."""
    said = paper()["quality"]["groups"]
    other = said[second].get(metric)
    if other is None and second == "infsa_linear":
        other = paper()["ablation"]["gamma"]["0.7"][metric]
    size = None if other is None else round(said[first][metric] - other, 1)
    what = f"{LABELS[first]} above {LABELS[second]}, {label}"
    return Claim(what, "difference", size, partial(gap, first, second, metric), "points")


def morf_roc() -> list[Claim]:
    """MoRF and ROC curves; Linear leads in MoRF, Pure in ROC."""
    return [
        *curves({"morf": "MoRF-AOC", "roc": "ROC-AUC"}),
        leads("MoRF-AOC", "infsa_linear", "infsa_pure", "morf"),
        leads("ROC-AUC", "infsa_pure", "infsa_linear", "roc"),
    ]


def lerf_pr() -> list[Claim]:
    """LeRF and precision-recall curves; Pure leads in LeRF, Linear in PR."""
    return [
        *curves({"lerf": "LeRF-AUC", "pr": "PR-AUC"}),
        leads("LeRF-AUC", "infsa_pure", "softmax", "lerf"),
        leads("LeRF-AUC", "infsa_pure", "infsa_linear", "lerf"),
        leads("PR-AUC", "infsa_linear", "infsa_pure", "pr"),
    ]


def maps() -> list[Claim]:
    """Focus on the object: how often the highest patch lies in the box; and how much that varies over images."""
    groups = ("infsa_pure", "infsa_linear")
    return [
        *(
            Claim(f"{LABELS[group]} above softmax, pointing game", "difference", None,
                  partial(gap, group, "softmax", "pointing"), "points")
            for group in groups
        ),
        *(
            Claim(f"{LABELS[group]} more consistent than softmax: deviation of ROC-AUC", "difference",
                  None, partial(gap, "softmax", group, "roc_spread"), "points")
            for group in groups
        ),
    ]  # fmt: skip


def aligned(sources: Sources, measure: str, candidate: str = "a") -> Strata:
    """Agreement of a candidate with the Perron vector in every run of Linear InfSA, all layers."""
    return by_shard(sources, ALIGNMENT, "infsa_linear", lambda run: run["all_layers"][measure][candidate]["mean"])


def alignment() -> list[Claim]:
    """Agreement of Linear-InfSA's vector with the Perron vector."""
    said = paper()["alignment"]

    def read(measure: str, sources: Sources) -> Reading:
        value, error = stratified(aligned(sources, measure))
        setting = trained(sources)
        return Reading(value, error, setting, "all layers", needs=IMAGENET, file=ALIGNMENT)

    def degenerate(sources: Sources) -> Reading:
        def mean(run: Run) -> float:
            return run["all_layers"]["degenerate"] / len(run["layers"])

        value, error = stratified(by_shard(sources, ALIGNMENT, "infsa_linear", mean))
        runs = [run for run in sources.file(ALIGNMENT)["runs"].values() if run["group"] == "infsa_linear"]
        counts = [layer["degenerate"] for run in runs for layer in run["layers"].values()]
        note = f"mean count; none in {counts.count(0)} of {len(counts)} samples"
        return Reading(value, error, trained(sources), note, needs=IMAGENET, file=ALIGNMENT, note=note)

    return [
        *(
            Claim(f"{name} of a and the Perron vector", "score", said[key]["mean"], partial(read, key),
                  tolerance=2 * said[key]["deviation"] / math.sqrt(said["samples"]))
            for key, name in (("cosine", "cosine"), ("spearman", "Spearman correlation"))
        ),
        Claim(f"heads without a Perron vector, of {said['samples']}", "value",
              said["degenerate"], degenerate, tolerance=RULE_OF_THREE),
    ]  # fmt: skip
