"""The parts of the high-resolution study: its schedule, positions and peaks, and one short run on the CPU."""

import dataclasses

import pytest
import torch
from digits.model import smooth_waves
from digits.runs import RUNS, Run
from digits.testing import highest
from digits.training import rate_at, train_run


def test_the_rate_rises_stays_and_falls_to_zero():
    run = Run(lr=2.0, warmup=0.1, flat=0.5)
    shown = [rate_at(run, done) for done in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)]
    assert shown == pytest.approx([0.0, 1.0, 2.0, 2.0, 1.0, 0.0])


@pytest.mark.parametrize("name", RUNS)
def test_the_stages_of_a_run_fill_it_and_end_at_its_side(name):
    assert sum(share for *_, share in RUNS[name].stages) == pytest.approx(1)
    assert RUNS[name].stages[-1][0] == RUNS[name].side


def test_positions_tell_all_places_apart():
    table = smooth_waves((5, 7), 16)
    assert table.shape == (35, 16)
    assert torch.pdist(table).min() > 0.1


def test_the_highest_peaks_are_not_neighbours():
    field = torch.zeros(12, 12)
    field[2, 2], field[2, 3], field[9, 9] = 3.0, 2.9, 1.0
    assert highest(field, 2).tolist() == [2 * 12 + 2, 9 * 12 + 9]


def test_a_short_run_reports_what_the_page_shows(tmp_path):
    stages = ((168, 1, 2, 0.5), (176, 1, 2, 0.5))
    run = dataclasses.replace(RUNS["linear"], stages=stages, side=176, dim=16, depth=2, heads=2, beyond=((180, 2),))
    found = train_run("linear", run, None, tmp_path, seconds=1, length=4, maps=True)
    assert set(found["test"]) == {"majority", "max", "top", "multi", "multi_bits"}
    assert [stage["side"] for stage in found["stages"]] == [168, 176]
    assert list(found["maps"]) == ["layer 1", "layer 2"]
    assert list(found["beyond"]) == [180]
    assert (tmp_path / "linear").exists()
