"""Several processes compute what one process computes from the same batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infsa.train import list_checkpoints, read_checkpoint
from infsa.train.fit import leave
from infsa.train.module import build_model
from tests.train.helpers import (
    assert_same_run,
    distance,
    final_state,
    in_child,
    log_lines,
    options,
    tiny,
    together,
    train_and_die,
    train_here,
)

# Plain SGD: Adam would divide rounding errors of tiny gradients by their own size. Validation does not divide evenly.
COMMON = {
    "optimizer": "sgd", "lr": 0.05, "clip_norm": 0.5, "mixup": 0.4, "cutmix": 1.0, "mix_prob": 0.8, "ema": 0.8,
    "label_smoothing": 0.1, "erase": 0.3, "data_options": {"length": 50, "classes": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    assert in_child(train_here, tiny(**COMMON), out) == 0
    return out


def assert_close_run(out, alone):
    """Rounding alone may differ: at most a ten-thousandth of the way that training moved the weights."""
    (tensors, facts), (theirs, their_facts) = final_state(out), final_state(alone)
    begin = {f"model.{name}": value for name, value in build_model(tiny(**COMMON), 3).state_dict().items()}
    moved = distance(begin, theirs)
    assert tensors.keys() == theirs.keys()
    for prefix in ("model.", "average.", "optimizer."):
        assert distance(tensors, theirs, prefix) <= 1e-4 * moved, prefix
    for rows, their_rows in ((log_lines(out), log_lines(alone)), (facts["history"], their_facts["history"])):
        assert rows == [pytest.approx(row, rel=1e-4) if "kind" not in row else _near(row) for row in their_rows]


def _near(row):
    return {name: value if isinstance(value, str) else pytest.approx(value, rel=1e-4) for name, value in row.items()}


def test_accumulated_parts_are_one_batch(alone, tmp_path):
    assert in_child(train_here, tiny(**COMMON, accumulate=2), tmp_path) == 0
    assert_close_run(tmp_path, alone)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_processes_are_one(strategy, accumulate, alone, tmp_path):
    recipe = tiny(**COMMON, strategy=strategy, accumulate=accumulate)
    assert together(2, train_here, recipe, tmp_path) == [0, 0]
    assert_close_run(tmp_path, alone)


def test_the_other_loader_in_two_processes(tmp_path):
    recipe = tiny(**COMMON, loader="workers")
    assert in_child(train_here, recipe, tmp_path / "one") == 0
    assert together(2, train_here, recipe, tmp_path / "two") == [0, 0]
    assert_close_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_killed_and_resumed_in_two_processes(strategy, tmp_path):
    """Log lines every third step, so that losses of all ranks are under way when the run is saved."""
    recipe = tiny(**COMMON, strategy=strategy, drop_path=0.3, log_every=3, save_every=5)
    assert together(2, train_here, recipe, tmp_path / "whole") == [0, 0]
    assert all(code != 0 for code in together(2, train_and_die, recipe, tmp_path / "run", False, "step", 7))
    assert together(2, train_here, recipe, tmp_path / "run", True) == [0, 0]
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_sharded_run_goes_on_in_one_process(alone, tmp_path):
    recipe = tiny(**COMMON, strategy="fsdp")
    assert all(code != 0 for code in together(2, train_and_die, recipe, tmp_path, False, "step", 8))
    assert read_checkpoint(list_checkpoints(tmp_path / "checkpoints")[0])[1]["step"] == 6
    assert in_child(train_here, tiny(**COMMON), tmp_path, True) == 0
    assert_close_run(tmp_path, alone)


def test_fewer_validation_images_than_processes(tmp_path):
    """A rank without an image must still take part in a sharded model's forward passes."""
    from tests.data.helpers import write_image

    for label in "ab":
        for index in range(6):
            write_image(tmp_path / "photos" / "train" / label / f"{index}.png", "red" if label == "a" else "blue")
    write_image(tmp_path / "photos" / "val" / "a" / "0.png")
    fields = {"data": f"folder:{tmp_path / 'photos'}", "data_options": {}, "batch_size": 4, "strategy": "fsdp"}
    assert together(2, train_here, tiny(**fields), tmp_path / "run", limit=40) == [0, 0]


def test_an_impossible_split_is_one_line(tmp_path):
    from tests.train.helpers import _command

    arguments = options(**COMMON | {"batch_size": 9})
    codes = together(2, _command, "train", *arguments, "--out", str(tmp_path / "run"), console=tmp_path / "console")
    assert codes == [1, 1]
    for rank in range(2):
        err = (tmp_path / f"console-{rank}.err").read_text()
        assert err == "infsa: batch_size 9 cannot be split over 2 processes x 1 parts\n"
    assert not (tmp_path / "run").exists()


def train_and_leave(recipe, out):
    """Train, leave the group as at the end of a process, and write down the threads that are left."""
    train_here(recipe, out)
    leave()
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    (out / f"threads-{os.environ['RANK']}").write_text("".join(names))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc")
def test_no_thread_of_the_group_outlives_it(tmp_path):
    """One that still lets go of a message while Python ends would abort the process."""
    assert together(2, train_and_leave, tiny(**COMMON, strategy="ddp"), tmp_path) == [0, 0]
    for rank in range(2):
        left = (tmp_path / f"threads-{rank}").read_text()
        assert left
        assert "gloo" not in left


def test_torchrun(alone, tmp_path):
    """The launcher itself, as a user calls it."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "infsa"]
    words += ["train", *options(**COMMON), "--out", str(tmp_path / "run"), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["top1"] == json.loads((tmp_path / "run" / "result.json").read_text())["top1"]
    assert_close_run(tmp_path / "run", alone)


def test_a_resumed_average_of_two_processes_is_whole(tmp_path):
    """The shards of the average are put together before they are saved."""
    recipe = tiny(**COMMON, strategy="fsdp")
    assert together(2, train_here, recipe, tmp_path) == [0, 0]
    tensors, _ = final_state(tmp_path)
    for name, parameter in build_model(recipe, 3).named_parameters():
        for prefix in ("model", "average"):
            assert tensors[f"{prefix}.{name}"].shape == parameter.shape
            assert torch.isfinite(tensors[f"{prefix}.{name}"]).all()
