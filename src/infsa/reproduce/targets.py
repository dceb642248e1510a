"""The targets: every table and figure of the paper by name, with what it needs."""

from collections.abc import Callable
from typing import NamedTuple

from . import ablation, accuracy, counts, quality, shipped, speed, supplement, theory
from .claims import Claim
from .topics import ACCURACY, FLOPS, LARGEST, MAPS, SPEED, THEORY

BENCHMARK = "a CUDA GPU; on an A100 with 40 GB absolute times are comparable too"
TRAINING = (
    "ImageNet-1K, ImageNet-V2 and GPU weeks: infsa train --recipe paper, infsa quality, infsa align, infsa ablate"
)
PROCESSOR = "a CPU"


class Target(NamedTuple):
    """One table or figure: its title, the key of its source in paper.json, what full scale needs, its claims, the topic
    of those that name none.

    Example:
        >>> TARGETS["fig-markov"].needs
        'a CPU'
    """

    title: str
    source: str
    needs: str
    claims: Callable[[], list[Claim]]
    topic: str


TARGETS: dict[str, Target] = {
    "table1": Target("Nine mechanisms", "table1", BENCHMARK, speed.table1, SPEED),
    "fig-dashboard": Target("Efficiency dashboard", "dashboard", BENCHMARK, speed.dashboard, SPEED),
    "fig-tiers": Target("Efficiency by complexity tier", "tiers", BENCHMARK, speed.tiers, SPEED),
    "fig-depth": Target("Four layers against 24", "depth", BENCHMARK, speed.depth, SPEED),
    "fig-latency": Target("Latency against resolution", "latency", BENCHMARK, speed.latency, SPEED),
    "extreme": Target("Extreme resolutions", "extreme", BENCHMARK, speed.extreme, LARGEST),
    "training-cost": Target("FLOPs of training", "training-cost", PROCESSOR, counts.training_cost, FLOPS),
    "fig-markov": Target("One hop against all hops", "markov", PROCESSOR, theory.markov, THEORY),
    "fig-method": Target("InfSA in a Pre-LN block", "method", PROCESSOR, theory.method, THEORY),
    "supplement-theory": Target("Theory of the supplement", "theory", PROCESSOR, supplement.supplement, THEORY),
    "table-alignment": Target("Agreement with the Perron vector", "alignment", TRAINING, quality.alignment, THEORY),
    "fig-quality": Target("Attention quality", "quality", TRAINING, quality.quality, MAPS),
    "fig-morf-roc": Target("MoRF and ROC curves", "quality", TRAINING, quality.morf_roc, MAPS),
    "fig-lerf-pr": Target("LeRF and precision-recall curves", "quality", TRAINING, quality.lerf_pr, MAPS),
    "fig-maps": Target("Attention maps", "maps", TRAINING, quality.maps, MAPS),
    "fig-comparison": Target("Comparison of attention graphs", "comparison", TRAINING, shipped.comparison, MAPS),
    "table-ablation": Target("Decay and activation", "ablation", TRAINING, ablation.ablation, ACCURACY),
    "table-classification": Target("ImageNet accuracy", "classification", TRAINING, accuracy.classification, ACCURACY),
    "fig-accuracy-params": Target(
        "Accuracy and parameters", "classification", TRAINING, accuracy.accuracy_parameters, ACCURACY
    ),
}


def check_target(name: str) -> None:
    """Refuse a name that is no target."""
    if name not in TARGETS:
        raise ValueError(f"target must be one of {list(TARGETS)}, got {name!r}")
