"""Results are written before the state goes, replace nothing of another kind, and a full disk loses nothing."""

import errno
import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import infsa
from infsa.streaming import SceneCode
from infsa.streaming.scene import read_tensors
from infsa.streaming.state import StateFile

from .helpers import picture, small
from .test_state import Stopped, stop_after

tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")


class Disk:
    """Stands for ``os.fsync``, which every file that is written passes; fails while it is full."""

    def __init__(self, monkeypatch, code=errno.ENOSPC):
        self.full, self.code, self.fsync = False, code, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor):
        if self.full:
            raise OSError(self.code, os.strerror(self.code))
        self.fsync(descriptor)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_state_that_cannot_be_written_is_said_and_tried_again(code, tmp_path, monkeypatch):
    """Full from the 5th to the 20th tile: the state of the 4th stays, then newer ones follow."""
    disk, path, steps = Disk(monkeypatch, code), tmp_path / "job.state", []

    def report(_):
        steps.append((read_tensors(path)[1]["step"], read_tensors(path)[1]["done"]) if path.exists() else None)
        disk.full = 4 <= len(steps) < 20

    model, x = small(), picture()
    with pytest.warns(UserWarning, match="the stream goes on") as caught:
        found = infsa.stream(model, x, tile=32, state=path, save_every=0, progress=report)
    assert [str(one.message) for one in caught] == [
        f"{path}: {os.strerror(code)}: the stream goes on with the state saved before, and tries again"
    ]
    assert steps[3] == steps[19] == (0, 3)
    assert steps[20] > (0, 3)
    assert torch.equal(found.logits, infsa.stream(model, x, tile=32).logits)
    assert names(tmp_path) == []


def test_a_stream_killed_on_a_full_disk_goes_on_from_the_last_good_state(tmp_path, monkeypatch):
    disk, path = Disk(monkeypatch), tmp_path / "job.state"
    model, x, stop = small(torch.float32), picture(dtype=torch.float32), stop_after(30)

    def report(at):
        disk.full = True
        stop(at)

    with pytest.raises(Stopped):
        infsa.stream(model, x, tile=32, state=path, save_every=0, progress=stop_after(7))
    with pytest.raises(Stopped), pytest.warns(UserWarning, match="No space left"):
        infsa.stream(model, x, tile=32, state=path, save_every=0, progress=report)
    assert read_tensors(path)[1]["done"] == 7
    disk.full = False
    found = infsa.stream(model, x, tile=32, state=path)
    assert torch.equal(found.logits, infsa.stream(model, x, tile=32).logits)


@pytest.mark.parametrize("result", ["code.safetensors", "map.tif", "map.zarr"])
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_result_that_cannot_be_written_keeps_the_state(result, pool, tmp_path, monkeypatch):
    """The pass is not made again: what is left to do starts from the end of the last one."""
    model, x, disk, passes = small(global_pool=pool), picture(), Disk(monkeypatch), []
    state, place = tmp_path / "job.state", tmp_path / result
    options = {"tile": 32, "state": state, ("code" if "code" in result else "map"): place}

    def run(**more):
        return infsa.stream(model, x, **options, **more)

    monkeypatch.setattr(SceneCode, "save", full_disk(SceneCode.save, disk))
    with pytest.raises(OSError, match="No space left on device") as caught:
        run(progress=lambda at: setattr(disk, "full", at.name == "map"))
    assert f"{state} is kept, the same call goes on from it" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not place.is_file()
    disk.full = False
    monkeypatch.undo()
    found = run(progress=lambda at: passes.append(at.name))
    assert set(passes) <= {"map"}
    assert torch.equal(found.logits, infsa.stream(model, x, tile=32).logits)
    assert place.exists()
    assert not state.exists()


def full_disk(save, disk):
    """A saving of the code that finds the disk full, once all passes are made."""

    def write(*arguments, **options):
        disk.full = True
        return save(*arguments, **options)

    return write


def test_the_state_goes_last(tmp_path, monkeypatch):
    seen = []
    remove = StateFile.remove
    monkeypatch.setattr(StateFile, "remove", lambda self: (seen.extend(names(tmp_path)), remove(self)))
    code = tmp_path / "code.safetensors"
    result = infsa.stream(small(), picture(), code=code, map=tmp_path / "map.tif", state=tmp_path / "s", save_every=0)
    assert seen == ["code.safetensors", "map.png", "map.tif", "s"]
    for name, tensor in SceneCode.load(code).tensors().items():
        assert torch.equal(tensor, result.code.tensors()[name])


def test_a_state_that_cannot_be_removed_costs_nothing(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "unlink", lambda path, **_: refuse() if path.name == "s" else None)
    with pytest.warns(UserWarning, match="Permission denied: the stream is done"):
        assert infsa.stream(small(), picture(), state=tmp_path / "s").logits.isfinite().all()


def strangers(folder):
    """Files that are no results of a stream, and the argument that would replace each."""
    save_file({"weight": torch.ones(2)}, folder / "weights.safetensors")
    (folder / "text.safetensors").write_text("hello")
    (folder / "empty.safetensors").touch()
    tifffile.imwrite(folder / "photo.tif", np.zeros((8, 8), np.uint8))
    Image.new("L", (4, 4)).save(folder / "drawing.png")
    zarr.create_array(str(folder / "data.zarr"), shape=(4, 4), dtype="f4")[:] = 7
    return {
        "weights.safetensors": {"code": "weights.safetensors"},
        "text.safetensors": {"code": "text.safetensors"},
        "empty.safetensors": {"code": "empty.safetensors"},
        "photo.tif": {"map": "photo.tif"},
        "drawing.png": {"map": "drawing.tif"},
        "data.zarr": {"map": "data.zarr"},
    }


def content(path):
    return {file: file.read_bytes() for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("name", ["weights.safetensors", "text.safetensors", "empty.safetensors", "photo.tif",
                                  "drawing.png", "data.zarr"])  # fmt: skip
def test_files_of_another_kind_are_replaced_only_when_told(name, tmp_path):
    option = {key: tmp_path / value for key, value in strangers(tmp_path)[name].items()}
    before, model, x = content(tmp_path / name), small(depth=1), picture(24, 24)
    with pytest.raises(FileExistsError, match=rf"{name} exists already and is not .*; overwrite=True replaces it"):
        infsa.stream(model, x, **option)
    assert content(tmp_path / name) == before
    infsa.stream(model, x, **option, overwrite=True)
    assert content(tmp_path / name) != before
    infsa.stream(model, x, **option)  # one of ours is replaced by the next


def test_nothing_but_a_zarr_folder_is_replaced_by_one(tmp_path):
    (tmp_path / "photos.zarr").mkdir()
    (tmp_path / "photos.zarr" / "photo.jpg").write_text("precious")
    with pytest.raises(FileExistsError, match="exists already"):
        infsa.stream(small(), picture(), map=tmp_path / "photos.zarr", overwrite=True)
    assert (tmp_path / "photos.zarr" / "photo.jpg").read_text() == "precious"


def test_the_image_is_never_replaced_even_when_told(tmp_path):
    folder = tmp_path / "image.zarr"
    group = zarr.open_group(str(folder), mode="w")
    group.create_array("0", shape=(16, 16, 3), dtype="u1")[:] = 9
    before = content(folder)
    with pytest.raises(ValueError, match="is the image itself"):
        infsa.stream(small(), folder / "0", map=folder, overwrite=True)
    link = tmp_path / "link.zarr"
    link.symlink_to(folder)
    with pytest.raises(ValueError, match="is the image itself"):
        infsa.stream(small(), folder / "0", map=link, overwrite=True)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"code": "code.pt"}, r"a scene code must end in \.safetensors, got code\.pt"),
        ({"code": "code"}, r"a scene code must end in \.safetensors, got code"),
        ({"map": "map.png"}, r"a map must end in .*, got map\.png"),
        ({"code": "x.safetensors", "state": "x.safetensors"}, "is given for two results"),
        ({"map": "x.tif", "state": "x.png"}, "is given for two results"),
        ({"code": os.devnull}, "is not a regular file"),
        ({"state": os.devnull}, "is not a regular file"),
    ],
)
def test_wrong_places_are_refused_before_any_work(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        infsa.stream(small(), picture(), **options)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_scene_code_saves_itself_by_the_same_rules(tmp_path):
    code = infsa.stream(small(depth=1), picture(24, 24)).code
    with pytest.raises(ValueError, match=r"got code\.npz"):
        code.save(tmp_path / "code.npz")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(FileExistsError, match="is not a scene code"):
        code.save(tmp_path / "text.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            code.save(tmp_path / "text.safetensors", overwrite=True)
            code.save(tmp_path / "code.safetensors")


def test_a_large_file_of_another_kind_is_not_read_as_a_state(tmp_path):
    from infsa.streaming.memory import resident

    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**31)
    before = resident()
    with pytest.raises(ValueError, match="not a complete safetensors file of a stream"):
        infsa.stream(small(), picture(), state=tmp_path / "large")
    assert resident() - before < 2**28
    assert (tmp_path / "large").exists()
