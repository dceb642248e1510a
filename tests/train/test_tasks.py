"""A run with several answers: every task in the log and the result, and a saved model that knows its tasks."""

import json

import pytest
import torch

from infsa.cli.evaluate import drawn_as_trained
from infsa.data import DigitSums, MegapixelDigits
from infsa.evaluate import evaluate_model, load_model
from infsa.evaluate.maps import model_tasks
from infsa.evaluate.predictions import predict_files
from infsa.models.weights import read_data_config
from infsa.train import Recipe, train
from infsa.train.fitting import fitted
from infsa.train.recipe import DRAWN, RECIPES

from .helpers import TINY

FIELDS = TINY | DRAWN | {
    "data": "megapixel-digits", "data_options": {"length": 24, "noise": 2, "side": 176}, "image_size": 48,
    "val_resize": 48, "epochs": 2, "warmup_epochs": 0.5, "label_smoothing": 0.1, "mixup": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on images that the model sees smaller."""
    return train(Recipe(**FIELDS), tmp_path_factory.mktemp("tasks"))


def test_every_task_is_recorded(run):
    assert set(run.result["tasks"]) == {"majority", "max", "top", "multi"}
    shares = [own["top1"] for own in run.result["tasks"].values()]
    assert run.result["top1"] == pytest.approx(sum(shares) / 4)
    assert set(run.result["tasks"]["multi"]) == {"top1", "bits"}
    lines = [json.loads(line) for line in (run.out / "log.jsonl").read_text().splitlines()]
    assert [line["tasks"] for line in lines if line["kind"] == "val"][-1] == run.result["tasks"]
    assert any("scikit-learn" in note for note in run.notes)
    assert "right answers" in (run.out / "model" / "README.md").read_text()


def test_the_saved_model_knows_its_tasks_and_scores_the_same(run):
    model = load_model(run.out / "model")
    dataset = MegapixelDigits(split="val", side=176, noise=2, length=40)
    assert model_tasks(model) == dataset.tasks
    found = evaluate_model(model, "megapixel-digits", "val", data_options={"side": 176, "noise": 2, "length": 40})
    assert found.images == 40
    assert set(found.tasks) == set(run.result["tasks"])
    answers = dataset.compose(torch.arange(40))[1]
    assert found.counts == answers.sum(0).tolist()
    assert len(found.per_class) == 40
    assert read_data_config(run.out / "model")["tasks"] == dataset.tasks.as_list()


def test_the_command_draws_the_images_of_the_test_as_those_of_training(run):
    assert drawn_as_trained(str(run.out / "model"), "megapixel-digits") == {"side": 176, "noise": 2}
    assert drawn_as_trained(str(run.out / "model"), "shapes") == {}
    assert drawn_as_trained("infvit_linear_tiny", "megapixel-digits") == {}


def test_other_tasks_are_refused(run):
    model = load_model("infvit_linear_tiny")
    with pytest.raises(ValueError, match="the tasks of the model and of megapixel-digits differ"):
        evaluate_model(model, "megapixel-digits", "val", data_options={"side": 176, "length": 4})


def test_predictions_answer_every_task(run, tmp_path):
    file = tmp_path / "one.png"
    MegapixelDigits(side=176, noise=2)[0].image.save(file)
    (found,) = predict_files(load_model(run.out / "model"), [file], top_k=10)
    names, shares = zip(*found.classes, strict=True)
    assert len(names) == len(set(names)) == 40
    assert [name.split()[0] for name in names[::10]] == [
        "majority",
        "max",
        "top",
        "multi",
    ]
    assert [sum(shares[start : start + 10]) for start in (0, 10, 20)] == pytest.approx([1, 1, 1], abs=1e-5)


def test_sums_are_trained_evaluated_and_predicted_as_one_task(tmp_path):
    options = {"length": 24, "noise": 2, "side": 224, "scatter": True}
    run = train(Recipe(**FIELDS | {"data": "digit-sums", "data_options": options}), tmp_path / "run")
    assert "tasks" not in run.result
    source = str(run.out / "model")
    assert drawn_as_trained(source, "digit-sums") == {"side": 224, "noise": 2}
    found = evaluate_model(
        load_model(source), "digit-sums", "val", data_options={"side": 224, "noise": 2, "length": 28}
    )
    assert found.images == 28  # as many as sums
    assert found.top1 == pytest.approx(run.result["top1"])
    DigitSums(side=224, noise=2)[0].image.save(tmp_path / "one.png")
    (predicted,) = predict_files(load_model(source), [tmp_path / "one.png"], top_k=28)
    assert {name for name, _ in predicted.classes} == {str(total) for total in range(28)}
    with pytest.raises(ValueError, match="flip must be"):
        Recipe(**FIELDS | {"data": "digit-sums", "data_options": options, "flip": 0.5}).check()


@pytest.mark.parametrize("field", ["crop_min", "flip", "erase", "cutmix", "loader"])
def test_views_that_would_change_the_answers_are_refused(field):
    wrong = "workers" if field == "loader" else 0.5
    with pytest.raises(ValueError, match=f"{field} must be .* with data 'megapixel-digits', got {wrong!r}"):
        Recipe(**FIELDS | {field: wrong}).check()


def test_what_nobody_asked_for_gives_way():
    recipe, notes = fitted(RECIPES["tiny"].override({"data": "megapixel-digits"}), RECIPES["tiny"], {"data"})
    assert {name: getattr(recipe, name) for name in DRAWN} == DRAWN
    assert any("crop_min" in note for note in notes)
