"""SIGTERM and SIGUSR1 save the run and end it with code 0, Ctrl-C with 130; it continues at the same step."""

import json
import os
import signal
import time

import pytest

from infsa.train import list_checkpoints
from tests.train.helpers import (
    EVERYTHING,
    STEPS,
    assert_same_run,
    command,
    endless_step,
    final_state,
    finish,
    leading_command,
    options,
    start,
    start_command,
    wait_for,
)

LONG = {"epochs": 4000, "save_every": 10**6, "val_every": 10**6}  # ends only by a signal


def signalled(arguments, folder, number, console):
    """Start a run, send it a signal when it has logged a few steps, and return its exit code."""
    run = start_command("train", *arguments, "--out", folder, console=console)
    try:
        wait_for(lambda: (folder / "log.jsonl").exists() and (folder / "log.jsonl").read_text().count("\n") >= 3)
        os.kill(run.pid, number)
        return finish(run)
    finally:
        run.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends_with_code_0(number, tmp_path):
    out = tmp_path / "run"
    assert signalled(options(**LONG), out, number, tmp_path / "console") == 0
    (file,) = list_checkpoints(out / "checkpoints")
    step = final_state(out)[1]["step"]
    assert file.stem == f"step-{step:08d}"
    assert step >= 3
    assert json.loads((out / "log.jsonl").read_text().splitlines()[-1])["step"] <= step
    assert not (out / "result.json").exists()
    assert (tmp_path / "console.err").read_text() == ""
    assert "--resume" in (tmp_path / "console.out").read_text()


def test_ctrl_c_saves_too_and_ends_with_code_130(tmp_path):
    out = tmp_path / "run"
    assert signalled(options(**LONG), out, signal.SIGINT, tmp_path / "console") == 130
    assert len(list_checkpoints(out / "checkpoints")) == 1
    assert "--resume" in (tmp_path / "console.out").read_text()
    assert (tmp_path / "console.err").read_text() == "infsa: interrupted\n"


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    """The first one falls into a step that does not end."""
    out = tmp_path / "run"
    run = start(endless_step, "train", *options(**LONG), "--out", str(out), console=tmp_path / "console")
    try:
        wait_for(lambda: (out / "log.jsonl").exists() and (out / "log.jsonl").read_text().count("\n") >= 3)
        os.kill(run.pid, signal.SIGINT)
        wait_for(lambda: "Ctrl-C again" in (tmp_path / "console.out").read_text())
        os.kill(run.pid, signal.SIGINT)
        assert finish(run) == 130
    finally:
        run.kill()
    assert list_checkpoints(out / "checkpoints") == []


def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path):
    """The signal comes from inside, at a known step between two checkpoints."""
    arguments = options(**EVERYTHING)
    assert command("train", *arguments, "--out", tmp_path / "whole", console=tmp_path / "a")[0] == 0
    run = start_command("train", *arguments, "--out", tmp_path / "run", console=tmp_path / "b")
    wait_for(lambda: (tmp_path / "run" / "log.jsonl").exists())
    os.kill(run.pid, signal.SIGTERM)
    assert finish(run) == 0
    step = final_state(tmp_path / "run")[1]["step"]
    assert step <= STEPS
    code, _, err = command("train", "--resume", "--out", tmp_path / "run", console=tmp_path / "c")
    assert (code, err) == (0, "")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_signal_to_the_whole_process_group_saves_too(tmp_path):
    """Schedulers signal every process of a job, the workers that read images included; the run waits for those here."""
    out, slow = tmp_path / "run", {"loader": "workers", "workers": 1, "batch_size": 400}
    arguments = options(**LONG | slow | {"data_options": {"length": 400, "classes": 4}})
    words = ("train", *arguments, "--out", str(out))
    run = start(leading_command, *words, console=tmp_path / "console")
    try:
        wait_for(lambda: (out / "log.jsonl").exists() and (out / "log.jsonl").read_text().count("\n") >= 3)
        time.sleep(0.05)  # the next batch is being made
        os.killpg(run.pid, signal.SIGTERM)
        assert finish(run) == 0, (tmp_path / "console.err").read_text()
    finally:
        run.kill()
    assert len(list_checkpoints(out / "checkpoints")) == 1


def test_json_of_a_stopped_run_parses(tmp_path):
    code = signalled([*options(**LONG), "--json"], tmp_path / "run", signal.SIGTERM, tmp_path / "console")
    assert code == 0
    assert json.loads((tmp_path / "console.out").read_text())["stopped"] is True
