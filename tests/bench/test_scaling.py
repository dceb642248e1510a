"""Exponents and crossovers."""

import numpy as np
import pytest
from pages.paper_table import measured_crossover
from scipy import stats

from infsa.bench.scaling import slope


def test_the_slope_of_a_power_law():
    tokens = [197, 785, 3137, 12545]
    found = slope(tokens, [3e-4 * n**1.7 for n in tokens])
    assert found.value == pytest.approx(1.7)
    assert found.high - found.low < 1e-6
    assert slope(tokens[:2], [1, 2]) is None


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """95 % of 400 intervals around a known exponent, within four standard deviations of the binomial."""
    rng = np.random.default_rng(0)
    tokens = np.array([256, 512, 1024, 2048, 4096])
    hits = 0
    for _ in range(400):
        found = slope(tokens.tolist(), (tokens**1.0 * np.exp(rng.normal(0, 0.1, 5))).tolist())
        hits += found.low <= 1.0 <= found.high
    assert abs(hits - 380) <= 4 * np.sqrt(400 * 0.95 * 0.05)


def test_the_interval_is_that_of_the_textbook():
    tokens, times = [1, 2, 3, 4], [1.0, 2.5, 2.7, 4.4]
    x, y = np.log(tokens), np.log(times)
    (b, _), covariance = np.polyfit(x, y, 1, cov=True)
    half = stats.t.ppf(0.975, 2) * np.sqrt(covariance[0, 0])
    found = slope(tokens, times)
    assert [found.value, found.low, found.high] == pytest.approx([b, b - half, b + half])


def test_crossovers_lie_on_the_lines():
    a, b = [(100, 4.0), (400, 8.0), (1600, 16.0)], [(100, 1.0), (400, 4.0), (1600, 64.0)]
    n = measured_crossover(a, b)
    assert 400 < n < 1600
    interpolate = lambda points: np.exp(np.interp(np.log(n), *np.log(points).T))  # noqa: E731
    assert interpolate(a) == pytest.approx(interpolate(b))
    assert measured_crossover(b, a) is None
    assert measured_crossover([(1, 1.0), (2, 1.0)], [(1, 2.0), (2, 3.0)]) == 1
    assert measured_crossover([(1, 1.0)], [(2, 1.0)]) is None
