"""infsa predict: every file in the output, in order, with classes or a reason; and one line for every mistake."""

import csv
import io
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.data import decode, transform_for
from infsa.data.paths import list_images
from infsa.evaluate import class_names, data_config, load_model
from infsa.evaluate.predictions import View, predict_files
from infsa.models import describe_data, save_weights
from tests.cli.test_cli import run
from tests.models.helpers import small

NAMES = ["ant", "bee", "cow", "dog", "eel"]
BAD = ("truncated.jpg", "text.png", "empty.gif")


def photograph(size, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of many kinds and sizes, and some that are none."""
    root = tmp_path_factory.mktemp("images")
    photo = photograph((40, 60))
    photo.save(root / "a.jpg")
    photo.save(root / "webp.webp", lossless=True)
    photo.save(root / "tiff.tif")
    photo.convert("L").save(root / "grey.png")
    photo.convert("CMYK").save(root / "cmyk.jpg")
    photo.convert("P").save(root / "palette.gif")
    rgba = photo.convert("RGBA")
    rgba.putalpha(100)
    rgba.save(root / "alpha.png")
    photo.save(root / "animated.gif", save_all=True, append_images=[photograph((40, 60), 1)])
    turned = Image.Exif()
    turned[0x0112] = 6
    photo.save(root / "turned.jpg", exif=turned)
    photograph((30, 90), 2).save(root / "wide.png")
    (root / "truncated.jpg").write_bytes((root / "a.jpg").read_bytes()[:300])
    (root / "text.png").write_text("not an image")
    (root / "empty.gif").write_bytes(b"")
    (root / "inside").mkdir()
    photograph((64, 64), 3).save(root / "inside" / "a.jpg")
    (root / "inside" / "notes.txt").write_text("no image")
    (root / ".hidden.png").write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    made = infsa.create_model("infvit_linear_tiny", num_classes=5, depth=2, embed_dim=24, num_heads=2)
    describe_data(made, label_names=NAMES, crop_pct=0.8)
    return save_weights(made, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def everything(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".txt", "")
                  and not path.name.startswith("."))  # fmt: skip


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_every_file_has_a_line_in_order_with_classes_or_a_reason(monkeypatch, capsys, model, everything):
    arguments = [*map(str, everything), "-m", str(model), "--batch-size", "3"]
    code, out, err = run(monkeypatch, capsys, "predict", *arguments)
    rows = rows_of(out)
    assert code == 0
    assert [row["file"] for row in rows] == [str(path) for path in everything]
    for row, path in zip(rows, everything, strict=True):
        if path.name in BAD:
            assert row["error"]
            assert row["class_1"] == row["probability_5"] == ""
            assert str(path) not in row["error"]
        else:
            shares = [float(row[f"probability_{place}"]) for place in range(1, 6)]
            assert row["error"] == ""
            assert {row[f"class_{place}"] for place in range(1, 6)} == set(NAMES)
            assert shares == sorted(shares, reverse=True)
            assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert err == f"{len(everything) - 3} images classified, 3 could not be read\n"


def test_predictions_are_those_that_evaluate_measures(model, folder):
    network = load_model(model)
    files = [folder / name for name in ("a.jpg", "wide.png", "turned.jpg", "cmyk.jpg", "animated.gif")]
    transform = transform_for(data_config(network), train=False)
    for found in predict_files(network, files, batch_size=2):
        pixels, _ = transform(decode(found.file), np.zeros((0, 4), np.float32))
        with torch.no_grad():
            wanted = network(pixels[None]).softmax(-1)[0]
        assert dict(found.classes) == pytest.approx(dict(zip(NAMES, wanted.tolist(), strict=True)), abs=1e-5)
        assert found.classes[0][0] == NAMES[wanted.argmax()]


@pytest.mark.parametrize("resolution", ["crop", "model", "native", 32])
def test_batches_change_nothing(resolution, model, folder, everything):
    network = load_model(model)
    found = [
        list(predict_files(network, everything, resolution=resolution, batch_size=size, workers=workers))
        for size, workers in ((1, 1), (5, 3))
    ]
    for one, other in zip(*found, strict=True):
        assert (one.file, bool(one.error)) == (other.file, bool(other.error))
        assert dict(one.classes) == pytest.approx(dict(other.classes), abs=1e-5)


def test_whole_images_keep_their_shape(model, folder):
    view = View(load_model(model), "native")
    assert view(Image.open(folder / "wide.png"))[0].shape == (3, 32, 88)
    assert View(load_model(model), 32)(Image.open(folder / "wide.png"))[0].shape == (3, 16, 56)


def test_folders_patterns_and_files_each_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = list_images(["inside", "*.webp", "inside/*.jpg", "nothing*.png", "gone.jpg", "inside/a.jpg"])
    assert [str(path) for path in found.files] == ["inside/a.jpg", "webp.webp"]
    assert found.missing == {"nothing*.png": "nothing matches this pattern", "gone.jpg": "no such file"}
    assert found.ignored == 1
    assert all(not path.name.startswith(".") for path in list_images(["."]).files)


def test_json_lines_and_maps(monkeypatch, capsys, model, folder, tmp_path):
    files = [
        str(folder / "a.jpg"),
        str(folder / "inside" / "a.jpg"),
        str(folder / "wide.png"),
        str(folder / "text.png"),
    ]
    target = tmp_path / "new.jsonl"
    options = ["-m", str(model), "--top-k", "2", "--out", str(target), "--maps", str(tmp_path / "maps")]
    code, out, _ = run(monkeypatch, capsys, "predict", *files, *options)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert (code, out) == (0, "")
    assert [line["file"] for line in lines] == files
    assert [len(line["predictions"]) for line in lines[:3]] == [2, 2, 2]
    assert lines[3].keys() == {"file", "error"}
    maps = [line["map"] for line in lines[:3]]
    assert [os.path.basename(path) for path in maps] == ["a-1.png", "a-2.png", "wide.png"]
    assert [Image.open(path).size for path in maps] == [(32, 32), (52, 52), (24, 24)]
    code, out, _ = run(monkeypatch, capsys, "predict", files[0], "-m", str(model), "--json")
    assert json.loads(out)["predictions"][0].keys() == {"class", "probability"}


def test_nothing_readable_is_exit_code_1_and_still_listed(monkeypatch, capsys, model, folder, tmp_path):
    code, out, err = run(monkeypatch, capsys, "predict", str(folder / "text.png"), "gone.jpg", "-m", str(model))
    assert code == 1
    assert [row["error"] for row in rows_of(out)] == ["no such file", "not an image in a known format"]
    assert err == "0 images classified, 2 could not be read\n"
    code, out, _ = run(monkeypatch, capsys, "predict", str(tmp_path), "-m", str(model))
    assert (code, [row["error"] for row in rows_of(out)]) == (1, ["no images in this folder"])


def test_names_that_are_not_text_are_escaped(monkeypatch, capsys, model, folder, tmp_path):
    name = os.path.join(os.fsencode(tmp_path), b"\xff,\n.png")
    with open(name, "wb") as file:
        file.write((folder / "wide.png").read_bytes())
    code, out, _ = run(monkeypatch, capsys, "predict", str(tmp_path), "-m", str(model))
    (row,) = rows_of(out)
    assert code == 0
    assert row["file"].endswith("\\xff,\n.png")


def test_models_that_cannot_are_refused(tmp_path, monkeypatch, capsys, folder):
    for name, options, reason in (
        ("headless", {"num_classes": 0}, "num_classes=0"),
        ("grey", {"in_chans": 1}, "in_chans=1"),
        ("fixed", {"dynamic_img_size": False}, "accepts only images of (32, 32)"),
        ("linformer", {"attention": "linformer"}, "no attention map"),
    ):
        save_weights(small(**{"attention": "infsa_linear", **options}), tmp_path / name)
        words = ["-m", str(tmp_path / name), "--maps", str(tmp_path / "maps")]
        words += ["--resolution", "native"] if name == "fixed" else []
        code, out, err = run(monkeypatch, capsys, "predict", str(folder / "wide.png"), *words)
        assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)
        assert reason in err


def test_an_image_too_large_for_memory_is_listed(model, folder, monkeypatch):
    monkeypatch.setattr("infsa.evaluate.predictions.MAX_WEIGHTS", 10**4)
    network = load_model(model)
    (found,) = predict_files(network, [folder / "wide.png"], resolution="native")
    assert "lower the resolution" in found.error
    assert class_names(network) == NAMES


def test_help_has_an_example(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "predict", "--help")
    assert code == 0
    assert "Example: infsa predict" in " ".join(out.split())
