"""What is said about times."""

import statistics

import numpy as np
import pytest
import torch

from infsa.bench.timing import calls_for, check_gemm, describe, median_milliseconds, time_calls


def test_quartiles_are_numpys():
    times = np.random.default_rng(0).lognormal(size=101).tolist()
    found = describe([times[:50], times[50:]])
    assert [found[name] for name in ("p25", "median", "p75")] == pytest.approx(np.percentile(times, [25, 50, 75]))
    assert (found["min"], found["max"], found["count"]) == (min(times), max(times), 101)
    assert found["rounds"] == [statistics.median(times[:50]), statistics.median(times[50:])]


def test_far_times_are_counted_not_dropped():
    found = describe([[1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 9.0]])
    assert (found["outliers"], found["max"]) == (1, 9.0)


@pytest.mark.parametrize(
    ("medians", "drift"),
    [((1, 1, 1.04), False), ((1, 1, 1.06), True), ((1, 1, 0.94), True), ((1, 1.3, 1), True), ((1, 1.03, 1.06), True)],
)
def test_rounds_that_differ_are_drift(medians, drift):
    assert describe([[median] for median in medians])["drift"] is drift


def test_one_time_is_its_own_quartiles():
    found = describe([[3.0]])
    assert {found[name] for name in ("median", "p25", "p75", "min", "max")} == {3.0}
    assert not found["drift"]


def test_calls_fill_the_time():
    assert calls_for(0.5, 10.0) == 50
    assert calls_for(0.5, 10_000.0) == 1
    assert calls_for(0.5, 0.0) == 500


def test_every_call_is_timed_after_the_warm_ups(monkeypatch):
    clock = iter([0, 1, 0, 3, 0, 2])
    monkeypatch.setattr("infsa.bench.timing.time.perf_counter", lambda: next(clock))
    calls = []
    found = median_milliseconds(lambda: calls.append(1), torch.device("cpu"), warmups=2, timed=3)
    assert (found, len(calls)) == (2000, 5)


def test_the_harness_and_a_direct_measurement_time_the_same_product():
    """That both exist and are positive; how close they are is written into every result file."""
    found = check_gemm(torch.device("cpu"), 64)
    assert found["ratio"] > 0
    assert found["tflops"] == pytest.approx(2 * 64**3 / found["harness_ms"] / 1e9)
    assert len(time_calls(lambda: None, torch.device("cpu"), 4)) == 4


def test_the_known_product_is_compared_with_its_neighbour_in_time(monkeypatch):
    """A machine that slows down to a third, evenly: both ways see it, their ratio does not."""
    now, speed = 0.0, 1.0

    def multiply(a, b):
        nonlocal now, speed
        now, speed = now + speed, speed * 1.0001

    monkeypatch.setattr("infsa.bench.timing.torch.mm", multiply)
    monkeypatch.setattr("infsa.bench.timing.time.perf_counter", lambda: now)
    monkeypatch.setattr("infsa.bench.timing.calls_for", lambda *_: 200)
    found = check_gemm(torch.device("cpu"), 8)
    assert speed > 3
    assert found["ratio"] == pytest.approx(1, abs=0.01)  # either comes first as often as the other
