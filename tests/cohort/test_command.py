"""infsa embed: one table, a summary or a plan, and one line for every mistake."""

import json
import os

import pyarrow.parquet as pq

from infsa.cohort.table import Store
from tests.cli.test_cli import run
from tests.cohort.conftest import noise


def test_a_summary_says_how_it_went(monkeypatch, capsys, folder, model, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    out = tmp_path / "a.parquet"
    arguments = ("embed", str(folder), "-m", model, "--out", str(out))
    code, text, _ = run(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "failed: 6   kept: 0" in text
    assert text.count("\nfailed: ") == 6
    assert pq.read_metadata(out).num_rows == 36
    code, text, _ = run(monkeypatch, capsys, *arguments, "--json")
    found = json.loads(text)
    assert (code, found["rows"], found["kept"], found["computed"]) == (0, 36, 36, 0)
    assert found["table"] == str(out)


def test_a_plan_writes_nothing(monkeypatch, capsys, folder, model, tmp_path):
    noise(128, 128).save(tmp_path / "large.png")
    arguments = ("embed", str(folder), str(tmp_path / "large.png"), "-m", model, "--out", str(tmp_path / "a.parquet"))
    monkeypatch.setattr("infsa.cohort.network.MAX_PIXELS", 10_000)
    code, text, _ = run(monkeypatch, capsys, *arguments, "--plan", "--tile", "64", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["images"] == {"batched": 32, "streamed": 1, "unread": 4}
    assert found["total_seconds"] > 0
    assert os.listdir(tmp_path) == ["large.png"]
    code, text, _ = run(monkeypatch, capsys, *arguments, "--plan", "--tile", "64")
    assert "streamed" in text
    assert "by a short measurement" in text
    single = ("embed", str(tmp_path / "large.png"), *arguments[3:])
    monkeypatch.undo()
    text = run(monkeypatch, capsys, *single, "--plan")[1]
    assert "1 batch of 1 size" in text
    assert "with 1 worker," in text


def test_interrupted_it_goes_on(monkeypatch, capsys, folder, model, tmp_path):
    out = tmp_path / "a.parquet"
    arguments = ("embed", str(folder), "-m", model, "--batch-size", "1", "--out", str(out))
    with monkeypatch.context() as patch:
        add, calls = Store.add, []

        def interrupted(self, name, table):
            calls.append(name)
            if len(calls) == 3:
                raise KeyboardInterrupt
            add(self, name, table)

        patch.setattr(Store, "add", interrupted)
        code, _, err = run(monkeypatch, capsys, *arguments)
    assert (code, err) == (130, "infsa: interrupted\n")
    assert not out.exists()
    code, text, _ = run(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    assert json.loads(text)["kept"] > 0
    assert pq.read_metadata(out).num_rows == 36


def test_no_image_at_all_is_a_failure(monkeypatch, capsys, model, tmp_path):
    (tmp_path / "a.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    out = ("-m", model, "--out", str(tmp_path / "a.parquet"))
    assert run(monkeypatch, capsys, "embed", str(tmp_path / "a.png"), *out)[0] == 1
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 1
    code, _, err = run(monkeypatch, capsys, "embed", str(tmp_path / "empty"), *out)
    assert (code, err) == (1, f"infsa: {tmp_path / 'empty'}: no images in this folder\n")
