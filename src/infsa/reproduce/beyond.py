"""Checks of our own, beyond the paper: baselines it does not print. They get no verdict and are not counted."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..bench.presets import DEEP, FOUR, FUSED
from .bench_rows import Row, bench_row, milliseconds, ratio
from .claims import Reading
from .conditions import trained
from .errors import difference, stratified
from .quality import ALIGNMENT, aligned, value_of
from .sources import Sources

KERNELS = {"softmax-flash": "PyTorch's flash", "softmax-cudnn": "cuDNN"}


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


def over_fused(fields: Row, sources: Sources) -> Reading:
    """How many times longer softmax takes in its fastest fused kernel."""
    times = {name: milliseconds(bench_row(sources, name, 1024, **fields)) for name in FUSED}
    fastest = min(times, key=times.__getitem__)
    found = ratio(fastest, "infsa_linear", milliseconds, 1024, fields, "infer", sources)
    return replace(found, detail=f"{KERNELS.get(fastest, fastest)}, ms: {found.detail}")


def checks() -> list[Check]:
    """All of them."""
    fused = {"4L": FOUR, "24L": DEEP}
    return [
        *(
            Check(f"Linear {config}, infer 1024², faster than softmax (fastest fused kernel)", "ratio", "×",
                  partial(over_fused, fields))
            for config, fields in fused.items()
        ),
        Check("Linear 4L, infer 1024², faster than Pure in our fused kernel", "ratio", "×",
              partial(ratio, "infsa_pure", "infsa_linear", milliseconds, 1024, FOUR, "infer")),
        Check("MoRF-AOC of a random order, softmax (the paper's attention: 42.6)", "value", "%",
              partial(value_of, "softmax", "random")),
        Check("box ROC-AUC of a centred Gaussian (the paper's Pure: 77.3)", "value", "%",
              partial(value_of, "infsa_pure", "centre_roc")),
        Check("a nearer to the Perron vector than the uniform vector, cosine", "difference", "", above_uniform),
    ]  # fmt: skip
