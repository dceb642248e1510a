"""examples/train_on_slides.py: a folder of images with labels becomes a model that knows its questions."""

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


def run(*arguments):
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
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
