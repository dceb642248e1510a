"""Examples that train by streaming: a folder of images with labels, and a few large files."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tifffile

from infsa.evaluate import load_model
from infsa.evaluate.maps import model_tasks

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_on_slides.py"
SMALL = ["--side", "64", "--width", "16", "--depth", "1", "--epochs", "1", "--batch", "2", "--tile", "32"]


def slides(folder, labels):
    """Four small TIFFs, and a table of their labels."""
    folder.mkdir()
    for index in range(4):
        pixels = np.random.default_rng(index).integers(0, 256, (48 + 16 * (index % 2), 64, 3), np.uint8)
        tifffile.imwrite(folder / f"{index}.tif", pixels, tile=(16, 16), photometric="rgb")
    (folder / "labels.csv").write_text(labels)
    return folder


def run(*arguments, example=EXAMPLE):
    spec = importlib.util.spec_from_file_location(example.stem, example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([str(argument) for argument in arguments])


def test_a_folder_of_slides_is_trained_and_saved(tmp_path, capsys):
    labels = "file,kind,found*\n0.tif,a,x;y\n1.tif,b,\n2.tif,a,y\n3.tif,b,x\n"
    run(slides(tmp_path / "slides", labels), "--out", tmp_path / "model", *SMALL)
    assert "on 1 held out: kind" in capsys.readouterr().out
    tasks = model_tasks(load_model(tmp_path / "model"))
    assert [(task.name, task.classes, task.multilabel) for task in tasks] == [
        ("kind", ("a", "b"), False),
        ("found", ("x", "y"), True),
    ]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("file,kind\n0.tif,a\n1.tif,\n", "1.tif must have one answer for 'kind'"),
        ("file,kind\n0.tif,a\nnone.tif,b\n", "labels.csv names none.tif"),
        ("name,kind\n0.tif,a\n", "must have a column 'file'"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, labels, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(slides(tmp_path / "slides", labels), "--out", tmp_path / "model", *SMALL)


def test_a_gigapixel_example_says_its_speed_and_memory(tmp_path, capsys):
    folder = slides(tmp_path / "slides", "")
    images = [f"{folder / '0.tif'}=3", f"{folder / '1.tif'}=7"]
    run(*images, "--steps", "2", "--tile", "32", "--device", "cpu", "--out", tmp_path / "model",
        example=EXAMPLE.with_name("finetune_gigapixel.py"))  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all("Mpx/s" in line and "peak" in line for line in lines[:4])
    assert float(lines[2].split("loss ")[1].split(",")[0]) < float(lines[0].split("loss ")[1].split(",")[0])
    load_model(tmp_path / "model")
    with pytest.raises(ValueError, match="FILE=CLASS"):
        run("0.tif", "--device", "cpu", example=EXAMPLE.with_name("finetune_gigapixel.py"))
