"""Estimates from some of the tiles: intervals that hold the answer as often as they say, and close on it."""

import pytest
import torch

import infsa
from infsa.streaming import estimate
from infsa.streaming.estimate import jackknife_weights, t_quantile

from .helpers import picture, relative, small


def test_all_tiles_give_the_exact_answer():
    model, x = small(), picture()
    found = estimate(model, x, 1.0, tile=8)
    assert relative(found.logits, infsa.stream(model, x).logits) < 1e-10
    assert torch.equal(found.low, found.high)


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg", "class_token": False}])
def test_intervals_narrow_and_hold_the_answer(options):
    """How often they hold is measured by benchmarks/streaming.py; here, that they do more often than not."""
    model, x = small(depth=2, **options), picture(80, 80)
    exact = infsa.stream(model, x).logits
    widths, held = [], []
    for share in (0.2, 0.5, 0.9):
        found = [estimate(model, x, share, tile=8, seed=seed) for seed in range(4)]
        widths.append(torch.cat([one.high - one.low for one in found]).mean())
        held += [(one.low <= exact) & (exact <= one.high) for one in found]
    assert widths[0] > widths[1] > widths[2] > 0
    assert torch.cat(held).double().mean() > 0.5


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
