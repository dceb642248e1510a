"""From records of images to numbers: one summary for each model, and their mean over seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import keyed_generator
from ..ops.checks import check_choice
from . import localization as loc
from .perturbation import area_under, level_counts
from .results import Record

Summary = dict[str, Any]
NORMALISATIONS = ("intact", "none")
POINTS = 101  # of a drawn ROC or precision-recall curve


def spread(values: Tensor) -> Summary | None:
    """Mean and standard deviation over images, values (n,) or (n, K), as plain data; None without images.

    Example:
        >>> spread(torch.tensor([1.0, 3.0]))
        {'mean': 2.0, 'deviation': 1.4142135623730951}
    """
    if not len(values):
        return None
    values = values.double()
    deviation = values.std(0) if len(values) > 1 else torch.zeros_like(values[0])
    return {"mean": values.mean(0).tolist(), "deviation": deviation.tolist()}


def summarise_removal(records: Sequence[Record], patches: int, normalise: str = "intact") -> Summary:
    """Curves and areas of MoRF and LeRF, always beside the random order.

    ``normalise="intact"`` divides each curve by its first value; ``"none"`` leaves it. AOC = 1 − AUC of MoRF,
    ABPC = AUC of LeRF − AUC of MoRF; ``aoc_over_random`` is the difference of each image to its own random order.
    """
    check_choice("normalise", normalise, NORMALISATIONS)
    kept = [record for record in records if "curves" in record]
    correct = sum(record["predicted"] == record["label"] for record in records)
    summary: Summary = {
        "images": len(records),
        "kept": len(kept),
        "top1": correct / len(records) if records else None,
        "normalise": normalise,
        "methods": {},
    }
    if not kept:
        return summary

    def curves(method: str, direction: str) -> Tensor:
        stacked = torch.tensor([record["curves"][method][direction] for record in kept])
        return stacked / stacked[:, :1] if normalise == "intact" else stacked

    random = curves("random order", "morf")
    random_auc = area_under(random, patches)
    counts = level_counts(patches, random.shape[1] - 1)
    summary["fractions"] = (counts / patches).tolist()
    summary["random"] = {"curve": spread(random), "aoc": spread(1 - random_auc)}
    for method in kept[0]["curves"]:
        if method == "random order":
            continue
        morf, lerf = curves(method, "morf"), curves(method, "lerf")
        morf_auc, lerf_auc = area_under(morf, patches), area_under(lerf, patches)
        summary["methods"][method] = {
            "morf": spread(morf),
            "lerf": spread(lerf),
            "aoc": spread(1 - morf_auc),
            "aoc_over_random": spread(random_auc - morf_auc),
            "lerf_auc": spread(lerf_auc),
            "abpc": spread(lerf_auc - morf_auc),
            "with_ties": sum(record["draws"][method] > 1 for record in kept),
        }
    return summary


def summarise_boxes(records: Sequence[Record]) -> Summary:
    """Agreement of maps with boxes under both rules, always beside chance, random maps and a centre Gaussian."""
    boxed = [record for record in records if record["boxes"]]
    summary: Summary = {"images": len(records), "without_box": len(records) - len(boxed), "rules": {}}
    if not boxed:
        return summary
    size, grid = tuple(boxed[0]["size"]), tuple(boxed[0]["grid"])
    boxes = [np.array(record["boxes"], np.float32) for record in boxed]
    maps = {name: torch.tensor([record["maps"][name] for record in boxed]) for name in boxed[0]["maps"]}
    summary["uniform_maps"] = {name: int((m.amax(1) == m.amin(1)).sum()) for name, m in maps.items()}
    maps["centre"] = loc.centre_map(grid).flatten().float().expand(len(boxed), -1)
    for rule in loc.RULES:
        positive = loc.stack_labels(boxes, size, grid, rule)
        summary["rules"][rule] = _rule_summary(maps, positive)
    summary["iou"] = {
        name: spread(
            torch.tensor([loc.best_box_iou(m.view(grid), b, size) for m, b in zip(scores, boxes, strict=True)])
        )
        for name, scores in maps.items()
    }
    return summary


def _rule_summary(maps: dict[str, Tensor], positive: Tensor) -> Summary:
    """One rule's numbers, over the images that have patches of both kinds."""
    count, patches = positive.sum(1), positive.shape[1]
    usable = (count > 0) & (count < patches)
    summary: Summary = {
        "images": int(usable.sum()),
        "no_positive": int((count == 0).sum()),
        "no_negative": int((count == patches).sum()),
        "methods": {},
    }
    if not usable.any():
        return summary
    positive, count = positive[usable], count[usable]
    summary["share"] = spread(count / patches)
    summary["chance_ap"] = spread(loc.chance_precision(count, patches))
    for name, scores in maps.items():
        scores = scores[usable]
        flat, truth = scores.flatten(), positive.flatten()
        summary["methods"][name] = {
            "roc": spread(loc.roc_auc(scores, positive)),
            "ap": spread(loc.average_precision(scores, positive)),
            "pointing": spread(loc.pointing(scores, positive)),
            "pooled_roc": float(loc.roc_auc(flat, truth)),
            "pooled_ap": float(loc.average_precision(flat, truth)),
            "roc_curve": _drawn(loc.roc_curve(flat, truth)),
            "pr_curve": _drawn(loc.precision_recall_curve(flat, truth)),
        }
    return summary


def _drawn(curve: loc.Curve) -> list[float]:
    """The curve's height at 0, 0.01, … 1."""
    return np.interp(np.linspace(0, 1, POINTS), curve.x.numpy(), curve.y.numpy()).tolist()


def summarise_alignment(records: Sequence[Record], samples: int | None = 512, seed: int = 0) -> Summary:
    """Agreement with the Perron vector over ``samples`` heads of each layer (None: all), and over all layers.

    Degenerate heads are counted and left out.
    """
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be 1 or more, got {samples}")
    names = list(records[0]["layers"]) if records else []
    layers = {name: _heads([record["layers"][name] for record in records], samples, seed) for name in names}
    everything = (
        {key: torch.cat([layer[key] for layer in layers.values()]) for key in layers[names[0]]} if names else {}
    )
    return {
        "images": len(records),
        "all_layers": _agreement(everything) if names else None,
        "layers": {name: _agreement(layer) for name, layer in layers.items()},
    }


def _heads(records: Sequence[Record], samples: int | None, seed: int) -> dict[str, Tensor]:
    """Every measure of one layer over a sample of its (image, head) pairs: (n,) each."""
    values = {"ratio": torch.tensor([record["ratio"] for record in records]).flatten()}
    values["degenerate"] = torch.tensor([record["degenerate"] for record in records]).flatten()
    for measure in ("cosine", "spearman"):
        for name in records[0][measure]:
            values[f"{measure}/{name}"] = torch.tensor([record[measure][name] for record in records]).flatten()
    total = len(values["ratio"])
    if samples is not None and samples < total:
        chosen = torch.from_numpy(keyed_generator("heads", seed).permutation(total)[:samples])
        values = {name: value[chosen] for name, value in values.items()}
    return values


def _agreement(values: dict[str, Tensor]) -> Summary:
    degenerate = values["degenerate"]
    summary: Summary = {"samples": len(degenerate), "degenerate": int(degenerate.sum()), "cosine": {}, "spearman": {}}
    summary["ratio"] = spread(values["ratio"][~degenerate])
    for key, value in values.items():
        measure, _, name = key.partition("/")
        if name:
            summary[measure][name] = spread(value[~degenerate])
    return summary


def over_runs(summaries: Sequence[Any]) -> Any:
    """Summaries of one model trained with several seeds, as one: every number becomes its mean and deviation.

    A mean over images becomes ``mean`` (of the runs' means), ``over_runs`` (their standard deviation, None for one
    run) and ``over_images`` (the mean of the runs' deviations). Words stay; what a run lacks is left out.

    Example:
        >>> over_runs([{"top1": 0.5}, {"top1": 1.0}])["top1"]["mean"]
        0.75
    """
    present = [summary for summary in summaries if summary is not None]
    if not present or isinstance(present[0], str):
        return present[0] if present else None
    if not isinstance(present[0], dict):
        return _mean_over(present)
    if set(present[0]) == {"mean", "deviation"}:
        whole = _mean_over([summary["mean"] for summary in present])
        return whole | {"over_images": np.mean([summary["deviation"] for summary in present], 0).tolist()}
    keys = [key for key in present[0] if all(key in summary for summary in present)]
    return {key: over_runs([summary[key] for summary in present]) for key in keys}


def _mean_over(values: Sequence[Any]) -> Summary:
    array = np.array(values, np.float64)
    return {"mean": array.mean(0).tolist(), "over_runs": array.std(0, ddof=1).tolist() if len(array) > 1 else None}
