"""What the paper says, what is measured here, and the rule that turns the two into a verdict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sources import Sources

REPRODUCED, DIRECTION, NOT, UNCHECKED = VERDICTS = (
    "reproduced",
    "direction only",
    "not reproduced",
    "cannot be checked here",
)
SHARE = 0.8  # of the paper's effect that counts as the whole effect
NOISE = 2.0  # standard errors that a measured effect must exceed
RULE = (
    f"A value is reproduced if it lies within the paper's rounding or stated deviation, or {NOISE:g} of our standard "
    "errors, under the paper's conditions; under other conditions agreement counts as direction only, and disagreement "
    "refutes nothing: it cannot be checked here.",
    f"An effect (a difference, a ratio, a lead of one over all others) is reproduced if it exceeds {NOISE:g} of our "
    f"standard errors and {SHARE:.0%} of the paper's size (of its logarithm for a ratio) under the paper's conditions; "
    "if it only has the sign, or conditions are other, direction only; otherwise not reproduced, under the conditions "
    "that the row names.",
    "A statement is reproduced if it holds under the paper's conditions, direction only if it holds under others, and "
    "not reproduced if a single measurement contradicts it.",
    "A ratio of two times of one run, at the paper's resolution, depth, heads and batch, counts as measured under its "
    "conditions on any GPU; a time or an energy by itself only on the paper's, even if it agrees. Models are timed as "
    "they come, not compiled and without the paper's extra layers; where their rounds differ, the host that launches "
    "the kernels had a part in it. The error of a time is that of its rounds, and an energy is given that of its time; "
    "a count has none.",
    "Whatever has no measurement cannot be checked here; the ledger says what it needs.",
)


class Unavailable(Exception):
    """There is no measurement; the message says what one needs."""


@dataclass(frozen=True)
class Reading:
    """A measured number, its standard error, where it comes from and under which conditions."""

    value: float
    error: float = 0.0
    conditions: str = ""
    same: bool = False  # the paper's conditions, in everything that the claim depends on
    file: str = ""  # the result file; empty if it was computed
    needs: str = ""  # what the paper's own conditions would take
    comparable: bool = True  # whether agreement under other conditions says anything


@dataclass(frozen=True)
class Claim:
    """One thing the paper says. ``kind`` is value, difference, ratio or statement (1: true); ``paper`` may be
    unstated.
    """

    what: str
    kind: str
    paper: float | None
    read: "Callable[[Sources], Reading]"
    unit: str = ""
    tolerance: float = 0.0  # the paper's own: half a unit of its last digit, or its deviation
    source: str = ""  # another table than the target's own


def judge(claim: Claim, reading: Reading) -> tuple[str, str]:
    """The verdict and its reason, by :data:`RULE`."""
    if not (math.isfinite(reading.value) and math.isfinite(reading.error)):
        raise ValueError(f"{claim.what}: a measurement must be a finite number, got {reading.value} ± {reading.error}")
    if claim.kind == "value":
        return _judge_value(claim, reading)
    if claim.kind == "statement":
        return (_best(reading), "it holds") if reading.value else (NOT, "it does not hold")
    if claim.kind not in ("difference", "ratio"):
        raise ValueError(f"kind must be value, difference, ratio or statement, got {claim.kind!r}")
    return _judge_effect(claim, reading)


def _best(reading: Reading) -> str:
    return REPRODUCED if reading.same else DIRECTION


def _judge_value(claim: Claim, reading: Reading) -> tuple[str, str]:
    assert claim.paper is not None
    allowed = max(claim.tolerance, NOISE * reading.error)
    elsewhere = f"needs {reading.needs or 'the conditions of the paper'}"
    if not (reading.same or reading.comparable):
        return UNCHECKED, elsewhere
    if abs(reading.value - claim.paper) <= allowed * (1 + 1e-9):
        return _best(reading), f"within {_short(allowed)}"
    if reading.same:
        times = f"{_short(reading.value / claim.paper)} times the paper's value" if claim.paper else "not 0"
        return NOT, times
    return UNCHECKED, elsewhere


def _judge_effect(claim: Claim, reading: Reading) -> tuple[str, str]:
    ratio = claim.kind == "ratio"
    if ratio and reading.value <= 0:
        raise ValueError(f"{claim.what}: a ratio must be more than 0, got {reading.value}")
    ours = math.log(reading.value) if ratio else reading.value
    noise = NOISE * (reading.error / reading.value if ratio else reading.error)
    if ours <= noise:
        return NOT, "the other way round" if ours < -noise else "no effect beyond the noise"
    if claim.paper is None:
        return DIRECTION, "the paper gives no number"
    share = ours / (math.log(claim.paper) if ratio else claim.paper)
    reason = f"{math.floor(100 * share + 1e-9)} %" + (" of the logarithm" if ratio else " of the effect")
    return (REPRODUCED if reading.same and share >= SHARE else DIRECTION), reason


def _short(value: float) -> str:
    return f"{value:.3g}"
