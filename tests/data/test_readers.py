"""Readers over miniature trees and tables, the skip log, and what they refuse."""

import os
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from torch.utils.data import DataLoader

from infsa.data import (
    ImageFiles,
    ImageFolder,
    ImageNetV2,
    NpzShard,
    SkipLog,
    TinyImageNet,
    TrainTransform,
    UnreadableImage,
    Views,
    collate,
    open_dataset,
    read_tiny_imagenet,
)

from .helpers import one_line, red, write_image, write_shard


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 4), ("val", 2)):
        for name in ("cat", "dog"):
            for i in range(count):
                write_image(tmp_path / split / name / f"{name}_{i}.png", (i, 0, 0))
    return tmp_path


@pytest.fixture
def tiny(tmp_path):
    for wnid in ("n02", "n01"):
        for i in range(2):
            write_image(tmp_path / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        (tmp_path / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG 0 1 2 3\n{wnid}_1.JPEG 0 0 0 5\n")
    for i in range(3):
        write_image(tmp_path / "val" / "images" / f"val_{i}.JPEG")
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t0\t3\t4\n" for i, wnid in enumerate(("n02", "n01", "n02"))]
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_image_folder(folder):
    train, val = ImageFolder(folder, split="train"), open_dataset(f"folder:{folder}", split="val")
    assert (len(train), len(val), train.classes) == (8, 4, ["cat", "dog"])
    assert [(s.name, s.label, s.image.size, s.boxes.shape) for s in val][2:] == [
        ("dog/dog_0.png", 1, (8, 6), (0, 4)),
        ("dog/dog_1.png", 1, (8, 6), (0, 4)),
    ]


def test_validation_classes_are_those_of_training(folder):
    """A class without validation images, with or without its folder, does not shift the labels of the others."""
    write_image(folder / "train" / "bat" / "a.png")
    assert [sample.label for sample in ImageFolder(folder, split="val")] == [1, 1, 2, 2]
    (folder / "val" / "bat").mkdir()
    val = ImageFolder(folder, split="val")
    assert (val.classes, val.labels.tolist()) == (["bat", "cat", "dog"], [1, 1, 2, 2])
    write_image(folder / "val" / "eel" / "a.png")
    with pytest.raises(ValueError, match=one_line("val: 'eel' is not among the 3 classes of the training images")):
        ImageFolder(folder, split="val")


def test_images_deeper_or_beside_the_class_folders_are_refused(folder):
    write_image(folder / "train" / "dog" / "puppies" / "a.png")
    with pytest.raises(ValueError, match=one_line("directly inside .*train, got some in 'puppies'")):
        ImageFolder(folder, split="train")


def test_a_class_without_training_images_is_refused_and_without_validation_images_is_not(tiny, tmp_path):
    for path in (tiny / "train" / "n01" / "images").glob("*"):
        path.unlink()
    assert [sample.label for sample in TinyImageNet(tiny, split="val")] == [1, 0, 1]
    with pytest.raises(ValueError, match=one_line("class folder .*n01 holds no images")):
        TinyImageNet(tiny)
    path = write_shard(tmp_path / "shard.npz", images=4)  # two for training, two for validation, three classes
    assert len(NpzShard(path, split="val")) == 2
    with pytest.raises(ValueError, match=one_line("class 'spider' has no images in the split 'train' of .*shard.npz")):
        NpzShard(path)
    root = tmp_path / "imagenetv2-top-images-format-val"
    write_image(root / "7" / "a.png", (7, 0, 0))
    (root / "8").mkdir()
    assert [(sample.label, red(sample)) for sample in ImageNetV2(root)] == [(7, 7)]


def test_image_folder_with_boxes(folder):
    (folder / "boxes.txt").write_text("cat_1.png cat 0 0 3 4\n")
    train = ImageFolder(folder, split="train", annotations=read_tiny_imagenet(folder / "boxes.txt"))
    assert train[1].boxes.tolist() == [[0, 0, 4, 5]]
    assert len(train[2].boxes) == 0


@pytest.mark.parametrize("labels", [range(12), (3, 10, 200)])
def test_imagenet_v2_folders_are_labels_not_text(tmp_path, labels):
    root = tmp_path / "imagenetv2-top-images-format-val"
    for label in labels:
        write_image(root / str(label) / "a.png", (label, 0, 0))
    for dataset in (ImageNetV2(root), open_dataset(f"imagenetv2:{tmp_path}", split="top-images")):
        assert sorted(sample.label for sample in dataset) == list(labels)
        assert all(sample.image.getpixel((0, 0))[0] == sample.label for sample in dataset)


def test_tiny_imagenet(tiny):
    train, val = TinyImageNet(tiny), open_dataset(f"tiny-imagenet:{tiny}", split="val")
    assert train.classes == val.classes == ["n01", "n02"]
    assert [(s.label, s.name) for s in train][1:3] == [
        (0, "train/n01/images/n01_1.JPEG"),
        (1, "train/n02/images/n02_0.JPEG"),
    ]
    assert train[1].boxes.tolist() == [[0, 0, 1, 6]]
    assert [s.label for s in val] == [1, 0, 1]
    assert val[0].boxes.tolist() == [[0, 0, 4, 5]]


def test_npz_shard(tmp_path):
    path = write_shard(tmp_path / "shard.npz")
    train, val = NpzShard(path), open_dataset(f"npz:{path}", split="val")
    assert (len(train), len(val), train.classes) == (4, 2, ["fish", "newt", "spider"])
    assert [s.label for s in val] == [1, 2]
    assert train[1].image.mode == "RGB"
    assert train[0].boxes.tolist() == [[0, 10, 64, 59]]
    assert val[0].name == "shard.npz/4"


def test_a_folder_of_shards_is_one_dataset(tmp_path):
    parts = [write_shard(tmp_path / f"{name}.npz", images, prefix=name) for name, images in (("b", 9), ("a", 6))]
    for split in ("train", "val"):
        joined, (second, first) = NpzShard(tmp_path, split), [NpzShard(path, split) for path in parts]
        assert joined.classes == [*first.classes, *second.classes]
        wanted = [*first, *second]
        shift = [0] * len(first) + [3] * len(second)
        assert [sample.name for sample in joined] == [sample.name for sample in wanted]
        assert [sample.label for sample in joined] == [s.label + n for s, n in zip(wanted, shift, strict=True)]
        assert all(a.image.tobytes() == b.image.tobytes() for a, b in zip(joined, wanted, strict=True))
        assert all((a.boxes == b.boxes).all() for a, b in zip(joined, wanted, strict=True))
    assert len(ForkingPickler.dumps(joined)) < 1000


def test_shards_that_do_not_go_together(tmp_path):
    with pytest.raises(ValueError, match=one_line("holds no .npz file")):
        NpzShard(tmp_path)
    for name in "ab":
        write_shard(tmp_path / f"{name}.npz")
    with pytest.raises(ValueError, match=one_line(r"the class n0 is in a\.npz and in b\.npz")):
        open_dataset(f"npz:{tmp_path}")
    arrays = dict(np.load(write_shard(tmp_path / "b.npz", prefix="b")))
    np.savez(tmp_path / "b.npz", **arrays | {"label": arrays["label"] + 1})
    with pytest.raises(ValueError, match=one_line(r"b\.npz: label must lie in \[0, 3\), got 1 to 3")):
        open_dataset(f"npz:{tmp_path}")


def test_a_shard_travels_as_its_path(tmp_path):
    """A spawned worker gets a few hundred bytes, and the same samples."""
    train = NpzShard(write_shard(tmp_path / "shard.npz", images=60), max_pixels=5000)
    sent = ForkingPickler.dumps(train)
    assert len(sent) < 1000
    again = ForkingPickler.loads(sent)
    assert [sample.name for sample in again] == [sample.name for sample in train]
    assert all(a.image.tobytes() == b.image.tobytes() for a, b in zip(train, again, strict=True))
    assert (again.max_pixels, again.split) == (5000, "train")


def test_names_of_files_take_little_to_send(tmp_path):
    names = [f"cat/{i:06d}_é.png" for i in range(2000)]
    files = ImageFiles(tmp_path, [(tmp_path / name, i % 2) for i, name in enumerate(names)], ["cat", "dog"])
    assert len(ForkingPickler.dumps(files)) < 2000 * (len(os.fsencode(names[0])) + 8 + 8) + 2000
    assert [files.name(i) for i in (0, 7, 1999)] == [names[i] for i in (0, 7, 1999)]
    assert files.names[-2:] == names[-2:]


def test_a_damaged_image_gives_way_to_the_next_and_counts_once(folder):
    for name in ("cat/cat_3", "dog/dog_0", "dog/dog_3"):
        (folder / "train" / f"{name}.png").write_bytes(b"damaged")
    train = ImageFolder(folder, split="train")
    order = ["cat_0", "cat_1", "cat_2", "dog_1", "dog_1", "dog_1", "dog_2", "cat_0"]
    for indices in (range(8), reversed(range(8))):
        assert all(train[i].name.endswith(f"{order[i]}.png") for i in indices)
    assert sorted(train.skipped.names) == ["cat/cat_3.png", "dog/dog_0.png", "dog/dog_3.png"]
    assert str(train.skipped).startswith("3 images skipped: cat/cat_3.png")
    assert train[3].label == 1  # the label of the image that is shown


def test_workers_share_the_log_through_its_file(folder, tmp_path):
    (folder / "train" / "cat" / "cat_1.png").write_bytes(b"damaged")
    log = SkipLog(tmp_path / "skipped.jsonl")
    views = Views(ImageFolder(folder, split="train", skipped=log), TrainTransform(8))
    for workers in (0, 2):
        assert sum(len(batch.names) for batch in DataLoader(views, 2, num_workers=workers, collate_fn=collate)) == 8
    assert SkipLog.read(log.file).names == ["cat/cat_1.png"]
    assert len(SkipLog.read(tmp_path / "none")) == 0


def test_nothing_readable_is_one_line(tmp_path):
    dataset = NpzShard(write_shard(tmp_path / "shard.npz", damaged=range(6)))
    with pytest.raises(UnreadableImage, match=r"^none of the 4 images can be read; the first met: shard.npz/2: "):
        dataset[2]


def test_refusals_come_before_anything_runs(folder, tiny, tmp_path):
    (tmp_path / "train" / "owl").mkdir()
    (tmp_path / "flat").mkdir()
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4 no")
    np.savez(tmp_path / "other.npz", jpeg=np.zeros(3))
    cases = [
        ("folder:nowhere", None, "no folder at nowhere"),
        (f"folder:{tmp_path}", "train", "owl holds no images"),
        (f"folder:{tmp_path}", "test", "no folder test in .*; put images of that split there"),
        (f"folder:{tmp_path / 'flat'}", None, "no class folders in .*: put the images of each class"),
        (f"imagenetv2:{tmp_path / 'val'}", None, "called 0 to 999, got 'cat'"),
        (f"imagenetv2:{tmp_path}", "val", "split of imagenetv2 must be one of .*top-images.* got 'val'"),
        (f"tiny-imagenet:{tmp_path / 'flat'}", "train", "no folder at .*train"),
        (f"npz:{tmp_path}/none.npz", "train", "no file at"),
        (f"npz:{tmp_path}/broken.npz", "train", "broken.npz is not a complete npz file"),
        (f"npz:{tmp_path}/other.npz", "train", "the arrays .*'offset'.* are missing"),
        ("shapes", "test", "split must be one of"),
        (
            "shape",
            None,
            "unknown dataset 'shape'; accepted are shapes, .*folder:PATH, .*wds:PATTERN, hf:NAME",
        ),
        ("folder", None, "unknown dataset 'folder'"),
        ("shapes:here", None, "unknown dataset 'shapes:here'"),
    ]
    for name, split, message in cases:
        with pytest.raises((ValueError, FileNotFoundError), match=rf"^[^\n]*{message}[^\n]*$"):
            open_dataset(name, split=split)
    with pytest.raises(TypeError, match=r"dataset 'shapes': .*'colour'"):
        open_dataset("shapes", colour="red")
