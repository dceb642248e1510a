"""``infsa bench``: what it plans, measures, writes and refuses."""

import json

from .test_cli import run

TINY = ["--config", "1L-2H-32", "--resolution", "64", "--resolution", "32x96", "--seconds", "0.01", "--rounds", "2"]


def test_a_run_from_the_beginning_to_a_comparison(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "bench.json"
    command = ["bench", *TINY, "--mechanism", "infsa_linear", "--mechanism", "softmax-naive", "--mode", "train",
               "--device", "cpu", "--out", str(out)]  # fmt: skip
    code, printed, _ = run(monkeypatch, capsys, *command)
    assert code == 0
    for text in ("Linear-InfSA", "softmax (unfused)", "1L-2H-32/train/32x96", "Known matrix product", "bench.csv"):
        assert text in printed
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 4
    assert {row["status"] for row in rows.values()} == {"done"}
    assert all(row["latency_ms"]["median"] > 0 and row["macs"] > 0 for row in rows.values())
    assert len((tmp_path / "bench.csv").read_text().splitlines()) == 5

    code, printed, _ = run(monkeypatch, capsys, *command, "--json")  # nothing is left to do
    assert (code, json.loads(printed)["rows"]) == (0, rows)

    code, printed, _ = run(monkeypatch, capsys, "bench", "--compare", str(out), str(out), "--json")
    assert code == 0
    assert {row["ms_ratio"] for row in json.loads(printed)} == {1.0}
    code, printed, _ = run(monkeypatch, capsys, "bench", "--compare", str(out), str(out))
    assert "1.000" in printed
    assert "Rows that only one file has: 0 and 0." in " ".join(printed.split())


def test_plans_can_be_read_before_they_run(monkeypatch, capsys):
    code, printed, _ = run(monkeypatch, capsys, "bench", "--preset", "table1", "--plan", "--json")
    keys = json.loads(printed)
    assert (code, len(keys)) == (0, len(set(keys)))
    assert keys[0] == "model/4L-64H/infer/1024x1024/b1/bfloat16/infsa_linear"
    for row in ("24L-16H/train/512x512", "24L-16H/infer/9216x9216", "4L-64H/train/4096x4096"):
        assert f"model/{row}/b1/bfloat16/infsa_linear" in keys
    code, printed, _ = run(monkeypatch, capsys, "bench", "--quick", "--mechanism", "soft", "--plan")
    assert code == 0
    assert all(key.endswith("/soft") for key in printed.split())


def test_a_run_without_a_single_number_has_failed(monkeypatch, capsys, tmp_path):
    command = ["bench", *TINY, "--mechanism", "softmax-cudnn", "--device", "cpu", "--out", str(tmp_path / "b.json")]
    code, printed, _ = run(monkeypatch, capsys, *command)
    assert code == 1
    assert "failed" in printed


def test_files_that_are_no_results(monkeypatch, capsys, tmp_path):
    (tmp_path / "a.json").write_text('{"format": 1, "rows": {}}')
    code, _, error = run(monkeypatch, capsys, "bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert code == 1
    assert "no measured row in common" in error
    code, _, error = run(monkeypatch, capsys, "bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "no.json"))
    assert code == 1
    assert "no.json" in error
