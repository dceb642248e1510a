"""Recipes: what can be set, what is refused, and the learning rate."""

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infsa.files import write_json
from infsa.train import RECIPES, WEIGHT_DECAYS, Recipe, read_recipe
from infsa.train.resume import check_same_run
from tests.data.helpers import one_line

FIELDS = [field.name for field in dataclasses.fields(Recipe)]


def test_the_paper():
    paper = RECIPES["paper"]
    paper.check()
    assert (paper.optimizer, paper.lr, paper.lr_final) == ("adamw", 5e-4, 0)
    assert (paper.epochs, paper.warmup_epochs, paper.batch_size) == (300, 10, 64)
    assert (paper.precision, paper.clip_norm, paper.image_size, paper.val_resize) == ("16-mixed", 0, 224, 257)
    assert (paper.crop_min, paper.flip, paper.jitter) == (0.08, 0.5, (0.4, 0.4, 0.4, 0.1))
    off = ("mixup", "cutmix", "label_smoothing", "erase", "drop_path", "randaugment", "ema")
    assert all(getattr(paper, name) == 0 for name in off)
    assert (WEIGHT_DECAYS[0], WEIGHT_DECAYS[-1]) == (1e-4, 2.5e-2)
    assert paper.weight_decay in WEIGHT_DECAYS


def test_deit_regularises_and_tiny_is_small():
    deit, tiny = RECIPES["deit"], RECIPES["tiny"]
    for recipe in (deit, tiny):
        recipe.check()
    assert all(getattr(deit, name) > 0 for name in ("mixup", "cutmix", "label_smoothing", "erase", "drop_path"))
    assert tiny.image_size == 64


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_recipe_can_be_read_back(name, tmp_path):
    recipe = RECIPES[name].override({"model_options": {"gamma": 0.5, "attention_options": {"iterations": 2}}})
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.as_dict()))
    assert Recipe().override(read_recipe(tmp_path / "recipe.json")) == recipe


def test_a_recipe_of_version_01_can_be_read(tmp_path):
    old = RECIPES["tiny"].as_dict() | {"size": 48, "accelerator": "gpu"}
    del old["image_size"], old["device"]
    (tmp_path / "recipe.json").write_text(json.dumps(old))
    read = Recipe().override(read_recipe(tmp_path / "recipe.json"))
    assert (read.image_size, read.device) == (48, "cuda")
    check_same_run(read, old)
    with pytest.raises(ValueError, match=one_line("image_size=48, got 64")):
        check_same_run(read.override({"image_size": 64}), old)


def test_as_dict_is_a_copy_of_plain_data():
    recipe = Recipe(model_options={"gamma": 0.5})
    recipe.as_dict()["jitter"].append(1)
    assert set(recipe.as_dict()) == set(FIELDS)
    assert json.loads(json.dumps(recipe.as_dict())) == recipe.as_dict()


def test_infinity_is_a_word_in_json(tmp_path):
    recipe = Recipe(model_options={"attention_options": {"hops": math.inf}})
    write_json(recipe.as_dict(), tmp_path / "recipe.json")  # strict JSON
    assert Recipe().override(read_recipe(tmp_path / "recipe.json")) == recipe


def test_strings_are_read_as_the_fields_type():
    changes = {
        "epochs": "7", "lr": "1e-3", "warmup_epochs": "0.5", "compile": "true", "grad_checkpointing": "False",
        "jitter": "0.1,0.2,0.3", "loader": "resident", "model": "vit_tiny",
    }  # fmt: skip
    recipe = Recipe().override(changes)
    assert (recipe.epochs, recipe.lr, recipe.warmup_epochs) == (7, 1e-3, 0.5)
    assert (recipe.compile, recipe.grad_checkpointing) == ("on", False)
    assert (recipe.jitter, recipe.loader, recipe.model) == ((0.1, 0.2, 0.3), "resident", "vit_tiny")


def test_toml_may_write_whole_numbers_as_floats_and_the_reverse(tmp_path):
    (tmp_path / "mine.toml").write_text("epochs = 5.0\nlr = 1\njitter = [0, 0.5, 1]\n[model_options]\ngamma = 0.5\n")
    recipe = Recipe().override(read_recipe(tmp_path / "mine.toml"))
    assert (recipe.epochs, recipe.lr, recipe.jitter) == (5, 1.0, (0.0, 0.5, 1.0))
    assert isinstance(recipe.epochs, int)
    assert isinstance(recipe.lr, float)
    assert recipe.model_options == {"gamma": 0.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", "many"), ("epochs", 2.5), ("epochs", True), ("epochs", None), ("epochs", [3]), ("epochs", math.inf),
        ("lr", "fast"), ("lr", False), ("lr", {}), ("compile", 1), ("compile", "yes"), ("model", 3), ("data", None),
        ("loader", "disk"), ("precision", 16), ("strategy", ["ddp"]), ("jitter", "a,b"), ("jitter", "0.4,,0.4"),
        ("jitter", [True, False, True]), ("model_options", "depth"), ("model_options", 3), ("data_options", ""),
    ],
)  # fmt: skip
def test_a_wrong_type_is_one_line_that_names_field_and_value(field, value):
    with pytest.raises(ValueError, match=one_line(f"{field} must be ")) as caught:
        Recipe().override({field: value})
    assert repr(value) in str(caught.value)


def test_an_unknown_field_is_one_line_that_names_the_known():
    with pytest.raises(ValueError, match=one_line("'learning_rate'")) as caught:
        Recipe().override({"learning_rate": 1})
    assert "warmup_epochs" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.toml", b"lr = "), ("a.json", b"{"), ("a.toml", b"\xff"), ("a.json", b"[1]"), ("a.json", b"3")],
)
def test_an_unreadable_file_is_one_line(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=one_line("")):
        Recipe().override(read_recipe(tmp_path / name))


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0}, {"batch_size": 0}, {"accumulate": 0}, {"seed": -1}, {"lr": -1e-3}, {"lr": math.nan},
        {"weight_decay": -1}, {"warmup_epochs": -1}, {"warmup_epochs": 300}, {"beta2": 1}, {"beta2": -0.1}, {"ema": 1},
        {"clip_norm": -1}, {"label_smoothing": 1}, {"mixup": -0.1}, {"cutmix": -1}, {"mix_prob": 1.1},
        {"drop_path": 1}, {"image_size": 0}, {"val_resize": 223}, {"crop_min": 0}, {"crop_min": 1.1},
        {"crop_ratio": 0.9}, {"flip": 1.5}, {"randaugment": 11}, {"erase": -0.1}, {"workers": -1},
        {"devices": 0}, {"nodes": 0}, {"val_every": 0}, {"save_every": -1}, {"keep": 0}, {"log_every": 0},
        {"model": "resnet50"}, {"optimizer": "adamx"}, {"strategy": "fsdp", "precision": "16-mixed"},
        {"jitter": (-1, 0, 0)}, {"jitter": (0.1,)}, {"jitter": ()}, {"jitter": (0, 0, 0, 0, 9)},
        {"jitter": (math.nan, 0, 0)}, {"jitter": (0, 0, 0, 0.6)}, {"interpolation": "cubic"}, {"lr": math.inf},
        {"crop_ratio": math.inf}, {"weight_decay": math.inf}, {"mixup": math.inf}, {"seed": 2**64},
        {"loader": "resident", "jitter": (0, 0, 0, 0.1)},
        {"loader": "resident", "jitter": (0, 0, 0), "interpolation": "lanczos"},
        {"loader": "resident", "jitter": (0, 0, 0), "randaugment": 9},
        {"loader": "resident", "jitter": (0.1,)},
        {"init": "vit_tiny", "weight_init": "xavier"},
    ],
)  # fmt: skip
def test_values_that_no_run_can_honour_are_one_line(changes):
    with pytest.raises(ValueError, match=one_line("")) as caught:
        dataclasses.replace(Recipe(), **changes).check()
    name, value = list(changes.items())[-1]
    assert name in str(caught.value) or repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "images", "world"),
    [
        ({"batch_size": 64}, 63, 1),
        ({"batch_size": 64}, 100, 3),
        ({"batch_size": 10, "accumulate": 4}, 100, 1),
        ({"batch_size": 8, "accumulate": 4, "cutmix": 1.0}, 100, 2),
        ({"batch_size": 5, "mixup": 0.1}, 100, 1),
    ],
)
def test_impossible_batches_are_one_line(changes, images, world):
    with pytest.raises(ValueError, match=one_line(f"{changes['batch_size']}|even number")):
        dataclasses.replace(Recipe(), **changes).check_batches(images, world)


def test_possible_batches_pass():
    Recipe(batch_size=64).check_batches(64, 1)
    Recipe(batch_size=5, accumulate=5).check_batches(5, 1)
    Recipe(batch_size=8, accumulate=2, cutmix=1.0).check_batches(100, 2)


# The learning rate

schedules = st.builds(
    lambda epochs, warmup, lr, final: Recipe(epochs=epochs, warmup_epochs=warmup * epochs, lr=lr, lr_final=final * lr),
    st.integers(1, 20), st.floats(0, 0.99), st.floats(1e-6, 1), st.floats(0, 1),
)  # fmt: skip


@given(schedules, st.integers(1, 30))
def test_the_rate_rises_linearly_and_falls_from_the_peak_to_the_end(recipe, per_epoch):
    rates = [recipe.learning_rate(step, per_epoch) for step in range(recipe.epochs * per_epoch)]
    warm = math.ceil(recipe.warmup_epochs * per_epoch)
    tolerance = 1e-9 * recipe.lr
    assert all(0 < rate <= recipe.lr + tolerance or recipe.lr_final == 0 for rate in rates)
    rises = [b - a for a, b in itertools.pairwise(rates[:warm])]
    assert all(rise == pytest.approx(rises[0], abs=tolerance) and rise > 0 for rise in rises)
    assert all(b <= a + tolerance for a, b in itertools.pairwise(rates[warm:]))
    assert all(rate >= recipe.lr_final - tolerance for rate in rates[warm:])


def test_the_corners_of_the_schedule():
    recipe = Recipe(epochs=10, warmup_epochs=2, lr=1.0, lr_final=0.1)
    assert recipe.learning_rate(0, 5) == pytest.approx(1 / 11)  # the first step is taken
    assert recipe.learning_rate(9, 5) == pytest.approx(10 / 11)
    assert recipe.learning_rate(10, 5) == 1.0
    assert recipe.learning_rate(30, 5) == pytest.approx(0.55)  # half way down the cosine
    assert recipe.learning_rate(50, 5) == pytest.approx(0.1)
    assert recipe.learning_rate(10**6, 5) == pytest.approx(0.1)
    assert Recipe(epochs=1, warmup_epochs=0, lr=1.0).learning_rate(0, 1) == 1.0


@pytest.mark.parametrize("name", ["checkpoint_path", "pretrained_cfg_overlay", "pretrained_cfg", "pretrained"])
def test_model_options_are_arguments_of_the_model(name):
    with pytest.raises(ValueError, match=f"takes no argument '{name}'"):
        Recipe(model_options={name: "x"}).check()
