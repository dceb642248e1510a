"""Hugging Face tables: loaded ones, folders, parquet files and saved sets."""

import datasets
import pytest
from PIL import Image

from infsa.data import HuggingFace, open_dataset, open_hugging_face

from .helpers import encoded, one_line, plain_image, red, write_image


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def table(labels, kind=None, first=0, **columns):
    pictures = [{"bytes": plain_image(first + i), "path": None} for i in range(len(labels))]
    kind = kind or datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"img": datasets.Image(), "kind": kind, **dict.fromkeys(columns, kind)})
    return datasets.Dataset.from_dict({"img": pictures, "kind": labels, **columns}, features=features)


def test_a_loaded_table():
    pictures = [{"bytes": encoded(Image.new("L", (4, 3), i)), "path": None} for i in range(3)]
    pictures[1]["bytes"] = b"damaged"
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})
    rows = datasets.Dataset.from_dict({"picture": pictures, "kind": [0, 1, 1]}, features=features)
    for dataset in (HuggingFace(rows, image="picture", label="kind"), HuggingFace(rows)):
        assert dataset.classes == ["cat", "dog"]
        assert [(s.name, s.label, s.image.mode) for s in dataset] == [
            ("row 0", 0, "RGB"), ("row 2", 1, "RGB"), ("row 2", 1, "RGB"),
        ]  # fmt: skip
        assert dataset.skipped.names == ["row 1"]
    with pytest.raises(ValueError, match=r"no column 'image'; the dataset has \['picture', 'kind'\]"):
        HuggingFace(rows, image="image")
    with pytest.raises(TypeError, match="got IterableDataset"):
        HuggingFace(rows.to_iterable_dataset())


def test_selected_rows_keep_their_labels():
    rows = HuggingFace(table([0, 1, 1, 0]).select([3, 1]))
    assert [(red(sample), sample.label) for sample in rows] == [(3, 0), (1, 1)]


def test_the_label_column_is_found_or_asked_for():
    assert HuggingFace(table([0, 1], fine_label=[1, 0])).labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match=one_line("cannot tell the label column among .* pass label=")):
        HuggingFace(table([0, 1], coarse=[1, 0]))
    numbers = datasets.Value("int64")
    with pytest.raises(ValueError, match=one_line("cannot tell the label column")):
        HuggingFace(table([0, 1], numbers))
    assert HuggingFace(table([2, 0], numbers), label="kind").classes == ["0", "1", "2"]


@pytest.mark.parametrize("test_name", ["validation", "test"])
def test_a_folder_of_images(tmp_path, test_name):
    for split, names in (("train", "cat dog owl"), (test_name, "cat owl")):
        for name in names.split():
            write_image(tmp_path / split / name / "a.png")
    train, val = (open_dataset(f"hf:{tmp_path}", split=split) for split in ("train", "val"))
    assert train.classes == val.classes == ["cat", "dog", "owl"]
    assert val.labels.tolist() == [0, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["train", test_name])


def test_saved_sets_and_words_as_labels(tmp_path):
    words = datasets.Value("string")
    splits = {"train": table(["owl", "cat", "newt"], words), "validation": table(["owl"], words, first=7)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    train, val = (open_hugging_face(str(tmp_path / "saved"), split, label="kind") for split in ("train", "val"))
    assert train.classes == val.classes == ["cat", "newt", "owl"]
    assert (train.labels.tolist(), val.labels.tolist()) == ([2, 0, 1], [2])
    assert red(val[0]) == 7
    splits["train"].save_to_disk(tmp_path / "one")
    assert len(open_hugging_face(str(tmp_path / "one"), label="kind")) == 3


def test_a_parquet_file(tmp_path):
    table([0, 1]).to_parquet(tmp_path / "rows.parquet")
    rows = open_dataset(f"hf:{tmp_path / 'rows.parquet'}", split="train")
    assert [(red(sample), sample.label) for sample in rows] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match=one_line("has no split 'val'; it has \\['train'\\]")):
        open_dataset(f"hf:{tmp_path / 'rows.parquet'}", split="val")


def test_refusals_are_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    datasets.DatasetDict({"train": table([0, 0]), "test": table([-1, -1])}).save_to_disk(tmp_path / "saved")
    cases = [
        (f"hf:{tmp_path / 'nowhere'}", "train", "nowhere cannot be opened"),
        (f"hf:{tmp_path / 'notes.txt'}", "train", "a file must end in one of"),
        (f"hf:{tmp_path / 'saved'}", "train", "split 'train': class 'dog' has no images"),
        (f"hf:{tmp_path / 'saved'}", "val", "split 'test': column 'kind': labels must be from 0 to 1, got -1"),
        ("hf:", "train", "unknown dataset 'hf:'"),
    ]
    for name, split, message in cases:
        with pytest.raises(ValueError, match=one_line(message)):
            open_dataset(name, split=split)
