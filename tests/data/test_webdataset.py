"""WebDataset shards: samples by name, random access from any process, and what is said about damage."""

import json
import os
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.utils.data import DataLoader

from infsa.data import SkipLog, TrainTransform, Views, WebShards, collate, open_dataset
from infsa.data.webdataset import expand_braces

from .helpers import one_line, plain_image, red, tar_bytes, write_tar


def samples(first, count, classes=3, kind="png"):
    for i in range(first, first + count):
        yield f"{i:04d}.cls", str(i % classes).encode()
        yield f"{i:04d}.{kind}", plain_image(i)


@pytest.fixture
def shards(tmp_path):
    for shard in range(2):
        write_tar(tmp_path / f"set-train-{shard:02d}.tar", samples(6 * shard, 6))
    write_tar(tmp_path / "set-validation-00.tar", samples(20, 2))
    return tmp_path


@pytest.mark.parametrize("pattern", ["", "/{set-train,set-validation}-00.tar", "/set-train-{00..01}.tar"])
def test_images_and_labels_of_a_split(shards, pattern):
    train = open_dataset(f"wds:{shards}{pattern}", split="train")
    assert len(train) == (6 if "validation" in pattern else 12)
    assert train.classes == ["0", "1", "2"]
    assert all(sample.label == red(sample) % 3 for sample in train)
    assert train[1].name == "set-train-00.tar/0001.png"
    if "train-{" not in pattern:
        val = WebShards(f"{shards}{pattern}", split="val")
        assert [(red(sample), sample.label) for sample in val] == [(20, 2), (21, 0)]
        assert val.classes == train.classes


def test_folders_may_name_the_split_and_one_tar_is_for_training(tmp_path):
    write_tar(tmp_path / "train" / "0.tar", samples(0, 6))
    write_tar(tmp_path / "test" / "0.tar", samples(6, 2))
    assert [len(WebShards(tmp_path, split)) for split in ("train", "val", None)] == [6, 2, 8]
    assert len(WebShards(tmp_path / "train" / "0.tar", "train")) == 6
    with pytest.raises(
        ValueError, match=one_line("no shard of .*0.tar is for the split 'val': a name must hold val or")
    ):
        WebShards(tmp_path / "train" / "0.tar", "val")


def test_labels_may_be_json_and_words(tmp_path):
    def described(names, field="label"):
        for i, name in enumerate(names):
            yield f"dir.x/{i}.jpg", plain_image(i)
            yield f"dir.x/{i}.json", json.dumps({field: name, "caption": "a"}).encode()
            yield f"dir.x/{i}.seg.png", plain_image(200)

    write_tar(tmp_path / "train.tar", described(["newt", "cat", "owl"]))
    write_tar(tmp_path / "val.tar", described(["owl"]))
    train, val = WebShards(tmp_path, "train"), WebShards(tmp_path, "val")
    assert train.classes == val.classes == ["cat", "newt", "owl"]
    assert [sample.label for sample in train] == [1, 0, 2]
    assert [red(sample) for sample in train] == [0, 1, 2]
    assert val[0].label == 2
    write_tar(tmp_path / "val.tar", described(["bat"]))
    with pytest.raises(ValueError, match=one_line("'bat' is not among the 3 classes")):
        WebShards(tmp_path, "val")
    write_tar(tmp_path / "other.tar", described(["bat", "cat"], field="kind"))
    assert WebShards(tmp_path / "other.tar", field="kind").classes == ["bat", "cat"]


def test_incomplete_samples_are_left_out_and_named(tmp_path):
    extra = [("a.png", plain_image(1)), ("b.cls", b"1"), ("README.txt", b"hello")]
    log = SkipLog()
    train = WebShards(write_tar(tmp_path / "s.tar", [*samples(0, 3), *extra]), "train", skipped=log)
    assert len(train) == 3
    assert log.names == ["s.tar/a.png", "s.tar/b"]
    assert "no label" in log.reasons["s.tar/a.png"]
    assert "no image" in log.reasons["s.tar/b"]


def test_a_damaged_image_is_skipped(tmp_path):
    train = WebShards(write_tar(tmp_path / "s.tar", [*samples(0, 3), ("3.cls", b"0"), ("3.png", b"damaged")]), "train")
    assert red(train[3]) == 0
    assert train.skipped.names == ["s.tar/3.png"]


def test_workers_read_what_one_process_reads(shards):
    """Forked workers, and a copy that travelled as to a spawned one, after the parent has read."""
    dataset = WebShards(shards, "train")
    views = Views(dataset, TrainTransform(8))
    expected = torch.stack([view.image for view in views])
    for workers in (views, Views(ForkingPickler.loads(ForkingPickler.dumps(dataset)), TrainTransform(8))):
        loader = DataLoader(workers, 2, num_workers=2, collate_fn=collate)
        assert torch.equal(torch.cat([batch.images for batch in loader]), expected)


def test_nothing_is_written_and_nothing_stays_open(shards):
    before = sorted(os.listdir(shards))
    dataset = WebShards(shards, "train")
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for sample in dataset:
        assert sample.image
    assert sorted(os.listdir(shards)) == before
    assert not opened or len(os.listdir("/proc/self/fd")) == opened


def test_refusals_are_one_line(tmp_path):
    whole = tar_bytes(samples(0, 3))
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 4])
    (tmp_path / "gz.tar").write_bytes(tar_bytes(samples(0, 3), "w:gz"))
    (tmp_path / "empty.tar").write_bytes(b"")
    write_tar(tmp_path / "bare.tar", [(name, content) for name, content in samples(0, 3) if name.endswith("png")])
    write_tar(tmp_path / "twice.tar", [*samples(0, 1), *samples(0, 1)])
    write_tar(tmp_path / "gap.tar", [("0.png", plain_image(0)), ("0.cls", b"2")])
    write_tar(tmp_path / "text.tar", [("0.png", plain_image(0)), ("0.json", b"{")])
    (tmp_path / "none").mkdir()
    cases = [
        ("cut.tar", "cut.tar is not a complete uncompressed tar"),
        ("gz.tar", "gz.tar is not a complete uncompressed tar"),
        ("empty.tar", "empty.tar"),
        ("bare.tar", "no complete sample in .*looked for NAME.jpg/jpeg/png/webp with NAME.cls or 'label' in NAME.json"),
        ("twice.tar", "0000.cls is there twice"),
        ("gap.tar", "class '0' and 1 more classes have no images in the split 'train'"),
        ("text.tar", "0.json is neither text nor JSON"),
        ("none", "no .tar files in"),
        ("x-{00..11}.tar", "no file at .*x-00.tar and 11 more"),
        ("x-{00..11.tar", "braces must be closed"),
    ]
    for name, message in cases:
        with pytest.raises((ValueError, FileNotFoundError), match=one_line(message)):
            open_dataset(f"wds:{tmp_path / name}", split="train")


def test_braces():
    assert expand_braces("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_braces("{a,b}{1..2}") == ["a1", "a2", "b1", "b2"]
    assert expand_braces("plain.tar") == ["plain.tar"]
    for wrong in ("a{b", "a}b", "{a,{1..2}}", "{3..1}"):
        with pytest.raises(ValueError, match=r"brace|rise"):
            expand_braces(wrong)
