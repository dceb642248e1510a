"""The experiments on both shards: their points are recipes, and an interrupted experiment goes on."""

import re
import time

import pytest
import typer

from infsa.data import NpzShard
from infsa.files import read_json, write_json
from infsa.train import RECIPES
from tests.data.helpers import one_line, write_shard
from tests.scripts import load_script

SETS = [
    "device=cpu", "compile=false", "precision=32-true", "epochs=2", "batch_size=8", "val_every=1", "log_every=1",
    'model_options={"depth": 1, "embed_dim": 8, "num_heads": 2, "learn_gamma": true}', "workers=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def experiments():
    return load_script("experiments")


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in "ab":
        write_shard(folder / f"{name}.npz", images=20, prefix=name)
    return folder


@pytest.mark.parametrize(("experiment", "count"), [("start", 18), ("wide", 3), ("decay", 11), ("ship", 3)])
def test_every_point_is_a_recipe_of_its_own(experiments, experiment, count, tmp_path):
    recipes = [experiments.recipe_of(experiment, name, 0, tmp_path, []) for name in experiments.points(experiment)]
    for recipe in recipes:
        recipe.check()
        assert recipe.data_options == {}  # those of other kinds of data are refused
        write_json(recipe.as_dict(), tmp_path / "recipe.json")
    assert len({str(recipe.as_dict()) for recipe in recipes}) == len(recipes) == count


def test_the_wide_models_have_the_papers_recipe(experiments, tmp_path):
    paper = RECIPES["paper"]
    for name in experiments.WIDE:
        recipe = experiments.recipe_of("wide", name, 0, tmp_path, [])
        for field in ("optimizer", "lr", "batch_size", "weight_decay", "clip_norm", "mixup", "cutmix", "crop_min"):
            assert getattr(recipe, field) == getattr(paper, field)
        assert recipe.warmup_epochs / recipe.epochs == paper.warmup_epochs / paper.epochs


def test_parts_are_the_same_images(experiments, shards, tmp_path):
    experiments.split(shards, tmp_path / "parts", 4)
    assert len(list((tmp_path / "parts").glob("*.npz"))) == 4
    for name in ("train", "val"):
        one, other = NpzShard(shards, name), NpzShard(tmp_path / "parts", name)
        assert one.classes == other.classes
        images = [sorted((s.label, s.image.tobytes(), s.boxes.tolist()) for s in data) for data in (one, other)]
        assert images[0] == images[1]
    with pytest.raises(typer.BadParameter, match=one_line(r"must lie in \[1, 6\].* got 7")):
        experiments.split(shards, tmp_path / "parts", 7)


def test_an_experiment_stops_goes_on_and_keeps_what_is_done(experiments, shards, tmp_path, capsys):
    out, to = tmp_path / "runs", tmp_path / "start.json"
    only = "infsa_pure_xavier_adamw,infsa_linear_normal_muon"

    def train(minutes, seeds="0"):
        experiments.train("start", shards, out, to, minutes, 2, seeds, only, SETS)
        return capsys.readouterr().out

    assert "0 of 2 runs are in" in train(0.0)
    assert "failed" not in train((experiments.GRACE + 0.2) / 60)  # stopped before their first step
    assert not to.exists()
    assert "2 of 2 runs are in" in train(10.0)
    rows = read_json(to)
    assert set(rows) == set(only.split(","))
    for runs in rows.values():
        assert runs[0]["recipe"]["data"] == "npz:shards"
        assert (runs[0]["classes"], len(runs[0]["gammas"][0])) == (6, 2)
    before = to.read_bytes()
    started = time.monotonic()
    text = train(10.0)
    assert to.read_bytes() == before
    assert re.search(r"infsa_pure_xavier_adamw +\| +\d+\.\d\d +\| +\| 1 of 1", text)
    assert time.monotonic() - started < 60  # nothing was trained again
    with pytest.raises(ValueError, match=one_line("the run was started with epochs=2, got 3")):
        experiments.train("start", shards, out, to, 1.0, 2, "0", only, [*SETS, "epochs=3"])


def test_a_run_that_fails_is_said(experiments, shards, tmp_path, capsys):
    options = ("start", shards, tmp_path / "runs", tmp_path / "start.json", 10.0, 1, "0", "softmax_normal_adamw")
    with pytest.raises(SystemExit):
        experiments.train(*options, [*SETS, "batch_size=1000"])
    assert "batch_size 1000 is more than the 36 training images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("experiment", "only", "message"),
    [("none", "", "experiment must be one of"), ("wide", "mean", "--only must name points of wide, got \\['mean'\\]")],
)
def test_what_there_is_not_is_one_line(experiments, experiment, only, message, tmp_path):
    with pytest.raises(typer.BadParameter, match=one_line(message)):
        experiments.train(experiment, tmp_path, tmp_path, tmp_path / "x.json", 1.0, 1, "0", only, [])


def test_maps_of_finished_runs_are_measured(experiments, shards, tmp_path, capsys):
    out = tmp_path / "runs"
    experiments.train("wide", shards, out, tmp_path / "wide.json", 10.0, 1, "0", "infsa_linear", SETS)
    experiments.measure(shards, out, tmp_path, 0.0, 4, 4, "cpu")
    assert not (tmp_path / "quality-wide.json").exists()
    experiments.measure(shards, out, tmp_path, 10.0, 4, 4, "cpu")
    quality, found = (read_json(tmp_path / f"{name}-wide.json") for name in ("quality", "alignment"))
    assert list(quality["runs"]) == list(found["runs"]) == ["infsa_linear-0"]
    assert quality["runs"]["infsa_linear-0"]["group"] == "infsa_linear"
    assert capsys.readouterr().out.count("infsa_linear") > 2


def test_nothing_is_shipped_before_all_three_models_are_there(tmp_path):
    write_json({"top1": 0.5}, tmp_path / "softmax-0" / "result.json")
    with pytest.raises(typer.BadParameter, match="holds no finished run of infsa_pure"):
        load_script("tiny_imagenet").ship(tmp_path)
