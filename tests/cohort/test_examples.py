"""The examples of what a table is for run, on a cohort that can be told apart."""

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from infsa.cohort import embed

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def cohort(tmp_path):
    """Two classes of six images, light and dark."""
    for kind, level in (("dark", 20), ("light", 220)):
        (tmp_path / "in" / kind).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (40, 40 + 8 * number), (level + number, level, level)).save(
                tmp_path / "in" / kind / f"<{number}>.png"
            )
    return tmp_path / "in"


def run(monkeypatch, capsys, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_whole_images_and_their_tiles_are_probed_alike(cohort, model, tmp_path, monkeypatch, capsys):
    embed(cohort, model, tmp_path / "whole.parquet")
    page = tmp_path / "page.html"
    out = run(monkeypatch, capsys, "cohort_probe.py", tmp_path / "whole.parquet", "--page", page)
    assert "12 images, 32 numbers each" in out
    assert "linear probe: 100.0% of 2 classes" in out
    assert page.read_text().count("<img") == 12 * 6
    assert "<0>" not in page.read_text()

    files = sorted(cohort.rglob("*.png"))
    run(monkeypatch, capsys, "cohort_tiles.py", *files, "--model", model, "--side", 16, "--out", tmp_path / "t.parquet")
    tiles = pd.read_parquet(tmp_path / "t.parquet")
    assert tiles["path"].to_list() == [str(file) for file in files]
    assert tiles["tiles"].to_list()[:2] == [4, 6]
    assert "linear probe: 100.0%" in run(monkeypatch, capsys, "cohort_probe.py", tmp_path / "t.parquet")
