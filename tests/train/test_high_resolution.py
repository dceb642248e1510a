"""The parts of the high-resolution study: its schedule, positions and peaks, and one short run on the CPU."""

import dataclasses
import types

import pytest
import torch
from digits import streamed
from digits.model import build, predict, smooth_waves
from digits.runs import DATA, RUNS, Run
from digits.step import as_rows, weighted_loss
from digits.testing import highest
from digits.training import rate_at, train_run
from pages.high_resolution import larger_table

from infsa.data.mnist import read_digits
from infsa.files import read_json
from tests.data.test_megapixel import write_mnist
from tests.scripts import load_script


def test_the_rate_rises_stays_and_falls_to_zero():
    run = Run(lr=2.0, warmup=0.1, flat=0.5)
    shown = [rate_at(run, done) for done in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)]
    assert shown == pytest.approx([0.0, 1.0, 2.0, 2.0, 1.0, 0.0])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_starts_from_one_before_it_that_is_kept(name):
    start = RUNS[name].start
    if start:
        assert list(RUNS).index(start) < list(RUNS).index(name)
        assert (RUNS[start].seed, RUNS[start].attention) == (RUNS[name].seed, RUNS[name].attention)
        assert RUNS[start].keep or name == "linear-3000"  # measured before its start was kept


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


def test_rows_of_larger_images_say_their_seed():
    scores = {"majority": 1.0, "max": 1.0, "top": 1.0, "multi": 1.0}
    rows = {
        name: {"run": dataclasses.asdict(RUNS[name]), "stages": [{}], "history": [], "beyond": {"3000": scores}}
        for name in ("linear", "linear@1")
    }
    found = larger_table(rows)
    assert "| Linear-InfSA, seed 0 |" in found
    assert "| Linear-InfSA, seed 1 |" in found
    assert "seed" not in larger_table({"linear": rows["linear"]})


TINY = {"dim": 16, "depth": 2, "heads": 2, "mlp_ratio": 1.0, "tested": 2, "beyond": ()}
BELOW = {1500: 176, 3000: 184, 6000: 200, 4000: 232}


def tiny(run):
    """The same run on images of some pixels."""
    side = BELOW[run.side]
    return dataclasses.replace(
        run, **TINY, side=side, stages=((side, 1, 2, 1.0),), shown=min(run.shown, 48), seconds=0.1
    )


@pytest.fixture
def study(monkeypatch):
    """The script, with tiny runs."""
    script = load_script("high_resolution")
    monkeypatch.setattr(script, "RUNS", {name: tiny(run) for name, run in RUNS.items()})
    return script


def measure(script, tmp_path, names, **options):
    """Train rows; returns the results and the file."""
    usual = {"mnist": str(tmp_path / "mnist"), "out": tmp_path / "out", "to": tmp_path / "found.json", "length": 4}
    if not (tmp_path / "mnist").exists():
        write_mnist(tmp_path / "mnist", packed=False, count=120)
    defaults = {"seconds": 0, "limit": 0, "maps": True, "choose": False, "change": None}
    script.train(names, **(usual | defaults | options))
    return read_json(usual["to"]) if usual["to"].exists() else {}


@pytest.mark.parametrize("name", RUNS)
def test_every_row_learns_from_its_data(name):
    run = tiny(RUNS[name])
    data = DATA[run.data](side=run.side, noise=1, length=2)
    images, answers, _ = data.compose(torch.arange(2))
    model = build(run, torch.device("cpu"))
    rows = as_rows(answers, data.tasks)
    assert rows.shape == (2, data.tasks.outputs)
    weighted_loss(run, data.tasks, predict(model, run, images), rows).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_rows_are_measured_once_and_in_order(study, tmp_path, capsys):
    names = ["linear", "linear@1", "mlla", "linear-streamed@1", "linear-sums"]
    found = measure(study, tmp_path, names)
    assert list(found) == names, capsys.readouterr().out
    for name, row in found.items():
        tasks = {"sum"} if name.endswith("sums") else {"majority", "max", "top", "multi", "multi_bits"}
        assert set(row["test"]) == tasks
        assert row["wall_seconds"] > 0
        assert ("example" in row) == (name == "linear")
    assert isinstance(found["linear@1"]["maps"], dict)
    assert "no attention map" in found["mlla"]["maps"]
    assert found["linear-streamed@1"]["stages"][0]["strategy"] in ("spill", "recompute")
    assert "measured before" not in capsys.readouterr().out
    assert measure(study, tmp_path, names) == found
    told = capsys.readouterr().out
    assert told.count("measured before") == len(names)
    assert told.splitlines()[-1].startswith("linear-sums")


def test_a_row_that_fails_or_has_no_time_leaves_the_others(study, tmp_path, capsys):
    study.RUNS["mean"] = dataclasses.replace(study.RUNS["mean"], seconds=600)
    found = measure(study, tmp_path, ["linear-3000@1", "mean", "linear-patches"], limit=500)
    assert list(found) == ["linear-patches"]  # the first has nothing to start from
    told = capsys.readouterr().out
    assert "linear-3000@1: FileNotFoundError" in told
    assert "mean: no time left" in told


def test_after_a_streamed_row_that_fails_the_next_has_all_memory(monkeypatch):
    caps, whole = [], types.SimpleNamespace(total_memory=7)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    monkeypatch.setattr(streamed, "cap_memory", lambda device, cap: caps.append(cap))
    with pytest.raises(MemoryError), streamed.limited(torch.device("cuda"), 4):
        raise MemoryError
    assert caps == [4, 7]


def test_choices_are_made_on_held_out_training_digits(study, tmp_path):
    found = measure(study, tmp_path, ["linear"], choose=True, change=["lr=0.002"])
    assert list(found) == ["linear chosen by lr=0.002"]
    assert found["linear chosen by lr=0.002"]["run"]["lr"] == 0.002
    whole, kept, held = (
        {one.tobytes() for one in read_digits(folder, split).pixels}
        for folder, split in (
            (tmp_path / "mnist", "train"),
            (tmp_path / "out" / "choice", "train"),
            (tmp_path / "out" / "choice", "val"),
        )
    )
    assert kept | held == whole
    assert not kept & held
    assert len(held) == 20


def test_other_settings_do_not_enter_the_committed_results(study, tmp_path):
    with pytest.raises(study.typer.BadParameter, match="needs --choose"):
        measure(study, tmp_path, ["linear"], to=study.RESULTS, change=["lr=0.002"])
    with pytest.raises(study.typer.BadParameter, match="'other' is no row"):
        measure(study, tmp_path, ["other"])
