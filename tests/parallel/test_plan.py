"""The scale plan's parts against theory, and the committed bytes against their formulas."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from infsa.files import read_json

ROOT = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def plan():
    spec = importlib.util.spec_from_file_location("scale_plan", ROOT / "scale_plan.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_one_server_waits_as_queueing_theory_says(plan):
    """Random arrivals, fixed service (M/D/1): the mean delay is s + ρ s / 2(1 − ρ), here within 0.15 % over seeds."""
    seconds, hourly = 2.0, 900
    load = hourly * seconds / 3600
    busy, delays = plan.simulate_load(seconds, teams=1, hourly=hourly, hours=400, seed=0)
    assert np.mean(delays) == pytest.approx(seconds + load * seconds / (2 * (1 - load)), rel=0.01)
    assert busy == pytest.approx(load, rel=0.01)


def test_equal_devices_share_the_work(plan):
    """Without jitter and network, eight devices take an eighth of the time and keep an eighth of the tokens."""
    rate = plan.Rate("a device", "infvit_linear_tiny", "spill", "float32", 0.5, 12e6)
    still, rng = plan.Network(latency=0.0, bandwidth=float("inf")), np.random.default_rng(0)
    one, eight = (plan.one_image(rate, 6400, team, still, (6, 1e4), 0.0, rng) for team in (1, 8))
    assert one["seconds"] == pytest.approx(0.5 * 6.4**2)
    assert eight["seconds"] == pytest.approx(one["seconds"] / 8)
    assert eight["bytes_kept_per_device"] == pytest.approx(one["bytes_kept_per_device"] / 8)
    assert eight["seconds_talking"] == eight["seconds_waiting"] == 0


def test_committed_plan_is_made_from_the_committed_measurements(plan):
    committed = read_json(ROOT / "results" / "scale-plan.json")["large"]
    fields = plan.Rate.__dataclass_fields__
    rates = [plan.Rate(**{name: row[name] for name in fields}) for row in committed if row["team"] == 1]
    assert rates == plan.read_rates(ROOT / "results")


def test_committed_bytes_follow_the_formulas():
    for row in read_json(ROOT / "results" / "communication.json")["rows"]:
        heads, width, ranks = row["heads"], row["dim"] // row["heads"], row["ranks"]
        for direction, gradients in (("forward", 0), ("backward", 1)):
            added, sent = (row[f"{direction}_{kind}_bytes"] for kind in ("all_reduce", "send"))
            if row["attention"] == "infsa_linear":
                assert (added, sent) == (4 * heads * (2 * width + 3), 0)
            else:
                block = 4 * 2 * row["dim"] * row["tokens"] // ranks
                integers = 8 * ranks if direction == "forward" else 0  # ranks tell each other their tokens
                assert (added, sent) == (8 * heads + integers, (ranks - 1 + gradients * ranks) * block)
