"""Checkpoints: whole or absent, and never believed if a single byte has changed."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from infsa.train import DamagedCheckpoint, checkpoint, list_checkpoints, newest_checkpoint, read_checkpoint
from infsa.train.checkpoint import write_checkpoint
from tests.data.helpers import one_line

FACTS = {"step": 3, "history": [{"top1": 0.1}], "word": 'γ "quoted" \\ \n', "none": None, "small": 5e-324}


def tensors(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=rng),
        "turned": torch.randn(4, 3, generator=rng).T,
        "half": torch.randn(3, generator=rng).bfloat16(),
        "step": torch.tensor(7.0),
        "count": torch.tensor([2**62, -1]),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def assert_equal(read, expected):
    assert read.keys() == expected.keys()
    for name, value in expected.items():
        assert read[name].dtype == value.dtype
        assert read[name].shape == value.shape
        assert read[name].contiguous().reshape(-1).view(torch.uint8).tolist() == (
            value.contiguous().reshape(-1).view(torch.uint8).tolist()
        )


def test_what_is_written_is_read(tmp_path):
    path = write_checkpoint(tmp_path, 3, tensors(), FACTS, keep=1)
    read, facts = read_checkpoint(path)
    assert_equal(read, tensors())
    assert facts == FACTS


def test_the_newest_k_are_kept(tmp_path):
    for step in (1, 2, 10, 9, 100):
        write_checkpoint(tmp_path, step, tensors(), {"step": step}, keep=3)
    assert [read_checkpoint(path)[1]["step"] for path in list_checkpoints(tmp_path)] == [100, 10, 9]
    assert [
        path.name for path in tmp_path.iterdir() if path.name not in {p.name for p in list_checkpoints(tmp_path)}
    ] == []


def test_every_changed_byte_is_noticed(tmp_path):
    path = write_checkpoint(tmp_path, 3, {"w": torch.tensor([1.0, 2.0])}, {"a": 1}, keep=1)
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (0, 5, 7):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            said = ""
            try:
                read, facts = read_checkpoint(path)
            except DamagedCheckpoint as error:
                said = str(error)
            if said:
                assert said.startswith(f"{path.name} is damaged")
                assert "\n" not in said
            else:  # the upper case of a letter in an escape, say
                assert (read["w"].tolist(), facts) == ([1.0, 2.0], {"a": 1}), place


def test_every_cut_is_noticed(tmp_path):
    path = write_checkpoint(tmp_path, 3, {"w": torch.tensor([1.0, 2.0])}, {"a": 1}, keep=1)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedCheckpoint, match=one_line("is damaged")):
            read_checkpoint(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(path)


def test_exchanged_tensors_are_noticed(tmp_path):
    """The digest covers names: the same bytes under other names are not the same state."""
    path = write_checkpoint(tmp_path, 3, {"a": torch.ones(2), "b": torch.zeros(2)}, {}, keep=1)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, path, header)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(path)


def test_another_file_is_not_a_checkpoint(tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(DamagedCheckpoint, match=one_line("")):
        read_checkpoint(path)


@pytest.mark.parametrize("stage", ["save_file", "chmod", "fsync", "replace"])
def test_a_crash_at_any_stage_leaves_the_old_file_whole(stage, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 3, tensors(), FACTS, keep=1)

    def crash(*_, **__):
        raise OSError("no space left on device")

    if stage == "save_file":

        def half(whole, path, header):
            save_file(whole, path, header)
            os.truncate(path, 50)
            crash()

        monkeypatch.setattr(checkpoint, "save_file", half)
    elif stage == "chmod":
        monkeypatch.setattr("pathlib.Path.chmod", crash)
    else:
        monkeypatch.setattr(os, stage, crash)
    for step in (3, 4):
        with pytest.raises(OSError, match="no space"):
            write_checkpoint(tmp_path, step, tensors(1), FACTS, keep=1)
    monkeypatch.undo()
    path, read, facts, damage = newest_checkpoint(tmp_path)
    assert (path.name, facts, damage) == ("step-00000003.safetensors", FACTS, [])
    assert_equal(read, tensors())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_old_checkpoints_go_only_when_the_new_one_is_in_place(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 3, tensors(), FACTS, keep=1)
    seen = []
    unlink = type(tmp_path).unlink

    def watched(self, **options):
        if self.suffix == ".safetensors" and "part" not in self.name:
            seen.append(newest_checkpoint(tmp_path)[2]["step"])
        unlink(self, **options)

    monkeypatch.setattr(type(tmp_path), "unlink", watched)
    write_checkpoint(tmp_path, 4, tensors(), {"step": 4}, keep=1)
    assert seen == [4]


def test_the_newest_whole_one_is_found_and_damage_reported(tmp_path):
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step, tensors(step), {"step": step}, keep=3)
    newest, second, _ = list_checkpoints(tmp_path)
    newest.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:-1])
    path, read, facts, damage = newest_checkpoint(tmp_path)
    assert (path.stem, facts["step"], len(damage)) == ("step-00000001", 1, 2)
    assert_equal(read, tensors(1))
    assert all("\n" not in line for line in damage)
    path.unlink()
    with pytest.raises(ValueError, match=one_line("is intact")):
        newest_checkpoint(tmp_path)


def test_a_written_checkpoint_outlives_damaged_ones_of_later_steps(tmp_path):
    """A run that fell back behind damaged files must not delete what it saves."""
    (tmp_path / "step-00000009.safetensors").write_bytes(b"damaged")
    written = write_checkpoint(tmp_path, 7, tensors(), {"step": 7}, keep=1)
    assert written.exists()
    assert newest_checkpoint(tmp_path)[2]["step"] == 7


def test_an_empty_folder_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=one_line("no checkpoint")):
        newest_checkpoint(tmp_path / "nowhere")


def test_facts_are_plain_json(tmp_path):
    from safetensors import safe_open

    path = write_checkpoint(tmp_path, 3, tensors(), FACTS, keep=1)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["facts"]) == FACTS


@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000])
def test_facts_that_are_no_table_are_damage(text, tmp_path):
    whole = {"w": torch.zeros(1)}
    header = {"facts": text, "digest": checkpoint._digest(whole, text)}
    save_file(whole, tmp_path / "step-00000001.safetensors", header)
    with pytest.raises(DamagedCheckpoint, match=one_line("damaged")):
        read_checkpoint(tmp_path / "step-00000001.safetensors")
