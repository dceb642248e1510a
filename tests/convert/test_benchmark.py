"""The adaptation benchmark's way to start small: the shipped weights in timm's model, and a part of a shard."""

import numpy as np
import pytest
import torch
import typer
from timm.models.vision_transformer import VisionTransformer

import infsa
from infsa.data import NpzShard
from tests.scripts import load_script


@pytest.fixture(scope="module")
def benchmark():
    return load_script("adaptation")


def test_the_shipped_weights_are_those_of_timms_model(benchmark):
    shipped = infsa.create_model("vit_tiny", pretrained=True).eval()
    classes = shipped.pretrained_cfg["label_names"]
    model = VisionTransformer(**benchmark.SHAPE, num_classes=len(classes)).eval()
    benchmark.load_shipped(model, classes)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model(x), shipped(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(typer.BadParameter, match="got 'other'"):
        benchmark.load_shipped(model, ["other", *classes[1:]])


def test_a_smaller_shard_has_as_many_images_of_every_class(benchmark, tmp_path):
    label = np.arange(40) % 2
    arrays = {"label": label, "is_val": np.arange(40) % 4 > 1, "box": np.tile(np.array([0, 0, 3, 3]), (40, 1))}
    pieces = [np.full(5 + row % 3, row, np.uint8) for row in range(40)]
    arrays |= {"jpeg": np.concatenate(pieces), "offset": np.cumsum([0, *map(len, pieces)])}
    arrays |= {"wnid": np.array(["n0", "n1"]), "name": np.array(["cat", "dog"])}
    np.savez(tmp_path / "shard.npz", **arrays)
    small = benchmark.smaller_shard(tmp_path / "shard.npz", 8, tmp_path)
    train, val = (NpzShard(small, split) for split in ("train", "val"))
    assert (len(train), len(val)) == (8, 4)
    for split in (train, val):
        rows = [split.source(index)[0] for index in range(len(split))]  # the bytes say which row they were
        assert [label[row] for row in rows] == list(split.labels)
        assert sorted(split.labels) == [0] * (len(split) // 2) + [1] * (len(split) // 2)
        assert all(arrays["is_val"][row] == (split is val) for row in rows)
    with pytest.raises(typer.BadParameter, match=r"at least 4, .*got 3"):
        benchmark.smaller_shard(tmp_path / "shard.npz", 3, tmp_path)


def test_the_table_says_what_it_was_measured_on(benchmark):
    history = [{"stage": stage, "top1": top1, "images": 900} for stage, top1 in (("original", 0.5), ("logits", 0.45))]
    plan = {"layer_epochs": 0, "logit_epochs": 2, "label_epochs": 0}
    rows = {"softmax": {"images": 1800, "made_with": {"cpu": "a processor", "threads": 2}}}
    rows |= {"control": {"epochs": 2, "top1": 0.51}, "pure": {"history": history, "plan": plan, "seconds": 7.4}}
    found = benchmark.table(rows).splitlines()
    assert found[0].startswith("1800 training images; epochs: layers 0, logits 2, labels 0; 900 held-out images")
    assert found[0].endswith("standard error 1.7; a processor, 2 threads.")
    assert found[4] == "| pure | 50.0 |  |  | 45.0 |  | 7 |"
