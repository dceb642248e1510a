"""What the paper says, what is measured here, and the rule that turns the two into a verdict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sources import Sources

REPRODUCED, EXCEEDED, PARTLY, NOT, INCONCLUSIVE, UNTESTABLE = VERDICTS = (
    "reproduced",
    "exceeded",
    "partly reproduced",
    "not reproduced",
    "inconclusive",
    "not testable here",
)
KINDS = ("value", "score", "difference", "ratio", "statement")
LOW, HIGH = 0.8, 1.2  # of the paper's effect: the band in which an effect is reproduced
NOISE = 2.0  # standard errors
AND_PAPER, LIES = " and the paper's effect lie", " lies"
LAUNCH_BOUND = "launch-bound in eager mode; needs CUDA graph rows"
RULE = (
    f"An effect (a difference, a ratio, a lead) is **reproduced** within {LOW:.0%} to {HIGH:.0%} of the paper's size "
    f"(of its logarithm for a ratio) or within {NOISE:g} of our standard errors of it, **exceeded** above that, "
    "**partly reproduced** below it or under other conditions than the paper's, and **not reproduced** if it is absent "
    "or reversed. Where the paper gives no size, the direction is the claim.",
    f"An effect is **inconclusive** if both zero and the paper's size lie within {NOISE:g} of our standard errors; "
    "where the paper gives no size, if zero does.",
    f"A value is reproduced within the paper's rounding or {NOISE:g} standard errors (ours and the paper's), otherwise "
    "not. A score, where higher is better, may also be exceeded. Under other conditions agreement is partly reproduced "
    "and disagreement **not testable here**: it refutes nothing.",
    "A statement is reproduced if it holds, partly reproduced if it holds under other conditions, not reproduced if a "
    "measurement contradicts it. Without a measurement a claim is not testable here; the row says what it needs.",
    "There is one standard error: runs are stratified by dataset shard, the variance of each stratum's mean is summed, "
    "and the shards weigh the same. A time has the standard error of its rounds, an energy that of its time.",
    "A ratio of two times at the paper's resolution, depth, heads and batch meets its conditions on any GPU; a time or "
    "an energy by itself only on the paper's A100.",
    "A time is launch-bound if a smaller image with at most 30 % of the multiply-adds takes at least two thirds as "
    "long, or if the 4-layer model at the same size is launch-bound. Such ratios are judged on the same eager model "
    "replayed as a CUDA graph, with the eager value beside it. Without those rows they are inconclusive, unless only "
    "the faster model is launch-bound and the ratio exceeds the paper's already.",
)


class Unavailable(Exception):
    """There is no measurement; the message says what one needs."""


@dataclass(frozen=True)
class Reading:
    """A measured number, its standard error, where it comes from and under which conditions."""

    value: float
    error: float = 0.0
    setting: str = ""  # conditions that rows share: the machine, or the models and their training
    detail: str = ""  # what belongs to this row alone
    same: bool = False  # the paper's conditions, in everything that the claim depends on
    file: str = ""  # the result file; empty if it was computed
    needs: str = ""  # what the paper's own conditions would take
    comparable: bool = True  # whether agreement under other conditions says anything
    launch_bound: bool = False  # launches, not kernels, were timed
    at_least: bool = False  # launch overhead can only have made an effect smaller


@dataclass(frozen=True)
class Claim:
    """One thing the paper says. ``kind`` is one of KINDS (a statement: 1 is true); ``paper`` may be unstated."""

    what: str
    kind: str
    paper: float | None
    read: "Callable[[Sources], Reading]"
    unit: str = ""
    tolerance: float = 0.0  # the paper's own: half a unit of its last digit, or two of its standard errors
    group: str = ""  # the page lists claims of one group that got the same verdict in one line


def judge(claim: Claim, reading: Reading) -> tuple[str, str]:
    """The verdict and its reason, by :data:`RULE`."""
    if claim.kind not in KINDS:
        raise ValueError(f"kind must be one of {list(KINDS)}, got {claim.kind!r}")
    if not (math.isfinite(reading.value) and math.isfinite(reading.error)):
        raise ValueError(f"{claim.what}: a measurement must be a finite number, got {reading.value} ± {reading.error}")
    if claim.kind == "statement":
        return (_best(reading), "it holds") if reading.value else (NOT, "it does not hold")
    if claim.kind in ("value", "score"):
        return _judge_value(claim, reading)
    verdict, why = _judge_effect(claim, reading)
    if reading.launch_bound and not (reading.at_least and verdict == EXCEEDED):
        return INCONCLUSIVE, LAUNCH_BOUND
    return verdict, why


def _best(reading: Reading) -> str:
    return REPRODUCED if reading.same else PARTLY


def _judge_value(claim: Claim, reading: Reading) -> tuple[str, str]:
    assert claim.paper is not None
    allowed = math.hypot(claim.tolerance, NOISE * reading.error) * (1 + 1e-9)
    elsewhere = f"needs {reading.needs or 'the conditions of the paper'}"
    if not (reading.same or reading.comparable):
        return UNTESTABLE, elsewhere
    gap = reading.value - claim.paper
    if abs(gap) <= allowed:
        return _best(reading), f"within {allowed:.2g}"
    if claim.kind == "score" and gap > 0:
        return (EXCEEDED if reading.same else PARTLY), "above the paper's"
    if reading.same:
        return NOT, f"{reading.value / claim.paper:.3g} × the paper's" if claim.paper else "not 0"
    return UNTESTABLE, elsewhere


def _judge_effect(claim: Claim, reading: Reading) -> tuple[str, str]:
    ratio = claim.kind == "ratio"
    if ratio and reading.value <= 0:
        raise ValueError(f"{claim.what}: a ratio must be more than 0, got {reading.value}")
    ours = math.log(reading.value) if ratio else reading.value
    noise = NOISE * (reading.error / reading.value if ratio else reading.error)
    paper = None if claim.paper is None else math.log(claim.paper) if ratio else claim.paper
    if abs(ours) <= noise and noise > 0 and (paper is None or abs(ours - paper) <= noise):
        return INCONCLUSIVE, f"zero{AND_PAPER if paper else LIES} within {NOISE:g} standard errors"
    if ours <= noise:
        return NOT, "the other way round" if ours < -noise else "no effect beyond the noise"
    if paper is None:
        return _best(reading), "same direction"
    share = ours / paper
    reason = f"{share:.0%} of the " + ("logarithm" if ratio else "effect")
    if not reading.same:
        return PARTLY, reason
    if LOW <= share <= HIGH or abs(ours - paper) <= noise:
        return REPRODUCED, reason
    return (EXCEEDED if share > HIGH else PARTLY), reason
