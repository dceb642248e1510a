"""infsa evaluate: tables and JSON for folders, generated shapes and ImageNet-V2."""

import json

import pytest
from PIL import Image

import infsa
from infsa.cli.evaluate import splits_of
from infsa.data.folders import IMAGENET_V2
from tests.cli.test_cli import run
from tests.data.helpers import write_image
from tests.models.helpers import small


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A model of two classes and photos of both."""
    root = tmp_path_factory.mktemp("two")
    for split in ("train", "val"):
        for label, colour in (("cat", "red"), ("dog", "blue")):
            for index in range(3):
                write_image(root / "photos" / split / label / f"{index}.png", colour, (40, 34))
    return str(infsa.models.save_weights(small(num_classes=2), root / "model")), root / "photos"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("v2")
    for folder in IMAGENET_V2.values():
        for label in (0, 2, 10, 999):
            (root / folder / str(label)).mkdir(parents=True)
            Image.new("RGB", (40, 30)).save(root / folder / str(label) / "a.png")
    return str(infsa.models.save_weights(small(num_classes=1000), root / "model")), root


def evaluate(monkeypatch, capsys, *words):
    code, out, err = run(monkeypatch, capsys, "evaluate", *map(str, words), "--workers", "0", "--device", "cpu")
    return code, out, err


def test_json_on_the_screen_and_in_a_file(monkeypatch, capsys, tmp_path, two):
    model, photos = two
    words = [model, "--data", f"folder:{photos}", "--json", "--out", tmp_path / "a" / "result.json"]
    code, out, err = evaluate(monkeypatch, capsys, *words)
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "a" / "result.json").read_text()) == content
    assert set(content["results"]["val"]["per_class"]) == {"cat", "dog"}
    assert (content["results"]["val"]["images"], content["data"], content["model"]) == (6, "folder:photos", "model")


def test_the_name_of_the_data_survives_where_there_is_no_split(monkeypatch, capsys, two):
    model, photos = two
    code, out, _ = evaluate(monkeypatch, capsys, model, "--data", f"folder:{photos / 'train'}", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["data"] == "folder:train"
    (found,) = content["results"].values()
    assert found["images"] == 6


def test_a_table(monkeypatch, capsys, two):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = evaluate(monkeypatch, capsys, two[0], "--data", f"folder:{two[1]}", "--split", "train")
    assert code == 0
    for word in ("top-1", "top-5", "loss", "worst class", "best class", "train", "cat"):
        assert word in out


def test_shapes_have_as_many_classes_as_the_model(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("infsa.data.shapes.LENGTHS", {"train": 30, "val": 30})
    folder = infsa.models.save_weights(small(num_classes=6), tmp_path / "model")
    code, out, _ = evaluate(monkeypatch, capsys, folder, "--json")
    assert code == 0
    assert len(json.loads(out)["results"]["val"]["per_class"]) == 6


def test_imagenet_v2_in_all_three_variants(monkeypatch, capsys, tree):
    code, out, err = evaluate(monkeypatch, capsys, tree[0], "--data", f"imagenetv2:{tree[1]}", "--json")
    content = json.loads(out)["results"]
    assert (code, err) == (0, "")
    assert set(IMAGENET_V2) == set(content)
    for variant in IMAGENET_V2:
        seen = {name for name, share in content[variant]["per_class"].items() if share is not None}
        assert (content[variant]["images"], seen) == (4, {"0", "2", "10", "999"})


def test_one_variant(monkeypatch, capsys, tree):
    words = [tree[0], "--data", f"imagenetv2:{tree[1]}", "--split", "threshold-0.7", "--json"]
    code, out, _ = evaluate(monkeypatch, capsys, *words)
    assert code == 0
    assert list(json.loads(out)["results"]) == ["threshold-0.7"]


def test_the_folder_of_one_variant_itself(monkeypatch, capsys, tree):
    folder = tree[1] / IMAGENET_V2["threshold-0.7"]
    code, out, _ = evaluate(monkeypatch, capsys, tree[0], "--data", f"imagenetv2:{folder}", "--json")
    assert code == 0
    assert [value["images"] for value in json.loads(out)["results"].values()] == [4]


def test_the_splits_of_a_data_set(two, tree):
    assert splits_of("shapes", None) == ["val"]
    assert splits_of("shapes", "train") == ["train"]
    assert splits_of(f"folder:{two[1]}", None) == ["val"]
    assert splits_of(f"folder:{two[1] / 'val'}", None) == [None]
    assert splits_of(f"imagenetv2:{tree[1]}", None) == ["matched-frequency", "threshold-0.7", "top-images"]


def test_unreadable_images_are_noted_whatever_the_workers(monkeypatch, capsys, tmp_path, two):
    for index, label in enumerate(("cat", "dog")):
        write_image(tmp_path / "photos" / label / "0.png", ("red", "blue")[index], (40, 40))
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"damaged")
    words = [two[0], "--data", f"folder:{tmp_path / 'photos'}", "--json", "--device", "cpu"]
    for workers in (0, 1):
        _, out, _ = run(monkeypatch, capsys, "evaluate", *map(str, words), "--workers", str(workers))
        found = [value["skipped"] for value in json.loads(out)["results"].values()]
        assert found == [["cat/1.png"]]


@pytest.mark.parametrize(
    ("words", "message", "expected"),
    [
        (["MODEL", "--data", "folder:/nowhere"], "/nowhere", 1),
        (["MODEL", "--data", "photos"], "'photos'", 1),
        (["MODEL", "--data", "folder:PHOTOS", "--split", "test"], "test", 1),
        (["MODEL", "--data", "folder:PHOTOS", "--crop-pct", "2"], "crop_pct", 1),
        (["MODEL", "--data", "folder:PHOTOS", "--batch-size", "0"], "got 0", 2),
        (["MODEL", "--data", "imagenetv2:PHOTOS"], "ImageNet-V2", 1),
        (["/nowhere/model"], "/nowhere/model", 1),
        (["nonesuch"], "nonesuch", 1),
        ([], "model", 2),
    ],
)
def test_wrong_usage_is_one_line(words, message, expected, monkeypatch, capsys, two):
    given = [word.replace("MODEL", two[0]).replace("PHOTOS", str(two[1])) for word in words]
    code, out, err = evaluate(monkeypatch, capsys, *given)
    assert (code, out) == (expected, "")
    assert message in err
    assert err.count("\n") == 1


def test_another_number_of_classes_is_one_line(monkeypatch, capsys, tree, two):
    code, _, err = evaluate(monkeypatch, capsys, tree[0], "--data", f"folder:{two[1]}")
    assert code == 1
    assert err == "infsa: the model has 1000 classes, the data set 2\n"


def test_a_shipped_model_has_too_many_classes_for_shapes(monkeypatch, capsys):
    code, _, err = evaluate(monkeypatch, capsys, "vit_tiny")
    assert code == 1
    assert err.count("\n") == 1


def test_help_has_an_example(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "evaluate", "--help")
    assert code == 0
    assert "Example: infsa evaluate" in " ".join(out.split())
