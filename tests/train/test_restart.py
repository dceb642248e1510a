"""Restarts: a run that is killed anywhere and resumed ends as if nothing had happened."""

import random
import signal

import pytest

from infsa.train import list_checkpoints
from tests.train.helpers import (
    EVERYTHING,
    STEPS,
    assert_same_run,
    final_state,
    in_child,
    log_lines,
    tiny,
    train_and_die,
    train_here,
)

LOADERS = ("resident", "workers")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs with everything on, one per loader."""
    outs = {loader: tmp_path_factory.mktemp("whole") / loader for loader in LOADERS}
    for loader, out in outs.items():
        assert in_child(train_here, tiny(**EVERYTHING, loader=loader), out) == 0
    return outs


def kill(recipe, out, resume, stage, step):
    assert in_child(train_and_die, recipe, out, resume, stage, step) == -signal.SIGKILL


def test_the_run_has_something_to_lose(whole):
    tensors, facts = final_state(whole["resident"])
    kinds = {name.partition(".")[0] for name in tensors}
    assert kinds == {"model", "optimizer", "average"}
    assert facts["step"] == STEPS
    assert facts["average_updates"] == STEPS
    assert [row["epoch"] for row in facts["history"]] == [1, 2, 3]
    assert any((tensors[f"model.{n}"] != tensors[f"average.{n}"]).any() for n in ("head.weight", "cls_token"))


@pytest.mark.parametrize("loader", LOADERS)
def test_killed_at_random_steps(loader, whole, tmp_path):
    recipe, steps = tiny(**EVERYTHING, loader=loader), random.Random(loader).sample(range(4, STEPS + 1), 3)
    for turn, step in enumerate(sorted(steps)):
        kill(recipe, tmp_path / "run", turn > 0, "step", step)
    assert in_child(train_here, recipe, tmp_path / "run", True) == 0
    assert_same_run(tmp_path / "run", whole[loader])


def test_killed_at_every_stage_of_a_checkpoint_and_in_a_line_of_the_log(whole, tmp_path):
    recipe = tiny(**EVERYTHING)
    for turn, place in enumerate([("renamed", 3), ("writing", 6), ("written", 6), ("log", 8), ("renamed", 9)]):
        kill(recipe, tmp_path, turn > 0, *place)
    assert in_child(train_here, recipe, tmp_path, True) == 0
    assert_same_run(tmp_path, whole["resident"])


def test_killed_before_the_first_checkpoint_it_begins_anew(whole, tmp_path):
    recipe = tiny(**EVERYTHING)
    kill(recipe, tmp_path, False, "step", 2)
    assert in_child(train_here, recipe, tmp_path, True) == 0
    assert_same_run(tmp_path, whole["resident"])


def test_a_second_start_after_a_kill_without_checkpoint_leaves_no_old_lines(whole, tmp_path):
    recipe = tiny(**EVERYTHING)
    kill(recipe, tmp_path, False, "step", 2)
    assert in_child(train_here, recipe, tmp_path) == 0
    assert_same_run(tmp_path, whole["resident"])


def test_killed_between_the_last_checkpoint_and_the_export(whole, tmp_path):
    recipe = tiny(**EVERYTHING)
    kill(recipe, tmp_path, False, "renamed", STEPS)
    assert not (tmp_path / "result.json").exists()
    assert in_child(train_here, recipe, tmp_path, True) == 0
    assert_same_run(tmp_path, whole["resident"])


def test_a_finished_run_resumed_is_the_same_run(whole, tmp_path):
    recipe = tiny(**EVERYTHING)
    for turn in range(2):
        assert in_child(train_here, recipe, tmp_path, turn > 0) == 0
    assert_same_run(tmp_path, whole["resident"])


@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_checkpoints_are_passed_over(damaged, whole, tmp_path):
    from infsa.train import train

    recipe = tiny(**EVERYTHING)
    kill(recipe, tmp_path, False, "step", 11)
    files = list_checkpoints(tmp_path / "checkpoints")
    assert [file.stem for file in files] == ["step-00000009", "step-00000006", "step-00000003"]
    files[0].write_bytes(files[0].read_bytes()[:-100])
    if damaged == 2:
        content = bytearray(files[1].read_bytes())
        content[-100] ^= 1
        files[1].write_bytes(content)
    run = train(recipe, tmp_path, resume=True)
    assert len(run.notes) == damaged
    for note, file in zip(run.notes, files, strict=False):
        assert note.startswith(f"{file.name} is damaged")
        assert note.endswith(f"continuing from {files[damaged].name}")
        assert "\n" not in note
    assert log_lines(tmp_path) == log_lines(whole["resident"])
    assert final_state(tmp_path)[1] == final_state(whole["resident"])[1]


def test_all_damaged_is_one_line(tmp_path):
    from infsa.train import train

    kill(tiny(), tmp_path, False, "step", 11)
    for file in list_checkpoints(tmp_path / "checkpoints"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^no checkpoint in [^\n]* is intact[^\n]*$"):
        train(tiny(), tmp_path, resume=True)


def test_damage_and_a_lower_keep_do_not_delete_the_newest_whole_checkpoint(tmp_path):
    """The damaged file is the newest by its name; it must not be what the run keeps."""
    from infsa.train import newest_checkpoint

    kill(tiny(), tmp_path, False, "step", 11)
    newest = list_checkpoints(tmp_path / "checkpoints")[0]
    newest.write_bytes(b"")
    kill(tiny(keep=1, save_every=7), tmp_path, True, "step", 8)  # continues from 6, saves 7, is killed at 8
    assert newest_checkpoint(tmp_path / "checkpoints")[2]["step"] == 7


@pytest.mark.parametrize("changes", [{"lr": 2e-3}, {"seed": 1}, {"batch_size": 6}, {"precision": "bf16-mixed"}])
def test_another_recipe_is_refused(changes, whole):
    from infsa.train import train

    before = final_state(whole["resident"])[1]
    with pytest.raises(ValueError, match=rf"^the run was started with {next(iter(changes))}=[^\n]*$"):
        train(tiny(**EVERYTHING | changes), whole["resident"], resume=True)
    assert final_state(whole["resident"])[1] == before


def test_what_does_not_change_the_result_may_change(whole, tmp_path):
    recipe = tiny(**EVERYTHING)
    kill(recipe, tmp_path, False, "step", 8)
    assert in_child(train_here, tiny(**EVERYTHING, workers=2, keep=1, save_every=2), tmp_path, True) == 0
    assert_same_run(tmp_path, whole["resident"])
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 1


def test_workers_do_not_change_the_result(whole, tmp_path):
    assert in_child(train_here, tiny(**EVERYTHING, loader="workers", workers=2), tmp_path) == 0
    assert_same_run(tmp_path, whole["workers"])


def test_options_that_json_writes_otherwise_can_be_resumed(tmp_path):
    """A tuple in the model's options comes back from the checkpoint as a list."""
    from infsa.train import train

    recipe = tiny(model_options={"depth": 1, "embed_dim": 16, "num_heads": 2, "patch_size": (8, 8)})
    train(recipe, tmp_path)
    train(recipe, tmp_path, resume=True)


def test_a_folder_that_holds_a_run_is_refused(whole):
    from infsa.train import train

    before = (whole["resident"] / "log.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"^[^\n]*already holds a run[^\n]*$"):
        train(tiny(), whole["resident"])
    assert (whole["resident"] / "log.jsonl").read_bytes() == before


def test_nothing_to_resume_is_one_line(tmp_path):
    from infsa.train import train

    with pytest.raises(ValueError, match=r"^[^\n]*holds no [^\n]*$"):
        train(tiny(), tmp_path, resume=True)


def test_tensorboard_keeps_every_line_of_the_log(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kill(tiny(), tmp_path, False, "step", 8)
    assert in_child(train_here, tiny(), tmp_path, True) == 0
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for kind, name in (("train", "loss"), ("val", "top1")):
        logged = [(row["step"], row[name]) for row in log_lines(tmp_path) if row["kind"] == kind]
        shown = [(event.step, event.value) for event in events.Scalars(f"{kind}/{name}")]
        assert shown == [(step, pytest.approx(value)) for step, value in logged]
