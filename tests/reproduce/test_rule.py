"""The verdict follows from the numbers."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infsa.files import read_json
from infsa.reproduce import RULE, VERDICTS, Claim, Reading, judge
from infsa.reproduce.claims import LAUNCH_BOUND
from infsa.reproduce.errors import difference, stratified

from .test_ledger import RESULTS

REPRODUCED, LARGER, SMALLER, NOT, INCONCLUSIVE, SUPPORTED, DIFFERS, UNTESTABLE = VERDICTS
SIZES = st.floats(0.1, 50)
ERRORS = st.floats(0.0, 20)


def verdict(kind, paper, value, error=0.0, same=True, tolerance=0.0, **fields):
    return judge(Claim("", kind, paper, None, tolerance=tolerance), Reading(value, error, same=same, **fields))[0]


@pytest.mark.parametrize(
    ("paper", "value", "error", "same", "expected"),
    [
        (53.5, 53.45, 0.0, True, REPRODUCED),
        (53.5, 53.45, 0.0, False, SUPPORTED),
        (53.5, 53.6, 0.0, True, NOT),
        (53.5, 53.6, 0.05, True, REPRODUCED),  # two standard errors
        (53.5, 53.6, 0.0, False, UNTESTABLE),  # other conditions refute nothing
    ],
)
def test_values(paper, value, error, same, expected):
    assert verdict("value", paper, value, error, same, tolerance=0.05) == expected


def test_scores_may_be_larger_than_claimed():
    assert verdict("score", 0.985, 0.99, tolerance=0.003) == LARGER
    assert verdict("score", 0.985, 0.99, tolerance=0.003, same=False) == SUPPORTED
    assert verdict("score", 0.985, 0.983, tolerance=0.003) == REPRODUCED
    assert verdict("score", 0.985, 0.97, tolerance=0.003) == NOT
    assert verdict("score", 0.985, 0.97, tolerance=0.003, same=False) == UNTESTABLE


@given(paper=SIZES, share=st.floats(-3, 3), error=ERRORS, same=st.booleans())
def test_an_effect_by_an_independent_rule(paper, share, error, same):
    value = share * paper
    for edge in (abs(abs(value) - 2 * error), abs(abs(value - paper) - 2 * error), abs(share - 0.8), abs(share - 1.2)):
        assume(edge > 1e-6)
    near_zero, near_paper = abs(value) <= 2 * error, abs(value - paper) <= 2 * error
    if near_zero:
        expected = INCONCLUSIVE if near_paper else NOT if same else DIFFERS
    elif value < 0:
        expected = NOT if same else DIFFERS
    elif not same:
        expected = SUPPORTED
    elif near_paper or 0.8 <= share <= 1.2:
        expected = REPRODUCED
    else:
        expected = LARGER if share > 1 else SMALLER
    assert verdict("difference", paper, value, error, same) == expected


@given(paper=st.floats(1.05, 40), value=st.floats(0.05, 60), error=st.floats(0, 3), same=st.booleans())
def test_a_ratio_is_a_difference_of_logarithms(paper, value, error, same):
    logs = verdict("difference", math.log(paper), math.log(value), error / value, same)
    assert verdict("ratio", paper, value, error, same) == logs


@given(value=st.floats(-50, 50), error=ERRORS, same=st.booleans())
def test_without_a_size_the_direction_is_the_claim(value, error, same):
    assume(abs(abs(value) - 2 * error) > 1e-6)
    found = verdict("difference", None, value, error, same)
    if abs(value) < 2 * error:
        assert found == INCONCLUSIVE
    else:
        wrong, right = (NOT, REPRODUCED) if same else (DIFFERS, SUPPORTED)
        assert found == (wrong if value < 0 else right)


def test_edges_of_the_band():
    assert [verdict("difference", 10, x) for x in (7.99, 8.0, 12.0, 12.01)] == [
        SMALLER,
        REPRODUCED,
        REPRODUCED,
        LARGER,
    ]
    assert verdict("ratio", 5.5, 8.14) == LARGER  # "reach only 5-6×"
    assert verdict("difference", 10, 2.0, error=1.0) == NOT  # exactly two standard errors do not exceed them
    assert verdict("difference", 2, 0.0) == NOT  # a tie without noise is no effect
    assert verdict("value", 0.0, 1e-9) == NOT
    assert verdict("value", 0.0, 0.0) == REPRODUCED


@given(paper=st.floats(1.05, 40), value=st.floats(0.05, 60), at_least=st.booleans())
def test_a_launch_bound_ratio_is_decided_only_above_the_band(paper, value, at_least):
    plain = verdict("ratio", paper, value)
    found = verdict("ratio", paper, value, launch_bound=True, at_least=at_least)
    assert found == (LARGER if at_least and plain == LARGER else INCONCLUSIVE)


def test_a_launch_bound_ratio_says_what_it_needs():
    assert judge(Claim("", "ratio", 2.0, None), Reading(0.5, same=True, launch_bound=True)) == (
        INCONCLUSIVE,
        LAUNCH_BOUND,
    )


@pytest.mark.parametrize(("kind", "value"), [("value", float("nan")), ("difference", float("inf")), ("ratio", 0.0)])
def test_what_is_no_measurement_is_refused(kind, value):
    with pytest.raises(ValueError, match="must be"):
        verdict(kind, 2.0, value)


def test_statements():
    assert verdict("statement", 1, 1.0) == REPRODUCED
    assert verdict("statement", 1, 1.0, same=False) == SUPPORTED
    assert verdict("statement", 1, 0.0) == NOT
    assert verdict("statement", 1, 0.0, same=False) == DIFFERS


@given(
    kind=st.sampled_from(["value", "score", "difference", "ratio", "statement"]),
    paper=SIZES,
    value=st.floats(0.01, 60),
    error=ERRORS,
)
def test_other_conditions_neither_confirm_nor_refute(kind, paper, value, error):
    elsewhere = verdict(kind, paper, value, error, same=False)
    assert elsewhere in (SUPPORTED, DIFFERS, INCONCLUSIVE, UNTESTABLE)
    assert verdict(kind, paper, value, error) not in (SUPPORTED, DIFFERS)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'guess'"):
        verdict("guess", 1, 1.0)


def test_the_rule_names_every_verdict():
    text = " ".join(RULE).lower().replace("differs** at", "differs at")
    assert all(verdict in text for verdict in VERDICTS)


def test_a_value_that_means_nothing_elsewhere_is_not_judged_by_chance():
    reading = Reading(4.33, needs="an A100", comparable=False)
    assert judge(Claim("time", "value", 4.33, None), reading) == (UNTESTABLE, "needs an A100")


def test_one_standard_error_for_all():
    a, b = {"x": [1.0, 2.0, 3.0], "y": [10.0, 12.0]}, {"x": [0.0, 0.0], "y": [1.0, 3.0]}
    mean, error = stratified(a)
    assert mean == pytest.approx((2 + 11) / 2)
    assert error == pytest.approx(math.sqrt(1 / 3 + 2 / 2) / 2)
    gap, both = difference(a, b)
    assert gap == pytest.approx(6.5 - 1)
    assert both == pytest.approx(math.hypot(error, math.sqrt(2 / 2) / 2))


def test_committed_effects_are_judged_again_from_the_file():
    """Every committed effect once more, by arithmetic that shares nothing with the package."""
    judged = 0
    for target in read_json(RESULTS / "ledger.json")["targets"].values():
        for row in target["rows"]:
            if row["kind"] not in ("ratio", "difference") or row["ours"] is None or row["launch_bound"]:
                continue
            x, s, p = row["ours"], 2 * row["error"], row["paper"]
            if row["kind"] == "ratio":
                x, s, p = math.log(x), s / x, p and math.log(p)
            same = row["measured"] == "the paper's conditions"
            if abs(x) <= s:
                expected = INCONCLUSIVE if p is None or abs(x - p) <= s else NOT if same else DIFFERS
            elif x < 0:
                expected = NOT if same else DIFFERS
            elif not same:
                expected = SUPPORTED
            elif p is None or abs(x - p) <= s or 0.8 <= x / p <= 1.2:
                expected = REPRODUCED
            else:
                expected = LARGER if x > p else SMALLER
            assert row["verdict"] == expected, row["claim"]
            judged += 1
    assert judged > 20
