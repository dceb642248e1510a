"""Checks of our own, beyond the paper: baselines it does not print. They get no verdict and are not counted."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..bench.presets import DEEP, FOUR
from .bench_rows import milliseconds, ratio
from .claims import Reading
from .conditions import trained
from .errors import difference, stratified
from .quality import ALIGNMENT, aligned, gap, value_of
from .sources import Sources


class Check(NamedTuple):
    """One check: what it is, its kind (as of a claim, for printing), its unit, and how it is read."""

    what: str
    kind: str
    unit: str
    read: Callable[[Sources], Reading]


def above_uniform(sources: Sources) -> Reading:
    """How much nearer a is to the Perron vector than the uniform vector."""
    value, error = difference(aligned(sources, "cosine"), aligned(sources, "cosine", "uniform"))
    uniform, _ = stratified(aligned(sources, "cosine", "uniform"))
    setting = trained(sources)
    return Reading(value, error, setting, f"the uniform vector has {uniform:.3f}", file=ALIGNMENT)


def checks() -> list[Check]:
    """All of them."""
    fused = {"4L-64H": FOUR, "24L-16H": DEEP}
    return [
        *(
            Check(f"Linear {config}, infer 1024², faster than softmax in a fused kernel", "ratio", "×",
                  partial(ratio, "softmax-flash", "infsa_linear", milliseconds, 1024, fields, "infer"))
            for config, fields in fused.items()
        ),
        Check("Linear 4L-64H, infer 1024², faster than Pure in our fused kernel", "ratio", "×",
              partial(ratio, "infsa_pure", "infsa_linear", milliseconds, 1024, FOUR, "infer")),
        Check("MoRF-AOC of a random order, Standard ViT (the paper prints 42.6 for its attention)", "value", "%",
              partial(value_of, "softmax", "random")),
        Check("box ROC-AUC of a centred Gaussian (the paper prints 77.3 for Pure)", "value", "%",
              partial(value_of, "infsa_pure", "centre_roc")),
        Check("Linear above Standard ViT, MoRF-AOC minus its random-order baseline", "difference", "points",
              partial(gap, "infsa_linear", "softmax", "over_random")),
        Check("a nearer to the Perron vector than the uniform vector, cosine", "difference", "", above_uniform),
    ]  # fmt: skip
