"""infsa ablate: points and seeds in one table, each run kept, and nothing of the command line ignored."""

import contextlib
import io
import json
import shutil
import sys

import pytest
from PIL import Image

from infsa.cli.ablate import parse_grid
from infsa.cli.app import main
from tests.cli.test_cli import run
from tests.train.helpers import options

SMALL = [*options(epochs=2, batch_size=24), "--timed", "0", "--quality-images", "0"]


def ablate(monkeypatch, capsys, out, *words):
    return run(monkeypatch, capsys, "ablate", *SMALL, "--out", str(out), *map(str, words))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two activations, one without a map, two seeds, everything measured."""
    out, text = tmp_path_factory.mktemp("study") / "out", io.StringIO()
    words = ["--grid", "activation=relu,gelu", "--seeds", "2", "--timed", "2", "--warmups", "1", "--latency-batch", "2"]
    words = ["infsa", "ablate", *SMALL, "--quality-images", "3", *words, "--out", str(out)]
    words += ["--model", "infvit_pure_tiny"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.setattr(sys, "argv", words)
        patch.setenv("COLUMNS", "250")
        with pytest.raises(SystemExit) as stop:
            main()
    return out, words[1:], stop.value.code, text.getvalue()


def test_the_table(study):
    _, _, code, text = study
    assert code == 0
    for word in ("activation", "top-1, %", "box ROC, %", "box AP, %", "epochs to conv.", "train, ms", "infer, ms"):
        assert word in text
    assert "mean ± deviation over 2 seeds" in text


def test_the_file_has_every_number(study):
    summary = json.loads((study[0] / "ablation.json").read_text())
    relu, gelu = summary["rows"]
    assert (relu["point"], gelu["point"]) == ({"activation": "relu"}, {"activation": "gelu"})
    for row in (relu, gelu):
        assert len(row["seeds"]) == 2
        values = [seed["val_loss"] for seed in row["seeds"]]
        assert row["mean"]["val_loss"] == pytest.approx(sum(values) / 2)
        assert row["deviation"]["val_loss"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert {"train_ms", "infer_ms", "warmups", "timed", "batch"} <= set(row["latency"])
        assert 1 <= row["mean"]["epochs_to_convergence"] <= 2
    assert relu["seeds"][0]["val_loss"] != relu["seeds"][1]["val_loss"]
    assert relu["seeds"][0]["val_loss"] != gelu["seeds"][0]["val_loss"]
    assert summary["made_with"]["torch"]
    assert summary["recipe"]["epochs"] == 2


def test_every_activation_has_map_columns(study):
    """The negative weights of GELU are clamped, as in the paper."""
    for row in json.loads((study[0] / "ablation.json").read_text())["rows"]:
        assert {"roc_auc", "average_precision"} <= set(row["mean"])
    lines = [line for line in study[3].splitlines() if line.split()[:1] in (["relu"], ["gelu"])]
    assert len({line.count("±") for line in lines}) == 1


def test_the_figure(study):
    with Image.open(study[0] / "ablation.png") as figure:
        assert min(figure.size) > 300


def test_the_same_command_trains_nothing_again(study, monkeypatch, capsys):
    out, words, _, _ = study
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.parent != out}
    code, text, err = run(monkeypatch, capsys, *words, "--json")
    assert (code, err) == (0, "")
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.parent != out}
    assert {path.relative_to(out): time for path, time in before.items()} == {
        path.relative_to(out): time for path, time in after.items()
    }
    assert json.loads(text) == json.loads((out / "ablation.json").read_text())


def test_results_of_another_recipe_are_not_taken_for_this_one(study, monkeypatch, capsys):
    """What is in the folder was trained for 2 epochs."""
    code, text, err = run(monkeypatch, capsys, *study[1], "--epochs", "3", "--json")
    if code == 0:
        assert json.loads(text)["recipe"]["epochs"] == 2
    assert code == 0 or err.count("\n") == 1
    assert json.loads((study[0] / "ablation.json").read_text())["recipe"]["epochs"] == 2


@pytest.mark.parametrize(("option", "field"), [("--timed", "timed"), ("--latency-batch", "batch")])
def test_latencies_with_other_settings_are_not_reused(option, field, study, monkeypatch, capsys):
    code, text, _ = run(monkeypatch, capsys, *study[1], option, "3", "--json")
    assert code != 0 or json.loads(text)["rows"][0]["latency"][field] == 3


def test_a_cut_off_study_goes_on(study, monkeypatch, capsys, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(study[0], out)
    shutil.rmtree(out / "activation=gelu" / "seed-1")
    (out / "activation=gelu" / "seed-0" / "result.json").unlink()
    words = [str(out) if word == str(study[0]) else word for word in study[1]]
    assert run(monkeypatch, capsys, *words, "--json")[0] == 0
    old, new = (json.loads((folder / "ablation.json").read_text())["rows"] for folder in (study[0], out))
    for one, two in zip(old, new, strict=True):
        assert [s["val_loss"] for s in one["seeds"]] == [s["val_loss"] for s in two["seeds"]]


@pytest.mark.parametrize(
    "grid", ["heads=2,3", "batch_size=24,1000", "gamma=0.3,1.7", "activation=relu,tanh", "gamma=0.3,"]
)
def test_a_grid_with_an_impossible_point_trains_nothing(grid, monkeypatch, capsys, tmp_path):
    code, _, err = ablate(monkeypatch, capsys, tmp_path / "out", "--grid", grid, "--seeds", "1")
    assert code != 0
    assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("words", [["--grid", "seed=3,4"], ["--seed", "5", "--grid", "gamma=0.3"]])
def test_a_seed_is_honoured_or_refused(words, monkeypatch, capsys, tmp_path):
    code, _, _ = ablate(monkeypatch, capsys, tmp_path / "out", *words, "--seeds", "1")
    seeds = {json.loads(path.read_text())["recipe"]["seed"] for path in tmp_path.rglob("result.json")}
    assert code != 0 or seeds in ({3, 4}, {5})


def test_a_name_given_twice_loses_no_value(monkeypatch, capsys, tmp_path):
    words = ["--grid", "gamma=0.3", "--grid", "gamma=0.5", "--seeds", "1", "--json"]
    code, text, _ = ablate(monkeypatch, capsys, tmp_path / "out", *words)
    assert code != 0 or [row["point"]["gamma"] for row in json.loads(text)["rows"]] == [0.3, 0.5]


def test_a_grid_is_read_as_numbers_and_words():
    assert parse_grid(["gamma=0.3,0.7", "activation=relu,abs"]) == {"gamma": [0.3, 0.7], "activation": ["relu", "abs"]}


def test_help_has_an_example(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "ablate", "--help")
    assert code == 0
    assert "Example: infsa ablate" in " ".join(out.split())
