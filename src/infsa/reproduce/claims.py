"""What the paper says, what is measured here, and the rule that turns the two into a verdict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sources import Sources

REPRODUCED, LARGER, SMALLER, NOT, INCONCLUSIVE, SUPPORTED, DIFFERS, UNTESTABLE = VERDICTS = (
    "reproduced",
    "larger than claimed",
    "smaller than claimed",
    "not reproduced",
    "inconclusive",
    "supported at small scale",
    "differs at small scale",
    "not testable here",
)
KINDS = ("value", "score", "difference", "ratio", "statement")
LOW, HIGH = 0.8, 1.2  # of the paper's effect: the band in which an effect is reproduced
NOISE = 2.0  # standard errors
LAUNCH_BOUND = "launch-bound in eager mode; needs CUDA graph rows"
WITHIN, SAME_DIRECTION, OF_PAPER = "within noise", "same direction", " of the paper's"
EXAMPLE = 13.4  # a ratio, for the rule
RULE = (
    f"An effect (difference or ratio) is **reproduced** within {LOW:.0%} to {HIGH:.0%} of the paper's size or "
    f"{NOISE:g} of our standard errors, **larger than claimed** above, **smaller than claimed** below, **not "
    f"reproduced** if absent or reversed. Ratios are compared as logarithms: {EXAMPLE}× is reproduced from "
    f"{EXAMPLE**LOW:.1f}× to {EXAMPLE**HIGH:.1f}×. Without a printed size, the direction counts.",
    "An effect is **inconclusive** if both zero and the paper's size, if printed, lie within "
    f"{NOISE:g} standard errors.",
    f"A value is reproduced within {NOISE:g} standard errors, ours and the paper's (or its rounding); a score may also "
    "be larger than claimed. A claimed count of 0 agrees with up to 3 (95 %). A statement is reproduced if it holds.",
    "Small scale: small images or models, or our own example. What agrees (an effect: in direction) is **supported at "
    "small scale**; what disagrees **differs at small scale**, which refutes nothing.",
    "**Not testable here**: not measured, or a value that depends on the GPU, the dataset or unpublished details.",
    "Errors: over runs, stratified by dataset shard; over rounds for times and energies.",
    "Ratios of times at the paper's resolution, depth, heads and batch are compared on any GPU; times and energies "
    "only on the paper's A100.",
    "A time is launch-bound if an image with at most 30 % of the multiply-adds takes at least two thirds as "
    "long, or the 4-layer model is launch-bound at this size. Its ratios are judged on CUDA graphs of the eager "
    "model; without those they are inconclusive, unless only the faster model is launch-bound and the ratio already "
    "larger than claimed.",
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
    note: str = ""  # what the page says beside the verdict


@dataclass(frozen=True)
class Claim:
    """One thing the paper says. ``kind`` is one of KINDS (a statement: 1 is true); ``paper`` may be unstated."""

    what: str
    kind: str
    paper: float | None
    read: "Callable[[Sources], Reading]"
    unit: str = ""
    tolerance: float = 0.0  # the paper's own: half a unit of its last digit, or two of its standard errors
    group: str = ""  # the page shows claims of one group together
    topic: str = ""  # for the counts; empty: that of the target
    same_as: tuple[str, str] = (
        "",
        "",
    )  # target and name of the claim that counts, if the paper prints this number twice


def judge(claim: Claim, reading: Reading) -> tuple[str, str]:
    """The verdict and its reason, by :data:`RULE`."""
    if claim.kind not in KINDS:
        raise ValueError(f"kind must be one of {list(KINDS)}, got {claim.kind!r}")
    if not (math.isfinite(reading.value) and math.isfinite(reading.error)):
        raise ValueError(f"{claim.what}: a measurement must be a finite number, got {reading.value} ± {reading.error}")
    if claim.kind == "statement":
        if reading.value:
            return _best(reading), "it holds"
        return _worst(reading), "it does not hold"
    if claim.kind in ("value", "score"):
        return _judge_value(claim, reading)
    verdict, why = _judge_effect(claim, reading)
    if reading.launch_bound and not (reading.at_least and verdict == LARGER):
        return INCONCLUSIVE, LAUNCH_BOUND
    return verdict, why


def _best(reading: Reading) -> str:
    return REPRODUCED if reading.same else SUPPORTED


def _worst(reading: Reading) -> str:
    return NOT if reading.same else DIFFERS


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
        return (LARGER if reading.same else SUPPORTED), "above the paper's"
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
        return INCONCLUSIVE, WITHIN
    if ours <= noise:
        return _worst(reading), "reversed" if ours < -noise else "no effect"
    if paper is None:
        return _best(reading), SAME_DIRECTION
    share = ours / paper
    reason = f"{share:.0%}{OF_PAPER}" + (" logarithm" if ratio else "")
    if not reading.same:
        return SUPPORTED, reason
    if LOW <= share <= HIGH or abs(ours - paper) <= noise:
        return REPRODUCED, reason
    return (LARGER if share > HIGH else SMALLER), reason
