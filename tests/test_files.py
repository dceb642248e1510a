"""Files are written whole or not at all."""

import json
import os
import stat

import pytest

from infsa.files import read_json, write_atomically, write_json


def test_a_file_and_its_folders_are_made(tmp_path):
    path = write_json({"top1": 0.5, "name": "γ", "none": None}, tmp_path / "a" / "b" / "result.json")
    assert read_json(path) == {"top1": 0.5, "name": "γ", "none": None}
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]
    assert path.stat().st_mode & stat.S_IROTH


@pytest.mark.parametrize("stage", ["write", "fsync", "replace"])
def test_a_crash_leaves_the_old_file_and_nothing_else(stage, tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def crash(*_, **__):
        raise OSError("crash")

    def write(aside):
        aside.write_text("ne")
        if stage == "write":
            crash()

    if stage != "write":
        monkeypatch.setattr(os, stage, crash)
    with pytest.raises(OSError, match="crash"):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_the_content_reaches_the_disk_before_the_name(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
    write_atomically(tmp_path / "file.txt", lambda aside: aside.write_text("new"))
    assert [os.path.basename(call) for call in calls][1:] == ["replace", tmp_path.name]
    assert "part" in calls[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}])
def test_what_json_does_not_know_is_refused_and_the_old_file_stays(value, tmp_path):
    path = write_json([1], tmp_path / "a.json")
    with pytest.raises((ValueError, TypeError)):
        write_json({"x": value}, path)
    assert json.loads(path.read_text()) == [1]


def test_suffixes_are_kept_aside(tmp_path):
    """Writers that go by the suffix see the right one."""
    seen = []

    def write(aside):
        seen.append(aside)
        aside.write_bytes(b"x")

    write_atomically(tmp_path / "model.v2.safetensors", write)
    assert seen[0].suffix == ".safetensors"
    assert seen[0].parent == tmp_path
    assert not seen[0].match("step-*")


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(mask, tmp_path):
    """Also where the writer makes its file for the owner alone, as safetensors does."""
    from safetensors.torch import save_file

    import infsa
    from tests.models.helpers import small

    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "a.safetensors", lambda aside: save_file({}, aside))
        infsa.models.save_weights(small(), tmp_path / "model")
    finally:
        os.umask(before)
    files = [tmp_path / "a.safetensors", *(tmp_path / "model").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~mask}
