"""Estimates from some of the tiles: intervals that hold the answer as often as they say, and close on it."""

import pytest
import torch

import infsa
from infsa.streaming import estimate
from infsa.streaming.estimate import GROUPS, half_width, jackknife_weights, t_quantile

from .helpers import picture, relative, small


def test_all_tiles_give_the_exact_answer():
    model, x = small(), picture()
    found = estimate(model, x, 1.0, tile=8)
    assert relative(found.logits, infsa.stream(model, x).logits) < 1e-10
    assert torch.equal(found.low, found.high)


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg", "class_token": False}])
def test_intervals_narrow_and_hold_the_answer(options):
    """At 99 %, all of them; how often 90 % holds on a photograph is measured by benchmarks/streaming.py."""
    model, x = small(depth=2, **options), picture(80, 80)
    exact = infsa.stream(model, x).logits
    widths = []
    for share in (0.2, 0.5, 0.9):
        found = [estimate(model, x, share, tile=8, seed=seed, confidence=0.99) for seed in range(2)]
        widths.append(torch.cat([one.high - one.low for one in found]).mean())
        assert all(((one.low <= exact) & (exact <= one.high)).all() for one in found)
    assert widths[0] > widths[1] > widths[2] > 0


def test_the_interval_of_a_mean_is_the_textbooks():
    """A linear statistic: ȳ ± t s/√n √(1 − n/T), where each group is one tile; scipy knows t."""
    stats = pytest.importorskip("scipy.stats")
    y = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = torch.randperm(50, generator=torch.Generator().manual_seed(1))[:GROUPS]
    found = half_width(jackknife_weights(drawn, 50) @ y / 50, GROUPS, 50, 0.9)
    expected = stats.t.ppf(0.95, GROUPS - 1) * y[drawn].std(0) / GROUPS**0.5 * (1 - GROUPS / 50) ** 0.5
    assert torch.allclose(found[0], expected, rtol=2e-3)  # that of t_quantile


@pytest.mark.parametrize(("count", "total"), [(10, 40), (30, 40), (200, 2000)])
def test_coverage_of_a_mean_is_what_it_says(count, total):
    """Normal tiles: error over spread follows Student's t exactly, however many are drawn, so 90 % hold; ± 4 σ."""
    trials = 4000
    y = torch.randn(total, trials, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = jackknife_weights(torch.arange(count), total) @ y / total
    held = (logits[0] - y.mean(0)).abs() <= half_width(logits, count, total, 0.9)[0]
    assert abs(held.double().mean() - 0.9) < 4 * (0.9 * 0.1 / trials) ** 0.5


def test_a_bias_widens_the_interval():
    """θ = ȳ²: its expectation is off by the variance of ȳ, which the interval counts in."""
    y = torch.randn(40, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squares = (jackknife_weights(torch.arange(GROUPS), 40) @ y / 40).square()
    held = (squares[0] - y.mean(0).square()).abs() <= half_width(squares, GROUPS, 40, 0.9)[0]
    apart = squares[1:] - squares[:1]
    alone = t_quantile(0.95, GROUPS - 1) * (0.75 * 0.9 * apart.square().sum(0)).sqrt()
    without = (squares[0] - y.mean(0).square()).abs() <= alone
    assert without.double().mean() < held.double().mean()


def test_larger_shares_contain_smaller_ones():
    drawn = [torch.randperm(50, generator=torch.Generator().manual_seed(3))[:count] for count in (10, 30)]
    assert set(drawn[0].tolist()) < set(drawn[1].tolist())
    found = estimate(small(), picture(), 0.3, tile=8, seed=3)
    assert found.tiles == round(0.3 * 130)


def test_weights_sum_to_the_number_of_tiles():
    weights = jackknife_weights(torch.randperm(100)[:37], 100)
    assert torch.allclose(weights.sum(1), torch.full((11,), 100.0, dtype=torch.float64))
    assert ((weights[1:] == 0) & (weights[0] > 0)).sum() == 37  # every drawn tile is left out once


def test_t_quantile_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    for probability in (0.6, 0.9, 0.95, 0.975, 0.995):
        assert t_quantile(probability, 9) == pytest.approx(stats.t.ppf(probability, 9), rel=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share must lie"),
        ({"share": 1.1}, "share must lie"),
        ({"share": 0.5, "confidence": 1}, "confidence must lie"),
        ({"share": 0.02, "tile": 8}, "an interval needs 10 tiles or all"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        estimate(small(), picture(), **options)
    with pytest.raises(ValueError, match="got 'max'"):
        estimate(small(global_pool="max"), picture(), 0.5)
