"""Curves and ablation figures are drawn from the files that runs leave."""

import json

import pytest
from PIL import Image

from infsa.report.ablation import cell, draw_ablation
from infsa.report.training import draw_curve, read_log

TRAIN = [
    {"kind": "train", "step": s, "epoch": s / 2, "loss": 1 / s, "lr": 1.0, "images_per_s": 9} for s in (1, 2, 3, 4)
]
VAL = [{"kind": "val", "step": s, "epoch": s / 2, "top1": s / 10, "top5": 1.0, "val_loss": 0.3} for s in (2, 4)]


def write_log(folder, rows):
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_log_is_read_by_kind(tmp_path):
    write_log(tmp_path, [*TRAIN[:2], VAL[0], *TRAIN[2:], VAL[1]])
    assert read_log(tmp_path) == {"train": TRAIN, "val": VAL}


@pytest.mark.parametrize("rows", [[*TRAIN, *VAL], [TRAIN[0], VAL[0]]])
def test_the_curve_is_an_image(rows, tmp_path):
    write_log(tmp_path, rows)
    path = draw_curve(tmp_path)
    assert path == tmp_path / "curve.png"
    with Image.open(path) as figure:
        assert min(figure.size) > 300


def row(point, **values):
    return {"point": point, "seeds": [values, values], "mean": values, "deviation": dict.fromkeys(values, 0.01)}


def test_cells():
    full = row({"gamma": 0.3}, top1=0.5, epochs_to_convergence=3.0) | {"latency": {"train_ms": 12.34}}
    assert cell(full, "top1") == "50.0 ± 1.0"
    assert cell(full, "epochs_to_convergence") == "3.0 ± 0.0"
    assert cell(full, "train_ms") == "12.3"
    assert cell(full, "morf_aoc") == ""
    assert cell(row({}, top1=1.0), "infer_ms") == ""


def test_a_point_without_a_number_is_drawn_as_none(tmp_path):
    rows = [row({"gamma": 0.3}, top1=0.5, morf_aoc=0.2), row({"gamma": 0.7}, top1=0.5)]
    path = draw_ablation({"rows": rows}, tmp_path / "a.png")
    with Image.open(path) as figure:
        assert min(figure.size) > 300
