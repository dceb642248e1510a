"""Nothing is lost, nothing is computed twice, and nothing of a user's is overwritten."""

import errno
import os
import shutil

import pyarrow.parquet as pq
import pytest

from infsa.cohort import embed
from infsa.cohort.compute import Computer
from infsa.models import save_weights
from tests.cohort import children
from tests.cohort.conftest import noise
from tests.cohort.test_rows import rows_of
from tests.models.helpers import small

OPTIONS = {"batch_size": 1, "embedding": "both"}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_killed_before_every_file_is_in_place_the_table_has_the_same_bytes(folder, model, tmp_path):
    embed(folder, model, tmp_path / "whole.parquet", **OPTIONS)
    out = tmp_path / "killed.parquet"
    for moment in (1, 2, 3, 4, 5, 4, 5):  # before anything, between the parts, and at every step of the end
        assert children.run(moment, folder, model, out, OPTIONS) == -9
        assert not out.exists()
        for part in (tmp_path / "killed.parquet.parts").glob("[!._]*.parquet"):
            assert len(rows_of(part)) > 0
    assert children.run(99, folder, model, out, OPTIONS) == 0
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not (tmp_path / "killed.parquet.parts").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "killed.parquet", "killed.timings.parquet", "whole.parquet", "whole.timings.parquet",
    ]  # fmt: skip


def test_times_are_beside_the_table(folder, model, tmp_path):
    embed(folder, model, tmp_path / "a.parquet")
    times = rows_of(tmp_path / "a.timings.parquet")
    assert [row["id"] for row in times] == [row["id"] for row in rows_of(tmp_path / "a.parquet")]
    assert all(row["seconds"] > 0 for row in times if row["id"].endswith("00.png"))


@pytest.fixture
def counted(monkeypatch):
    """The images that are read to be computed."""
    seen, see = [], Computer._see
    monkeypatch.setattr(
        Computer, "_see", lambda self, work: (seen.append(os.path.basename(work.item.path)), see(self, work))[1]
    )
    return seen


def test_only_changed_files_are_computed_again(folder, model, tmp_path, counted):
    place = tmp_path / "in"
    shutil.copytree(folder, place)
    out = tmp_path / "a.parquet"
    embed(place, model, out)
    first, stamp = rows_of(out), out.stat().st_mtime_ns
    counted.clear()
    assert embed(place, model, out).kept == 36
    assert (counted, out.stat().st_mtime_ns) == ([], stamp)

    os.utime(place / "01.jpg")  # another time, the same content
    before = (place / "02.webp").stat()
    data = bytearray((place / "03.bmp").read_bytes())
    data[-1] ^= 255  # the same length
    known = (place / "03.bmp").stat()
    (place / "03.bmp").write_bytes(data)
    os.utime(place / "03.bmp", ns=(known.st_atime_ns, known.st_mtime_ns))  # and the same time
    noise(9, 9).save(place / "05.png")  # was broken
    noise(9, 9).save(place / "99.png")
    summary = embed(place, model, out)
    assert sorted(counted) == ["03.bmp", "05.png", "99.png"]
    assert (summary.kept, summary.computed, summary.failed) == (34, 3, 5)
    second = {os.path.basename(row["path"]): row for row in rows_of(out)}
    for row in first:
        name = os.path.basename(row["path"])
        assert (second[name] == row) == (name not in ("03.bmp", "05.png")), name
    assert before.st_mtime_ns == second["02.webp"]["modified"]


def test_failures_that_lie_not_in_the_file_are_tried_again(model, tmp_path, monkeypatch):
    noise(16, 16).save(tmp_path / "a.png")
    noise(24, 16).save(tmp_path / "b.png")
    out = tmp_path / "a.parquet"
    with monkeypatch.context() as patch:
        patch.setattr("infsa.cohort.network.Network.batch", lambda *_: (_ for _ in ()).throw(RuntimeError("no\nroom")))
        assert embed(tmp_path, model, out).failed == 2
    assert {row["error"] for row in rows_of(out)} == {"no room"}
    assert embed(tmp_path, model, out).failed == 0
    sources = [tmp_path / "a.png", tmp_path / "c.png", tmp_path / "b.png"]
    assert embed(sources, model, out).failures == [(str(tmp_path / "c.png"), "no such file")]
    noise(8, 8).save(tmp_path / "c.png")
    assert embed(sources, model, out).failed == 0
    assert [row["path"] for row in rows_of(out)] == [str(path) for path in sources]


def test_a_file_that_is_out_of_reach_keeps_its_row(model, tmp_path):
    for name in ("a.png", "b.png"):
        noise(16, 16, ord(name[0])).save(tmp_path / name)
    sources, out = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.png"], tmp_path / "a.parquet"
    embed(sources, model, out)
    before = rows_of(out)
    (tmp_path / "a.png").unlink()
    summary = embed(sources, model, out)
    assert rows_of(out) == before
    assert (summary.kept, summary.notes) == (2, ["1 files cannot be accessed now; their earlier rows are kept"])


def test_a_damaged_part_is_computed_again(folder, model, tmp_path):
    out = tmp_path / "a.parquet"
    assert children.run(6, folder, model, out, OPTIONS) == -9
    parts = sorted((tmp_path / "a.parquet.parts").glob("[!._]*.parquet"))
    parts[0].write_bytes(parts[0].read_bytes()[:100])
    embed(folder, model, out, **OPTIONS)
    embed(folder, model, tmp_path / "whole.parquet", **OPTIONS)
    assert pq.read_table(out).equals(pq.read_table(tmp_path / "whole.parquet"))


def test_another_model_or_other_settings_are_refused_unless_asked_for(folder, model, tmp_path):
    out = tmp_path / "a.parquet"
    embed(folder, model, out)
    before = content(tmp_path)
    other = save_weights(small(seed=1), tmp_path / "other")
    for source, settings, words in (
        (other, {}, "was made with another model"),
        (model, {"resolution": "crop"}, "made with resolution='native', this run has 'crop'"),
        (model, {"embedding": "pooled"}, "made with embedding='class', this run has 'pooled'"),
        (model, {"maps": True}, "made with maps=False, this run has True"),
    ):
        with pytest.raises(ValueError, match=words):
            embed(folder, str(source), out, **settings)
    with pytest.raises(ValueError, match="holds rows of 35 images that are not among these inputs"):
        embed(folder / "00.png", model, out)
    assert content(tmp_path) == before
    assert embed(folder, model, out, batch_size=2, memory="8GiB", tile=64).kept == 36
    assert embed(folder, str(other), out, overwrite=True).computed == 36
    assert embed(folder / "00.png", str(other), out, overwrite=True).rows == 1


def test_what_is_not_ours_stays(folder, model, tmp_path):
    for name in ("a.parquet", "b.timings.parquet"):
        (tmp_path / name).write_bytes(b"precious")
    (tmp_path / "c.parquet.parts").mkdir()
    (tmp_path / "c.parquet.parts" / "notes.txt").write_text("precious")
    (tmp_path / "d.parquet").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name, words in (("a.parquet", "not a table"), ("b.parquet", "not a table"), ("c.parquet", "does not belong"),
                        ("d.parquet", "got a folder"), ("e.csv", "must end in .parquet")):  # fmt: skip
        with pytest.raises((ValueError, FileExistsError), match=words):
            embed(folder, model, tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "a.parquet").read_bytes() == b"precious"
    embed(folder / "00.png", model, tmp_path / "a.parquet", overwrite=True)
    assert len(rows_of(tmp_path / "a.parquet")) == 1


def test_a_full_disk_is_one_line_and_the_same_call_goes_on(folder, model, tmp_path, monkeypatch):
    out = tmp_path / "a.parquet"
    with monkeypatch.context() as patch:
        calls, flush = [], os.fsync

        def full(descriptor):
            calls.append(descriptor)
            if len(calls) > 6:
                raise OSError(errno.ENOSPC, "No space left on device")
            flush(descriptor)

        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="the same command continues from it"):
            embed(folder, model, out, **OPTIONS)
    summary = embed(folder, model, out, **OPTIONS)
    assert summary.kept > 0
    assert summary.kept + summary.computed == 36
    embed(folder, model, tmp_path / "whole.parquet", **OPTIONS)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_one_run_at_a_time(folder, model, tmp_path):
    out = tmp_path / "a.parquet"

    def second(_):
        with pytest.raises(ValueError, match="is being written by another run"):
            embed(folder, model, out)

    assert embed(folder, model, out, progress=second).rows == 36


def test_streams_go_on_inside_an_image(model, tmp_path, monkeypatch):
    """The state of a stream is in the folder of parts while it runs, and gone with it."""
    noise(96, 64).save(tmp_path / "a.png")
    monkeypatch.setattr("infsa.cohort.network.MAX_PIXELS", 1000)
    seen, streamed = [], __import__("infsa.cohort.network", fromlist=["Network"]).Network.streamed

    def look(self, place, state=None):
        seen.append(state)
        return streamed(self, place, state)

    monkeypatch.setattr("infsa.cohort.network.Network.streamed", look)
    summary = embed(tmp_path / "a.png", model, tmp_path / "a.parquet")
    assert summary.streamed == 1
    assert os.path.dirname(seen[0]) == str(tmp_path / "a.parquet.parts")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "a.png", "a.timings.parquet"]
