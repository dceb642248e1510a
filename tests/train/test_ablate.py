"""Ablations as data: points, seeds, convergence, deviations; several processes together."""

import json
import statistics

import pytest

from infsa.train import PAPER_SWEEPS, Study
from infsa.train.ablate import epochs_to_convergence, point_name, summarise, vary
from infsa.train.latency import measure_latency
from tests.data.helpers import one_line
from tests.train.helpers import tiny, together


def test_the_papers_sweeps():
    points = Study(tiny(), PAPER_SWEEPS).points
    assert [(p["gamma"], p["activation"]) for p in points] == [
        (0.3, "relu"), (0.5, "relu"), (0.7, "relu"), (0.9, "relu"), (0.7, "gelu"), (0.7, "abs")
    ]  # fmt: skip
    assert Study(tiny()).seeds == 3
    assert (Study(tiny()).warmups, Study(tiny()).timed) == (50, 300)


def test_a_grid_is_every_combination_once():
    study = Study(tiny(), [{"gamma": [0.3, 0.7], "heads": [1, 2]}, {"gamma": [0.7], "heads": [2]}])
    assert study.points == [{"gamma": g, "heads": h} for g in (0.3, 0.7) for h in (1, 2)]
    assert len({point_name(point) for point in study.points}) == 4


def test_names_go_to_the_recipe_the_model_or_its_attention():
    recipe = vary(tiny(), {"decay": 0.3, "heads": 4, "iterations": 2, "lr": 1e-4, "depth": 3})
    assert recipe.lr == 1e-4
    assert recipe.model_options == {
        "depth": 3, "embed_dim": 16, "num_heads": 4, "gamma": 0.3, "attention_options": {"iterations": 2}
    }  # fmt: skip
    assert tiny().model_options["depth"] == 2
    with pytest.raises(ValueError, match=one_line("'colour'")):
        vary(tiny(), {"colour": 1})


@pytest.mark.parametrize("arguments", [{"seeds": 0}, {"grids": []}, {"grids": [{"epochs": [0]}]}])
def test_an_impossible_study_is_one_line(arguments):
    with pytest.raises(ValueError, match=one_line("")):
        Study(tiny(), **arguments)


def test_convergence_is_the_first_epoch_within_half_a_point_of_the_last():
    def history(*values):
        return [{"epoch": epoch, "top1": value} for epoch, value in enumerate(values, start=1)]

    assert epochs_to_convergence(history(0.5, 0.694, 0.695, 0.7)) == 3
    assert epochs_to_convergence(history(0.7, 0.1, 0.7)) == 1
    assert epochs_to_convergence(history(0.9, 0.7)) == 2  # better than the last is not converged to it
    assert epochs_to_convergence(history(0.2)) == 1


def test_mean_and_sample_deviation_of_what_all_seeds_have():
    found = summarise([{"a": 1.0, "b": 2.0}, {"a": 3.0}, {"a": 8.0, "b": 0.0}])
    assert found["mean"] == {"a": 4.0}
    assert found["deviation"] == {"a": pytest.approx(statistics.stdev([1, 3, 8]))}
    assert summarise([{"a": 1.0}])["deviation"] == {"a": 0.0}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_latencies_are_measured(precision):
    found = measure_latency(tiny(precision=precision), classes=4, batch=2, warmups=1, timed=2)
    assert min(found["train_ms"], found["infer_ms"]) > 0
    assert (found["batch"], found["warmups"], found["timed"]) == (2, 1, 2)


def study_here(out):
    from infsa.train import run_study

    run_study(Study(tiny(), [{"gamma": [0.3, 0.7]}], seeds=1, timed=0), out)


def test_a_study_in_two_processes(tmp_path):
    assert together(2, study_here, tmp_path, limit=60) == [0, 0]
    summary = json.loads((tmp_path / "ablation.json").read_text())
    assert [row["point"]["gamma"] for row in summary["rows"]] == [0.3, 0.7]
