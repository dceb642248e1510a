"""γ and activation of Linear InfViT."""

import math
from functools import partial
from typing import Any

from .bench_rows import absolute, milliseconds
from .claims import Claim, Reading, Unavailable
from .conditions import training
from .quality import IMAGENET
from .sources import Sources, paper
from .topics import ACCURACY, MAPS, SPEED

ABLATION = "ablation.json"
GAMMAS, ACTIVATIONS = (0.3, 0.5, 0.7, 0.9), ("relu", "gelu", "abs")
NAMES = {
    "top1": "top1",
    "morf": "morf_aoc",
    "lerf": "lerf_auc",
    "roc": "roc_auc",
    "epochs": "epochs_to_convergence",
    "seconds": "seconds",
}
SHOWN = {"top1": "top-1", "morf": "MoRF-AOC", "lerf": "LeRF-AUC", "roc": "ROC-AUC"}
Pair = tuple[dict[str, float], dict[str, float]]


def setting(sources: Sources) -> str:
    """The conditions of the ablation."""
    file = sources.file(ABLATION)
    return f"Tiny-ImageNet, one half: only shard a of 50 classes; {training([file['recipe']], file['seeds'])}"


def point(sources: Sources, **wanted: Any) -> Pair:
    """Means and standard errors of one point of the grid."""
    file = sources.file(ABLATION)
    for row in file["rows"]:
        if row["point"] == {"gamma": 0.7, "activation": "relu"} | wanted:
            return row["mean"], {key: value / math.sqrt(file["seeds"]) for key, value in row["deviation"].items()}
    raise Unavailable(f"needs {wanted} in {ABLATION}: infsa ablate")


def lead_over(metric: str, axis: str, winner: Any, others: list[Any], sources: Sources) -> Reading:
    """How far one point is above the best of the others that have the metric."""
    key = NAMES[metric]
    best, best_error = point(sources, **{axis: winner})
    found = {other: point(sources, **{axis: other}) for other in others}
    able = {other: pair for other, pair in found.items() if key in pair[0]}
    following = max(able, key=lambda other: able[other][0][key])
    without = [str(other) for other in others if other not in able]
    note = f"without {', '.join(without)}" if without else ""
    size = 100 * (best[key] - able[following][0][key])
    error = 100 * math.hypot(best_error[key], able[following][1][key])
    detail = f"next: {following}"
    return Reading(size, error, setting(sources), detail, needs=IMAGENET, file=ABLATION, note=note)


def rises(sources: Sources) -> Reading:
    """Whether LeRF-AUC rises with γ."""
    values = [100 * point(sources, gamma=gamma)[0]["lerf_auc"] for gamma in GAMMAS]
    detail = ", ".join(f"{value:.1f}" for value in values)
    return Reading(float(values == sorted(values)), 0.0, setting(sources), detail, file=ABLATION)


def epochs(sources: Sources) -> Reading:
    """Epochs until the accuracy stops rising, at the default point."""
    mean, error = point(sources)
    detail = f"of {sources.file(ABLATION)['recipe']['epochs']} epochs"
    key = NAMES["epochs"]
    return Reading(mean[key], error[key], setting(sources), detail, needs=IMAGENET, file=ABLATION)


def stable(metric: str, most: float, sources: Sources) -> Reading:
    """Whether a number varies over the grid no more than in the paper, as the largest over the smallest."""
    points = [{"gamma": g} for g in GAMMAS] + [{"activation": a} for a in ACTIVATIONS[1:]]
    values = [point(sources, **wanted)[0][NAMES[metric]] for wanted in points]
    spread = max(values) / min(values)
    detail = f"largest over smallest {spread:.3f}, in the paper {most:.3f}"
    return Reading(float(spread <= most), 0.0, setting(sources), detail, file=ABLATION)


def ablation() -> list[Claim]:
    """The full ablation table."""
    said = paper()["ablation"]
    columns = [*said["gamma"].values(), *said["activation"].values()]

    def spread(key: str) -> float:
        return max(row[key] for row in columns) / min(row[key] for row in columns)

    def lead(label: str, metric: str, axis: str, winner: Any, others: list[Any]) -> Claim:
        table = said[axis]
        size = table[str(winner)][metric] - max(table[str(other)][metric] for other in others)
        read = partial(lead_over, metric, axis, winner, others)
        topic = ACCURACY if metric == "top1" else MAPS
        return Claim(f"{label}: lead in {SHOWN[metric]}", "difference", round(size, 1), read, "points", topic=topic)

    batch: dict[str, Any] = {"depth": 4, "heads": 64, "batch": 64}
    return [
        lead("γ = 0.7", "top1", "gamma", 0.7, [0.3, 0.5, 0.9]),
        lead("γ = 0.7", "morf", "gamma", 0.7, [0.3, 0.5, 0.9]),
        lead("γ = 0.9", "roc", "gamma", 0.9, [0.3, 0.5, 0.7]),
        Claim("LeRF-AUC rises with γ from 0.3 to 0.9", "statement", 1, rises, topic=MAPS),
        lead("ReLU", "top1", "activation", "relu", ["gelu", "abs"]),
        lead("ReLU", "morf", "activation", "relu", ["gelu", "abs"]),
        lead("|x|", "lerf", "activation", "abs", ["relu", "gelu"]),
        lead("|x|", "roc", "activation", "abs", ["relu", "gelu"]),
        Claim("epochs to convergence, γ = 0.7", "value", said["gamma"]["0.7"]["epochs"], epochs, "", 0.5),
        Claim("convergence is stable over the ablation", "statement", 1, partial(stable, "epochs", spread("epochs"))),
        Claim("time does not depend on γ or activation", "statement", 1,
              partial(stable, "seconds", spread("train_ms")), topic=SPEED),
        *(
            Claim(f"{mode} at 224², batch 64, γ = 0.7", "value", said["gamma"]["0.7"][f"{mode}_ms"],
                  partial(absolute, "infsa_linear", milliseconds, 224, batch, mode), "ms", 0.5, topic=SPEED)
            for mode in ("train", "infer")
        ),
    ]  # fmt: skip
