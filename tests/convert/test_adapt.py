"""Adaptation: every stage learns, a run goes on to the bit, no labels are needed."""

import json
import sys

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

import infsa
from infsa.cli.app import main
from infsa.conversion import load_converted
from infsa.train.adapt import Adapter, adapt
from infsa.train.adaptation import Adaptation, usual_side
from infsa.train.distill import class_logits, layer_loss, logit_loss, recorded_calls
from infsa.train.init import read_start

OPTIONS = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
TINY = {
    "data_options": {"length": 48, "classes": 4}, "image_size": 32, "batch_size": 16, "interpolation": "bilinear",
    "workers": 0, "layer_epochs": 3, "logit_epochs": 3,
}  # fmt: skip


def pair(variant="pure", **settings):
    torch.manual_seed(0)
    original = timm.create_model("deit_tiny_patch16_224", **OPTIONS).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return original, infsa.convert(original, variant, learn_gamma=True, **settings)


def calls_of(model, images):
    with recorded_calls(model, ["blocks.0.attn", "blocks.1.attn"]) as calls:
        model(images)
    return calls


@torch.no_grad()
def total_loss(layer, original, batches):
    return sum(layer_loss(layer, calls_of(original, images)["blocks.0.attn"]).item() for images in batches)


def test_an_unconverted_layer_has_nothing_to_learn():
    original, _ = pair()
    calls = calls_of(original, torch.randn(4, 3, 32, 32))
    assert layer_loss(original.blocks[1].attn, calls["blocks.1.attn"]) == 0
    assert not original.blocks[1].attn._forward_hooks
    logits = torch.randn(3, 4)
    assert logit_loss(logits, logits, 2.0) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("variant", "level"), [("pure", "swap"), ("linear", "swap"), ("linear", "surgery")])
def test_every_stage_learns(variant, level, tmp_path):
    original, converted = pair(variant, level=level)
    state = {name: value.clone() for name, value in original.state_dict().items()}
    fields = {**TINY, "layer_lr": 5e-3, "logit_lr": 1e-3}
    plan = Adaptation(**{**fields, "logit_epochs": 0})
    views = [batch[0] for batch in Adapter(original, converted, plan, tmp_path).feed.training(0, 3)]
    before = total_loss(converted.blocks[0].attn, original, views)
    adapt(original, converted, plan, tmp_path / "layers")
    assert total_loss(converted.blocks[0].attn, original, views) < before
    images = torch.cat(views)
    before = logit_loss(converted(images), original(images), 2.0)
    adapt(original, converted, Adaptation(**{**fields, "layer_epochs": 0}), tmp_path / "logits")
    assert logit_loss(converted(images), original(images), 2.0) < before
    plan = Adaptation(**{**TINY, "layer_epochs": 0, "logit_epochs": 0}, label_epochs=1, mixup=0.2)
    result = adapt(original, converted, plan, tmp_path / "labels")
    assert [row["stage"] for row in result["history"]] == ["original", "converted", "labels"]
    assert result["history"][0]["agreement"] == 1.0
    assert any(abs(gamma - 0.7) > 1e-4 for gamma in result["gamma"]["blocks.0.attn"])
    assert all(torch.equal(value, state[name]) for name, value in original.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in original.parameters())
    assert json.loads((tmp_path / "labels" / "result.json").read_text())["made_with"]["torch"] == torch.__version__


class Stop(Exception):
    """A run that is killed."""


RESUMED = Adaptation(**{**TINY, "layer_epochs": 2, "logit_epochs": 2}, log_every=1, save_every=2)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    original, whole = pair()
    return whole, adapt(original, whole, RESUMED, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("killed_at", [1, 5, 9])
def test_a_killed_run_goes_on_to_the_bit(killed_at, whole_run, tmp_path):
    whole, expected = whole_run

    def kill(row):
        if row["kind"] == "train" and row["step"] == killed_at:
            raise Stop

    original, first = pair()
    with pytest.raises(Stop):
        adapt(original, first, RESUMED, tmp_path / "cut", watch=kill)
    original, second = pair()
    result = adapt(original, second, RESUMED, tmp_path / "cut", resume=True)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in whole.state_dict().items())
    unclocked = [[{k: v for k, v in row.items() if k != "seconds"} for row in r["history"]] for r in (expected, result)]
    assert unclocked[0] == unclocked[1]
    finished = pair()[1]
    again = adapt(original, finished, RESUMED, tmp_path / "cut", resume=True)
    assert again["history"] == result["history"]
    assert torch.equal(finished.head.weight, whole.head.weight)


def test_a_batch_that_nobody_asked_for_fits_the_images(tmp_path):
    plan = Adaptation(**{**TINY, "layer_epochs": 1, "logit_epochs": 0, "batch_size": 1000})
    with pytest.raises(ValueError, match="number of images"):
        adapt(*pair(), plan, tmp_path / "asked")
    used = adapt(*pair(), plan, tmp_path / "fitted", fit_batch=True)["plan"]["batch_size"]
    assert 1 < used < 1000


def test_without_a_classifier_the_features_are_learned(tmp_path):
    original = timm.create_model("deit_tiny_patch16_224", **{**OPTIONS, "num_classes": 0}).eval()
    converted = infsa.convert(original, "pure")
    plan = Adaptation(**{**TINY, "layer_epochs": 0, "logit_epochs": 12, "logit_lr": 5e-3})
    first, before, after = adapt(original, converted, plan, tmp_path)["history"]
    assert first["agreement"] == pytest.approx(1)
    assert before["agreement"] < after["agreement"] < 1
    assert after["top1"] is None


def test_an_image_size_that_the_original_does_not_take_is_named(tmp_path):
    with pytest.raises(ValueError, match="image_size=48 does not fit the model"):
        adapt(*pair(), Adaptation(**{**TINY, "image_size": 48}), tmp_path)


def test_wrong_runs_are_refused(tmp_path):
    plan = Adaptation(**{**TINY, "layer_epochs": 1, "logit_epochs": 0})
    original, converted = pair()
    with pytest.raises(ValueError, match="no parameters to train"):
        adapt(original, pair()[1].requires_grad_(False), plan, tmp_path)
    with pytest.raises(ValueError, match="no layer of this"):
        adapt(original, original, plan, tmp_path)
    adapt(original, converted, plan, tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        adapt(original, converted, plan, tmp_path)
    with pytest.raises(ValueError, match=r"started with layer_lr=0\.001"):
        adapt(original, converted, Adaptation(**{**TINY, "layer_epochs": 1, "logit_epochs": 0, "layer_lr": 1.0}),
              tmp_path, resume=True)  # fmt: skip
    with pytest.raises(ValueError, match="converted with other settings"):
        adapt(original, pair("linear")[1], plan, tmp_path, resume=True)


def test_models_that_do_not_fit_are_refused(tmp_path):
    original, converted = pair()
    five = Adaptation(**{**TINY, "data_options": {"length": 48, "classes": 5}, "label_epochs": 1})
    with pytest.raises(ValueError, match="with 5 classes, got 4"):
        adapt(original, converted, five, tmp_path)
    features = timm.create_model("deit_tiny_patch16_224", **OPTIONS, global_pool="").eval()
    features.reset_classifier(0, "")
    with pytest.raises(ValueError, match=r"classifier of images, .*got logits of shape \(12, 5, 16\)"):
        adapt(features, infsa.convert(features), Adaptation(**TINY), tmp_path)
    with pytest.raises(ValueError, match="got dict"):
        class_logits({})


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos" / "deep"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for index in range(20):
        pixels = generator.integers(0, 255, (24, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "photos"


def test_a_folder_without_labels(photos, tmp_path):
    fields = {**TINY, "data": f"images:{photos}", "data_options": {}, "batch_size": 6}
    original, converted = pair()
    result = adapt(original, converted, Adaptation(**fields), tmp_path / "run")
    assert [row["top1"] for row in result["history"]] == [None] * 4
    assert result["history"][0]["images"] == 2
    with pytest.raises(ValueError, match="label_epochs=1 needs labels"):
        adapt(original, converted, Adaptation(**fields, label_epochs=1), tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds 0 images"):
        adapt(original, converted, Adaptation(**{**fields, "data": f"images:{tmp_path / 'empty'}"}), tmp_path / "other")


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["infsa", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


def test_the_command(photos, monkeypatch, capsys, tmp_path):
    options = [part for name, value in OPTIONS.items() for part in ("--model-option", f"{name}={value}")]
    arguments = ["adapt", "-m", "deit_tiny_patch16_224", *options, "--data", f"images:{photos}", "--image-size", "32"]
    arguments += ["--batch-size", "6", "--layer-epochs", "1", "--logit-epochs", "1", "--out", str(tmp_path / "run")]
    arguments += ["--variant", "linear", "--set", "workers=0", "--device", "cpu"]
    code, out, _ = run(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    assert [row["stage"] for row in json.loads(out)["history"]][-1] == "logits"
    model = load_converted(tmp_path / "run" / "model.safetensors")
    start = read_start(str(tmp_path / "run"))  # for train --init
    assert start.arguments["embed_dim"] == OPTIONS["embed_dim"]
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 4)
    code, out, _ = run(monkeypatch, capsys, *arguments, "--resume")
    assert code == 0
    assert "agreement" in out


def test_the_command_shows_a_plan_and_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["adapt", "-m", "vit_tiny_patch16_224", "--model-option", "depth=1", "--data", "images:photos", "--plan"]
    code, out, err = run(monkeypatch, capsys, *words, "--logit-epochs", "3", "--no-learn-gamma")
    assert (code, err) == (0, "")
    assert "blocks.0.attn" in out
    assert "On images:photos at 224 px, epochs: layers 2, logits 3, labels 0" in out
    code, out, _ = run(monkeypatch, capsys, *words, "--json")
    assert json.loads(out)["epochs"] == {"layers": 2, "logits": 5, "labels": 0}
    assert not list(tmp_path.iterdir())


WRONG = {
    "--set colour=1": "colour",
    "--set image_size=8": "use --image-size",
    "--set lr=1": "unknown field 'lr'; known are layer_lr",
    "--set temperature=0": "got 0",
    "--layer-epochs -1": "got -1",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage(words, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "adapt", "-m", "deit_tiny_patch16_224", "--data", "shapes", *words.split())
    assert code == 2
    assert WRONG[words] in err
    assert err.count("\n") == 1


def test_images_have_the_size_that_the_model_was_built_for():
    assert usual_side(timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1)) == 64
    assert usual_side(timm.create_model("swin_tiny_patch4_window7_224", img_size=96)) == 96
    assert usual_side(torchvision.models.VisionTransformer(48, 16, 1, 2, 8, 16)) == 48
    assert (
        usual_side(
            ViTForImageClassification(
                ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=80)
            )
        )
        == 80
    )
    assert usual_side(torch.nn.TransformerEncoderLayer(8, 2)) == 224
