"""A run survives its rows: whatever one does, the others are measured and the file is whole."""

import json
import signal
import subprocess
import sys
import time

import pytest

from infsa.bench.results import COLUMNS, Results, read_results
from infsa.bench.suite import Settings, run_plan

from .helpers import HERE, cases, rows_by_name, run


def test_every_kind_of_failure_is_a_row_that_says_why(tmp_path):
    names = ("infsa_linear", "soft", "performer", "mlla", "agent", "softmax-naive", "flatten", "linformer")
    content = run([cases(*names)], tmp_path / "r.json")
    rows = rows_by_name(content)
    assert {name for name, row in rows.items() if row["status"] == "done"} == {"infsa_linear", "performer", "linformer"}
    assert "SIGABRT" in rows["soft"]["reason"]
    assert rows["mlla"]["reason"] == "ValueError: no"
    assert rows["agent"]["ran_out"] == "time"
    assert rows["softmax-naive"]["ran_out"] == "GPU memory"
    assert rows["flatten"]["ran_out"] == "host memory"  # SIGKILL is what the kernel's reaper sends
    for name in ("infsa_linear", "linformer"):  # prepared before a death and after: all rounds are there
        assert rows[name]["latency_ms"]["count"] == 9
        assert rows[name]["latency_ms"]["median"] == 2.0
    assert json.loads((tmp_path / "r.json").read_text()) == content
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert len(lines) == 1 + len(names)


def test_energy_is_joules_over_images_with_idle_beside_it(tmp_path):
    content = run([cases("infsa_linear", energy=True, batch=2)], tmp_path / "r.json")
    (row,) = content["rows"].values()
    assert row["energy"]["joules_per_image"] == 500 / 200
    assert row["energy"]["joules_above_idle"] == (500 - 50 * 5) / 200
    assert row["energy"]["watts"] == 100
    assert row["paper_formula_joules"] == pytest.approx(200 * 2e-3 / 2)
    assert content["idle_watts"] == 50


def test_a_budget_leaves_rows_that_say_so_and_the_next_run_takes_them(tmp_path):
    plan = [cases("infsa_linear"), cases("linformer", "performer")]
    first = rows_by_name(run(plan, tmp_path / "r.json", budget=0.0))
    assert all((row["status"], row["reason"]) == ("not run", "budget") for row in first.values())
    second = rows_by_name(run(plan, tmp_path / "r.json"))
    assert all(row["status"] == "done" for row in second.values())


def test_finished_rows_are_not_measured_again(tmp_path):
    path = tmp_path / "r.json"
    run([cases("infsa_linear", "mlla")], path)
    before = path.read_bytes()
    told = []
    run_plan([cases("infsa_linear", "mlla")], path, "cpu", Settings(), report=lambda *args: told.append(args),
             command=("false",))  # fmt: skip
    assert (told, path.read_bytes()) == ([], before)
    results = Results(path)
    assert results.missing(cases("mlla")[0], retry=True)
    assert results.missing(cases("infsa_linear", energy=True)[0])


def test_rows_of_two_machines_do_not_mix(tmp_path, monkeypatch):
    run([cases("infsa_linear")], tmp_path / "r.json")
    monkeypatch.setenv("FAKE_GPU", "other")
    with pytest.raises(ValueError, match="gpu='fake', here it is 'other'"):
        run([cases("linformer")], tmp_path / "r.json")


def test_a_row_that_two_presets_name_is_measured_once(tmp_path):
    content = run([cases("infsa_linear", energy=True), cases("infsa_linear", "linformer")], tmp_path / "r.json")
    assert rows_by_name(content)["infsa_linear"]["energy"]["source"] == "NVML"
    assert len(content["rows"]) == 2


def test_the_file_is_whole_after_every_step(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    seen = []
    save = Results.save

    def watched(self):
        save(self)
        seen.append([row["status"] for row in read_results(path)["rows"].values()])

    monkeypatch.setattr(Results, "save", watched)
    run([cases("infsa_linear", "linformer", "mlla")], path)
    assert ["failed", "partial"] in seen
    assert seen[-1].count("done") == 2


def test_a_worker_that_does_not_start_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="does not start"):
        run([cases("infsa_linear")], tmp_path / "r.json", command=("false",))


def test_a_limit_row_names_the_resource(tmp_path):
    plan = [cases("softmax-naive", limit=True), cases("infsa_linear", limit=True)]
    rows = rows_by_name(run(plan, tmp_path / "r.json", tolerance=0.0))
    assert rows["softmax-naive"]["limit"]["side"] == 992  # the largest multiple of 16 below 1000
    assert rows["softmax-naive"]["limit"]["ran_out"] == "GPU memory"
    assert rows["infsa_linear"]["limit"]["side"] == 4992
    assert rows["infsa_linear"]["limit"]["ran_out"] == "time"


def test_another_file_is_refused(tmp_path):
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ValueError, match="not a result of infsa bench"):
        Results(tmp_path / "r.json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_what_it_had(number, tmp_path):
    """The second group hangs; the first is in the file, and the worker does not stay behind."""
    path = tmp_path / "r.json"
    code = "import sys; from tests.bench.helpers import *; "
    code += "run([cases('infsa_linear'), cases('linformer', 'agent')], sys.argv[1], row_limit=60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=HERE.parents[1], stderr=subprocess.DEVNULL)
    until(lambda: path.exists() and len(read_results(path)["rows"]) == 1, 60)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(20) != 0
    (row,) = read_results(path)["rows"].values()
    assert row["status"] in ("done", "partial")
    assert row["latency_ms"]["median"] == 2.0
    content = run([cases("infsa_linear"), cases("linformer")], path)
    assert [row["status"] for row in content["rows"].values()] == ["done", "done"]


def until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
