"""A run survives its rows: whatever one does, the others are measured and the file is whole."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infsa.bench.results import COLUMNS, Results, read_results
from infsa.bench.settings import Settings
from infsa.bench.suite import run_plan

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
    by_key = {line["key"]: line for line in csv.DictReader(lines)}
    assert by_key[cases("softmax-naive")[0].key]["ran_out"] == "GPU memory"


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


def test_a_row_that_would_outlast_the_budget_is_stopped_and_takes_nothing_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("infsa.bench.suite.GRACE", 0.1)
    begin = time.monotonic()
    rows = rows_by_name(run([cases("infsa_linear", "agent")], tmp_path / "r.json", budget=1.5, row_limit=60.0))
    assert time.monotonic() - begin < 30
    assert (rows["agent"]["status"], rows["agent"]["reason"]) == ("not run", "budget")
    assert rows["infsa_linear"]["latency_ms"]["median"] == 2.0


def test_what_could_not_be_compiled_in_time_is_not_begun(tmp_path):
    plan = [cases("infsa_linear", compile="default"), cases("linformer")]
    rows = rows_by_name(run(plan, tmp_path / "r.json", budget=20.0))
    assert [rows[name]["status"] for name in ("infsa_linear", "linformer")] == ["not run", "done"]


def test_no_budget_never_costs_a_number(tmp_path):
    """Rows that lack only their energy, and rows that failed, keep what they have when the time is over."""
    path = tmp_path / "r.json"
    run([cases("infsa_linear", "mlla")], path)
    rows = rows_by_name(run([cases("infsa_linear", "mlla", energy=True)], path, budget=0.0, retry=True))
    assert rows["infsa_linear"]["status"] == "done"
    assert rows["infsa_linear"]["latency_ms"]["median"] == 2.0
    assert rows["mlla"]["reason"] == "ValueError: no"
    rows = rows_by_name(run([cases("infsa_linear", energy=True)], path))
    assert rows["infsa_linear"]["energy"]["source"] == "NVML"


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


def test_a_row_whose_energy_only_the_second_preset_asks_for_has_it(tmp_path):
    (row,) = run([cases("infsa_linear"), cases("infsa_linear", energy=True)], tmp_path / "r.json")["rows"].values()
    assert row["energy"]["watts"] == 100


def test_the_file_is_whole_after_every_step(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    seen = []
    save = Results.save

    def watched(self):
        save(self)
        seen.append([row["status"] for row in read_results(path)["rows"].values()])

    monkeypatch.setattr(Results, "save", watched)
    run([cases("infsa_linear", "linformer", "mlla")], path)
    assert ["partial", "partial"] in seen
    assert seen[-1].count("done") == 2


def test_a_worker_that_does_not_start_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="did not start"):
        run([cases("infsa_linear")], tmp_path / "r.json", command=("false",))


@pytest.mark.parametrize("kind", ["energy", "sample", "prepare"])
def test_a_worker_that_dies_takes_no_number_with_it(kind, tmp_path, monkeypatch):
    """A finished row is asked for more, and the worker is killed on the way."""
    path = tmp_path / "r.json"
    (before,) = run([cases("infsa_linear")], path)["rows"].values()
    assert before["status"] == "done"
    monkeypatch.setenv("FAKE_DIES", f"{kind}:{tmp_path / 'dead'}")
    (after,) = run([cases("infsa_linear", energy=True)], path)["rows"].values()
    assert after["status"] == "failed"
    assert "SIGKILL" in after["reason"]
    assert after["latency_ms"]["median"] == before["latency_ms"]["median"]
    assert after["peak_bytes"] == before["peak_bytes"]
    (again,) = run([cases("infsa_linear", energy=True)], path, retry=True)["rows"].values()
    assert again["status"] == "done"
    assert again["energy"]["joules_per_image"] == 5.0


def test_a_search_is_not_misled_by_one_death(tmp_path, monkeypatch):
    plan = [cases("infsa_linear", limit=True)]
    expected = next(iter(run(plan, tmp_path / "a.json")["rows"].values()))["limit"]["side"]
    monkeypatch.setenv("FAKE_DIES", f"probe:{tmp_path / 'dead'}")
    (row,) = run(plan, tmp_path / "b.json")["rows"].values()
    assert (tmp_path / "dead").exists()
    assert row["limit"]["side"] == expected


def test_a_limit_row_names_the_resource(tmp_path):
    plan = [cases("softmax-naive", limit=True), cases("infsa_linear", limit=True)]
    rows = rows_by_name(run(plan, tmp_path / "r.json", tolerance=0.0))
    assert rows["softmax-naive"]["limit"]["side"] == 992  # the largest multiple of 16 below 1000
    assert rows["softmax-naive"]["limit"]["ran_out"] == "GPU memory"
    assert rows["infsa_linear"]["limit"]["side"] == 4992
    assert rows["infsa_linear"]["limit"]["ran_out"] == "time"


def test_a_search_that_fails_everywhere_has_failed(tmp_path):
    rows = rows_by_name(run([cases("mlla", limit=True)], tmp_path / "r.json"))
    assert (rows["mlla"]["status"], rows["mlla"]["reason"]) == ("failed", "error: ValueError: no")


def test_a_search_goes_on_where_the_budget_ended_it(tmp_path, monkeypatch):
    """The worker hangs above 600 pixels; the second run gives that up, and tries no size twice."""
    monkeypatch.setattr("infsa.bench.suite.GRACE", 0.1)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    path, plan = tmp_path / "r.json", [cases("agent", limit=True)]
    row = rows_by_name(run(plan, path, budget=1.5, limit_seconds=0.2))["agent"]
    assert (row["status"], row["reason"]) == ("partial", "budget")
    assert row["limit"]["side"] == 512
    assert row["limit"]["probes"] == [[64, None], [128, None], [256, None], [512, None]]
    monkeypatch.setattr("infsa.bench.suite.BUILD", 0.1)
    row = rows_by_name(run(plan, path, limit_seconds=0.2, tolerance=0.3))["agent"]
    assert row["status"] == "done"
    assert 512 <= row["limit"]["side"] <= 600
    assert row["limit"]["ran_out"] == "time"
    tried = (tmp_path / "log").read_text().split()
    assert len(tried) == len(set(tried))


def test_a_search_under_another_cap_is_another_search(tmp_path):
    path, plan = tmp_path / "r.json", [cases("softmax-naive", limit=True)]
    run(plan, path)
    before = path.read_bytes()
    run(plan, path)
    assert path.read_bytes() == before
    assert rows_by_name(run(plan, path, cap=2**30))["softmax-naive"]["limit"]["cap_bytes"] == 2**30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a result file of infsa bench"),
        ("[]", "not a result file of infsa bench"),
        ('{"format": 1, "rows": []}', "not a result file of infsa bench"),
        ('{"format": 9, "rows": {}}', "format 9, this version reads 1"),
        ('{"format": 1, "rows": {"a": {"case"', "not a complete JSON file"),
        ("", "not a complete JSON file"),
        ('{"format": 1, "rows": {"a": {"status": "done"}}}', "row 'a': cannot be read"),
        ('{"format": 1, "rows": {"a": {"status": "done", "case": {"mechanism": "new", "size": [64, 64]}}}}', "'new'"),
    ],
)
def test_another_file_is_refused_by_name(text, message, tmp_path):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        Results(tmp_path / "r.json")
    assert "r.json" in str(error.value)


def test_the_result_file_is_json(tmp_path):
    """Its CSV and figures lie beside it under other endings."""
    for name in ("r.csv", "r"):
        with pytest.raises(ValueError, match=r"must end in \.json"):
            Results(tmp_path / name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_what_it_had(number, tmp_path):
    """The last row hangs; it says that it was interrupted, the others are there, and the next run goes on."""
    path = tmp_path / "r.json"
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may ignore it
    code += "from tests.bench.helpers import *; run([cases('infsa_linear', 'agent')], sys.argv[1], row_limit=60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=HERE.parents[1], stderr=subprocess.DEVNULL)
    until(lambda: path.exists() and len(read_results(path)["rows"]) == 2, 60)
    process.send_signal(number)
    assert process.wait(50) != 0
    rows = rows_by_name(read_results(path))
    assert (rows["agent"]["status"], rows["agent"]["reason"]) == ("partial", "interrupted")
    assert rows["infsa_linear"]["latency_ms"]["median"] == 2.0
    assert len((tmp_path / "r.csv").read_text().splitlines()) >= 2
    rows = rows_by_name(run([cases("infsa_linear", "linformer")], path))
    assert [rows[name]["status"] for name in ("infsa_linear", "linformer")] == ["done", "done"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_worker_ends_with_its_parent():
    """A worker in the middle of a job whose parent is killed: nothing closes its pipes in order."""
    busy = "import infsa.bench.worker as w, time; w.Worker.facts = lambda *_: time.sleep(60); w.serve()"
    parent = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=-1, stdout=-1, text=True)
worker.stdin.write('{"device": "cpu", "cap": null}\\n{"job": "facts"}\\n')
worker.stdin.flush()
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", parent, busy], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    time.sleep(0.3)
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not alive(worker), 10)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
