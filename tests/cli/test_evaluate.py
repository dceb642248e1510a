"""infsa evaluate: tables and JSON for folders, generated shapes and ImageNet-V2."""

import json
from pathlib import Path

import pytest
from PIL import Image

import infsa
from infsa.cli.evaluate import splits_of
from infsa.data.folders import IMAGENET_V2
from tests.cli.test_cli import run
from tests.data.helpers import write_image, write_photos
from tests.models.helpers import small


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A model of two classes and photos of both."""
    root = tmp_path_factory.mktemp("two")
    write_photos(root / "photos", {"cat": "red", "dog": "blue"}, 3)
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
    words = ["--model", *words] if words else words
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
    words = ["-m", two[0], "--data", f"folder:{tmp_path / 'photos'}", "--json", "--device", "cpu"]
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
    assert err == "infsa: the model has 1000 classes, the dataset 2\n"


def test_a_shipped_model_has_too_many_classes_for_shapes(monkeypatch, capsys):
    code, _, err = evaluate(monkeypatch, capsys, "vit_tiny")
    assert code == 1
    assert err.count("\n") == 1


def test_help_has_an_example(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "evaluate", "--help")
    assert code == 0
    assert "Example: infsa evaluate" in " ".join(out.split())


# Names, reports, and what a run held out


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A model that tells red, green and blue apart without fail, and a folder of each, with another beside them."""
    import torch
    from torchvision.transforms.functional import normalize

    from infsa.evaluate import data_config
    from infsa.models.weights import describe_data

    root = tmp_path_factory.mktemp("named")
    options = {"num_classes": 3, "img_size": 32, "depth": 1, "embed_dim": 16, "num_heads": 2}
    model = infsa.create_model("infvit_linear_tiny", **options).eval()
    describe_data(model, label_names=["red", "green", "blue"])
    config = data_config(model)
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
    images = torch.stack([torch.tensor(c).view(3, 1, 1).expand(3, 32, 32) / 255 for c in colours.values()])
    images = normalize(images, config["mean"], config["std"])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), torch.arange(3)).backward()
        optimizer.step()
    for name, colour in {**colours, "zebra": (0, 0, 0), "apple": (255, 255, 255)}.items():
        for index in range(3):
            write_image(root / "photos" / name / f"{index}.png", colour, (32, 32))
    return str(infsa.models.save_weights(model, root / "model")), root / "photos"


def test_classes_are_matched_by_name_and_the_rest_is_said(monkeypatch, capsys, named, tmp_path):
    """In the order of the folders, apple, blue, green, red, zebra, nothing would be right."""
    code, out, err = evaluate(monkeypatch, capsys, named[0], "--data", f"folder:{named[1]}", "--json")
    (found,) = json.loads(out)["results"].values()
    assert (code, found["images"], found["top1"]) == (0, 9, 1.0)
    assert found["per_class"] == {"red": 1.0, "green": 1.0, "blue": 1.0}
    assert err == "note: 2 of 5 classes of the data are not the model's, left out: apple, zebra\n"
    for name in ("red", "blue"):
        write_image(tmp_path / "two" / name / "0.png", name, (32, 32))
    _, out, err = evaluate(monkeypatch, capsys, named[0], "--data", f"folder:{tmp_path / 'two'}", "--json")
    (found,) = json.loads(out)["results"].values()
    assert (found["images"], found["top1"], found["per_class"]["green"]) == (2, 1.0, None)
    assert "1 of 3 classes of the model have no images in the data: green" in err


def test_names_that_cannot_be_right_are_refused(monkeypatch, capsys, named, two, tmp_path):
    code, out, err = evaluate(monkeypatch, capsys, named[0], "--data", f"folder:{two[1]}")
    assert (code, out) == (1, "")
    assert "no name in common: rename the folders" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("width", ["80", "40"])
def test_a_report_and_tables_that_fit(monkeypatch, capsys, named, tmp_path, width):
    import csv

    monkeypatch.setenv("COLUMNS", width)
    words = [named[0], "--data", f"folder:{named[1]}", "--out", tmp_path / "out"]
    code, out, _ = evaluate(monkeypatch, capsys, *words)
    assert code == 0
    for line in out.splitlines():
        assert len(line) <= int(width) or line.startswith(("note: ", "  /"))
    for word in ("worst class", "mostly predicted as", "red"):
        assert word in " ".join(out.split())
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"result.json", "per-class.csv", "confusion.csv", "confusion.png"}
    with open(tmp_path / "out" / "per-class.csv") as file:
        assert next(csv.DictReader(file)) == {"class": "red", "images": "3", "right": "3", "top1": "1.0"}
    with open(tmp_path / "out" / "confusion.csv") as file:
        rows = list(csv.reader(file))
    assert [row[0] for row in rows[1:]] == rows[0][1:] == ["red", "green", "blue"]
    assert [row[1:] for row in rows[1:]] == [["3", "0", "0"], ["0", "3", "0"], ["0", "0", "3"]]
    with Image.open(tmp_path / "out" / "confusion.png") as figure:
        assert min(figure.size) > 300


def test_odd_names_reach_every_output(monkeypatch, capsys, tmp_path):
    """Markup, mathematics, line breaks and bytes that are no text."""
    import os

    names = ["[bold]a[red", "$x$ $", "two\nlines", os.fsdecode(b"\xe9t\xe9"), "été"]
    for name in names:
        write_image(tmp_path / "photos" / name / "0.png", size=(32, 32))
    model = infsa.models.save_weights(small(num_classes=5), tmp_path / "model")
    words = [model, "--data", f"folder:{tmp_path / 'photos'}", "--out", tmp_path / "out"]
    code, out, err = evaluate(monkeypatch, capsys, *words)
    assert (code, err) == (0, "")
    assert "[bold]a[red" in out
    assert (tmp_path / "out" / "confusion.png").stat().st_size > 0


def test_a_model_is_measured_on_what_its_run_held_out(monkeypatch, capsys, tmp_path):
    from tests.train.helpers import options

    for label, colour in (("cat", "red"), ("dog", "blue")):
        for index in range(10):
            write_image(tmp_path / "photos" / label / f"{index}.png", colour, (32, 32))
    words = [*options(data_options={}, batch_size=8, epochs=2), "--data", f"folder:{tmp_path / 'photos'}"]
    assert run(monkeypatch, capsys, "train", *words, "--out", str(tmp_path / "run"))[0] == 0
    model, counts = tmp_path / "run" / "model", {}
    for split in ("none", "val", "train", "all"):
        given = [] if split == "none" else ["--split", split]
        _, out, err = evaluate(monkeypatch, capsys, model, *given, "--json")  # the data is that of the run
        counts[split] = next(iter(json.loads(out)["results"].values()))["images"]
        assert ("held out" in err) == (split == "none")
    assert counts == {"none": 4, "val": 4, "train": 16, "all": 20}


def test_what_was_held_out_is_known_from_any_folder(monkeypatch, capsys, tmp_path):
    from tests.train.helpers import options

    for index in range(20):
        write_image(tmp_path / "photos" / "ab"[index % 2] / f"{index}.png", "red", (32, 32))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    words = [*options(data_options={}, batch_size=8, epochs=2), "--data", "folder:photos"]
    assert run(monkeypatch, capsys, "train", *words, "--out", "run")[0] == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    _, out, _ = evaluate(monkeypatch, capsys, "../run", "--data", "folder:../photos", "--json")
    assert next(iter(json.loads(out)["results"].values()))["images"] == 4


def test_a_run_with_validation_data_of_its_own_is_measured_on_them(monkeypatch, capsys, tmp_path, two):
    model, photos = two
    write_photos(tmp_path / "others", {"cat": "red", "dog": "blue"}, 2)
    run_folder = tmp_path / "run"
    (run_folder / "model").mkdir(parents=True)
    for file in Path(model).iterdir():
        (run_folder / "model" / file.name).write_bytes(file.read_bytes())
    recipe = {"data": f"folder:{photos / 'train'}", "val_data": f"folder:{tmp_path / 'others' / 'train'}"}
    (run_folder / "recipe.json").write_text(json.dumps(recipe))
    code, out, err = evaluate(monkeypatch, capsys, run_folder, "--json")
    (found,) = json.loads(out)["results"].values()
    assert (code, err, found["images"]) == (0, "", 4)


def test_a_shipped_model_asks_for_its_data(monkeypatch, capsys):
    code, out, err = evaluate(monkeypatch, capsys, "infvit_linear_tiny")
    assert (code, out) == (1, "")
    assert "--data" in err
