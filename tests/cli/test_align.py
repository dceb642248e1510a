"""infsa align: the table has its baselines, and numbers equal the library's."""

import json

import pytest

import infsa
from infsa.evaluate import Subject, align, data_config
from tests.cli.test_cli import run
from tests.models.helpers import small


@pytest.fixture
def checkpoint(tmp_path):
    return str(infsa.models.save_weights(small("infsa_linear"), tmp_path / "infsa_linear-0"))


def test_table(monkeypatch, capsys, tmp_path, checkpoint):
    monkeypatch.setenv("COLUMNS", "150")
    arguments = ["-m", checkpoint, "--data", "shapes", "--limit", "2", "--out", str(tmp_path / "out")]
    code, text, err = run(monkeypatch, capsys, "align", *arguments)
    assert (code, err) == (0, "")
    for word in ("uniform", "energy", "power, 2 steps", "a, 3 iterations", "blocks.1.attn", "degenerate", "align.json"):
        assert word in text
    assert (tmp_path / "out" / "alignment.png").exists()


def test_numbers_equal_the_library(monkeypatch, capsys, tmp_path, checkpoint):
    arguments = ["-m", checkpoint, "--data", "shapes", "--limit", "5000", "--samples", "0", "--json"]
    monkeypatch.setattr("infsa.data.shapes.LENGTHS", {"train": 2, "val": 2})
    code, out, _ = run(monkeypatch, capsys, "align", *arguments, "--out", str(tmp_path / "out"))
    assert code == 0
    found = json.loads(out)["groups"]["infsa_linear"]["layers"]["blocks.1.attn"]
    from infsa.data import Shapes, Views, collate, transform_for

    model = Subject.of(checkpoint).load()
    views = Views(Shapes(split="val", length=2), transform_for(data_config(model), train=False))
    expected = align(model, collate([views[0], views[1]]).images)["blocks.1.attn"]
    assert found["samples"]["mean"] == 8
    assert found["cosine"]["a"]["mean"] == pytest.approx(float(expected.cosine["a"].mean()), abs=1e-5)
    assert found["ratio"]["mean"] == pytest.approx(float(expected.ratio.mean()), abs=1e-5)


def test_a_mechanism_without_queries_fails_in_one_line(monkeypatch, capsys, tmp_path):
    path = str(infsa.models.save_weights(small("mean"), tmp_path / "mean-0"))
    arguments = ["-m", path, "--data", "shapes", "--limit", "2", "--out", str(tmp_path / "out")]
    code, _, err = run(monkeypatch, capsys, "align", *arguments)
    assert code == 1
    assert "no attention layer" in err
    assert err.count("\n") == 1
