"""The verdict follows from the numbers."""

import pytest

from infsa.reproduce import RULE, VERDICTS, Claim, Reading, judge

REPRODUCED, DIRECTION, NOT, UNCHECKED = VERDICTS


def verdict(kind, paper, value, error=0.0, same=True, tolerance=0.0):
    return judge(Claim("", kind, paper, None, tolerance=tolerance), Reading(value, error, same=same))[0]


@pytest.mark.parametrize(
    ("paper", "value", "error", "same", "expected"),
    [
        (53.5, 53.45, 0.0, True, REPRODUCED),
        (53.5, 53.45, 0.0, False, DIRECTION),
        (53.5, 53.6, 0.0, True, NOT),
        (53.5, 53.6, 0.05, True, REPRODUCED),  # two standard errors
        (53.5, 53.6, 0.0, False, UNCHECKED),  # other conditions refute nothing
    ],
)
def test_values(paper, value, error, same, expected):
    assert verdict("value", paper, value, error, same, tolerance=0.05) == expected


@pytest.mark.parametrize("kind", ["difference", "ratio"])
def test_effects(kind):
    paper, whole, part, reverse = {"difference": (10, 8, 7.9, -1), "ratio": (16, 10, 8, 0.5)}[kind]
    assert verdict(kind, paper, paper) == REPRODUCED
    assert verdict(kind, paper, whole) == REPRODUCED
    assert verdict(kind, paper, part) == DIRECTION
    assert verdict(kind, paper, paper, same=False) == DIRECTION
    assert verdict(kind, None, paper) == DIRECTION  # no size to reach
    assert verdict(kind, paper, reverse) == NOT
    assert verdict(kind, paper, whole, error=2 * whole) == NOT  # lost in the noise


@pytest.mark.parametrize(("kind", "nothing"), [("difference", 0.0), ("ratio", 1.0)])
def test_a_tie_is_no_effect(kind, nothing):
    assert verdict(kind, 2, nothing) == verdict(kind, 2, nothing, same=False) == verdict(kind, None, nothing) == NOT


def test_what_lies_on_the_edge():
    assert verdict("difference", 10, 2.0, error=1.0) == NOT  # exactly two standard errors do not exceed them
    assert verdict("value", 0.0, 1e-9) == NOT  # zero has no multiple
    assert verdict("value", 0.0, 0.0) == REPRODUCED


@pytest.mark.parametrize(("kind", "value"), [("value", float("nan")), ("difference", float("inf")), ("ratio", 0.0)])
def test_what_is_no_measurement_is_refused(kind, value):
    with pytest.raises(ValueError, match="must be"):
        verdict(kind, 2.0, value)


def test_statements():
    assert verdict("statement", 1, 1.0) == REPRODUCED
    assert verdict("statement", 1, 1.0, same=False) == DIRECTION
    assert verdict("statement", 1, 0.0) == verdict("statement", 1, 0.0, same=False) == NOT


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'guess'"):
        verdict("guess", 1, 1.0)


def test_the_rule_names_every_verdict():
    assert all(verdict in " ".join(RULE) for verdict in VERDICTS)


def test_a_value_that_means_nothing_elsewhere_is_not_judged_by_chance():
    reading = Reading(4.33, conditions="another GPU", needs="an A100", comparable=False)
    assert judge(Claim("time", "value", 4.33, None), reading) == (UNCHECKED, "needs an A100")
    assert judge(Claim("speed-up", "ratio", 13.4, None), Reading(7.9, same=True)) == (
        DIRECTION,
        "79 % of the logarithm",
    )
