"""A run that has not ended stands for its best model so far; one without says how to go on."""

import json
import shutil

import pytest
from PIL import Image

from tests.cli.test_cli import run
from tests.train.helpers import options


@pytest.fixture
def stopped(monkeypatch, capsys, tmp_path):
    """A run as an interruption after its second epoch of four leaves it."""
    out = tmp_path / "run"
    assert run(monkeypatch, capsys, "train", *options(epochs=2), "--out", str(out))[0] == 0
    shutil.rmtree(out / "model")
    (out / "result.json").unlink()
    recipe = json.loads((out / "recipe.json").read_text())
    (out / "recipe.json").write_text(json.dumps({**recipe, "epochs": 4}))
    return out


def commands(run, folder):
    Image.new("RGB", (40, 30), "red").save(folder / "a.png")
    picture, device = str(folder / "a.png"), ["--device", "cpu"]
    return {
        "evaluate": ["--model", run, "--workers", "0", *device],
        "predict": [picture, "--model", run, *device],
        "explain": [picture, "--model", run, "--out", str(folder / "maps"), *device],
        "export": ["--model", run, "--out", str(folder / "exported")],
        "embed": [picture, "--model", run, "--out", str(folder / "a.parquet"), *device],
        "stream": [picture, "--model", run, *device],
    }


@pytest.mark.parametrize("name", ["evaluate", "predict", "explain", "export", "embed", "stream"])
def test_the_best_model_is_taken_and_said(name, stopped, monkeypatch, capsys, tmp_path):
    note = f"note: {stopped} holds an unfinished run (epoch 2 of 4): taking {stopped / 'checkpoints' / 'best'}; infsa "
    for given in (stopped, stopped / "model"):
        code, _, err = run(monkeypatch, capsys, name, *commands(str(given), tmp_path)[name])
        assert code == 0, err
        assert f"{note}train --resume --out {stopped} continues it\n" in err
        shutil.rmtree(tmp_path / "exported", ignore_errors=True)


@pytest.mark.parametrize("name", ["evaluate", "predict", "explain", "export", "embed", "stream"])
def test_without_one_it_is_one_line(name, stopped, monkeypatch, capsys, tmp_path):
    shutil.rmtree(stopped / "checkpoints" / "best")
    with open(stopped / "log.jsonl", "a") as log:
        log.write('{"kind": "tra')  # a run that is writing it
    code, _, err = run(monkeypatch, capsys, name, *commands(str(stopped), tmp_path)[name])
    said = f"infsa: {stopped} holds an unfinished run (epoch 2 of 4) without a validated model; "
    assert (code, err) == (1, f"{said}infsa train --resume --out {stopped} continues it\n")
