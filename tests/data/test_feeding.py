"""The feeding benchmark: its generated shard is a shard, and the document shows what was measured and nothing else."""

import json

import numpy as np
import pytest

from infsa.data import NpzShard, Shapes
from tests.scripts import BENCHMARKS, load_script

RESULT = BENCHMARKS / "results" / "feeding.json"


@pytest.fixture(scope="module")
def feeding():
    return load_script("feeding")


def test_the_generated_shard_holds_the_shapes(feeding, tmp_path):
    shard = NpzShard(feeding.write_shard(tmp_path / "shapes.npz", images=20))
    assert shard.classes == Shapes().classes
    for drawn, read in zip(Shapes(length=20), shard, strict=True):
        assert (read.label, read.boxes.tolist()) == (drawn.label, drawn.boxes.tolist())
        difference = np.abs(np.asarray(read.image, int) - np.asarray(drawn.image, int)).mean()
        assert difference < np.asarray(drawn.image, int).std() / 2


def test_the_document_shows_the_measured_figures(feeding):
    shown = (BENCHMARKS.parent / "docs" / "data.md").read_text().split(feeding.MARKS[0])[1].split(feeding.MARKS[1])[0]
    measured = feeding.table(json.loads(RESULT.read_text())) if RESULT.exists() else ""
    assert shown == measured


RESULTS = {
    "config": {"model": "m", "size": 64, "batch": 128},
    "machine": {"cpu": "a processor", "cores": 2},
    "versions": {"torch": "2"},
    "step": [99, 100, 104],
    "rows": [{"data": "shapes", "workers": 1, "loader": [250, 249, 260], "fed": [90, 91, 89]}],
}


def test_the_table_shows_medians_between_its_marks(feeding, tmp_path):
    document = tmp_path / "data.md"
    document.write_text(f"before\n{feeding.MARKS[0]}old\n{feeding.MARKS[1]}after\n")
    for _ in range(2):
        feeding.update(document, feeding.table(RESULTS))
    text = document.read_text()
    assert "| shapes | 1 | 250 | 90 | 0.90 |" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_figures_from_a_busy_machine_are_named(feeding):
    assert feeding.unsteady(RESULTS) == []
    assert feeding.unsteady(RESULTS | {"step": [99, 100, 15]}) == ["step: [99, 100, 15] images/s"]
    rows = [RESULTS["rows"][0] | {"fed": [90, 12, 89]}]
    assert feeding.unsteady(RESULTS | {"rows": rows}) == ["fed, shapes, 1 workers: [90, 12, 89] images/s"]


def test_windows_count_images_per_second(feeding, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(feeding.time, "perf_counter", lambda: next(clock))
    assert feeding.windows(lambda: 7, seconds=5, count=3) == [6, 6, 6]  # four steps of 7 end before the fifth tick
