"""Every field of a recipe changes what it says it changes, and nothing is accepted and ignored."""

import dataclasses
import json

import pytest
import torch

from infsa.models import save_weights
from infsa.train import Recipe, list_checkpoints, train
from infsa.train.fit import machine_options
from infsa.train.module import build_model, smoothed
from tests.data.helpers import one_line
from tests.models.helpers import small
from tests.train.helpers import STEPS, final_state, log_lines, tiny

BASE = {"loader": "workers", "epochs": 2, "mixup": 0.2, "jitter": (0.1, 0.1, 0.1)}
WEIGHTS = {  # fields that change the trained weights, one by one
    "model": "infvit_pure_tiny", "model_options": {"depth": 2, "embed_dim": 16, "num_heads": 2, "gamma": 0.3},
    "data_options": {"length": 48, "classes": 4, "seed": 1}, "seed": 1, "epochs": 3, "batch_size": 24,
    "optimizer": "nadamw", "lr": 2e-3, "lr_final": 5e-4, "layer_decay": 0.5, "warmup_epochs": 0.25, "weight_decay": 0.5,
    "beta2": 0.5, "clip_norm": 1e-3, "label_smoothing": 0.2, "mixup": 0.5, "cutmix": 1.0, "mix_prob": 0.1,
    "drop_path": 0.5, "crop_min": 0.9, "crop_ratio": 1.0, "flip": 0.0, "jitter": (0.4, 0.4, 0.4), "randaugment": 9,
    "erase": 1.0, "interpolation": "nearest", "mean": (0.5, 0.4, 0.3), "std": (0.5, 0.5, 0.5), "loader": "resident",
    "precision": "bf16-mixed", "weight_init": "xavier",
}  # fmt: skip
VALIDATION = {"val_data": "", "val_resize": 40, "ema": 0.5}  # fields that change what is validated alone
SAME = {"workers": 1, "grad_checkpointing": True, "val_every": 2, "save_every": 1, "keep": 1, "log_every": 2}
ELSEWHERE = {"data", "init", "image_size", "accumulate", "device", "devices", "nodes", "strategy", "compile"}
ELSEWHERE |= {"val_share"}


def test_no_field_is_forgotten():
    fields = {field.name for field in dataclasses.fields(Recipe)}
    assert fields == {*WEIGHTS, *VALIDATION, *SAME, *ELSEWHERE}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    out = tmp_path_factory.mktemp("base")
    train(tiny(**BASE), out)
    return out


def same_weights(out, other):
    (one, _), (two, _) = final_state(out), final_state(other)
    names = [name for name in one if name.startswith("model.")]
    return all(
        name in two and one[name].shape == two[name].shape and torch.equal(one[name], two[name]) for name in names
    )


@pytest.mark.parametrize("field", WEIGHTS)
def test_fields_that_change_the_weights(field, base, tmp_path):
    train(tiny(**BASE | {field: WEIGHTS[field]}), tmp_path)
    assert not same_weights(base, tmp_path)


@pytest.mark.parametrize("field", ["crop_min", "crop_ratio", "flip", "jitter", "erase", "interpolation", "seed"])
def test_the_resident_loader_honours_them_too(field, tmp_path):
    resident = BASE | {"loader": "resident", "epochs": 1, "warmup_epochs": 0}
    for folder, changes in (("a", {}), ("b", {field: WEIGHTS[field]})):
        train(tiny(**resident | changes), tmp_path / folder)
    assert not same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("field", ["val_resize", "ema"])
def test_fields_that_change_the_validation_alone(field, base, tmp_path):
    train(tiny(**BASE | {field: VALIDATION[field]}), tmp_path)
    assert same_weights(base, tmp_path)
    losses = [[row["val_loss"] for row in final_state(out)[1]["history"]] for out in (base, tmp_path)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("field", SAME)
def test_fields_that_leave_the_weights_alone(field, base, tmp_path):
    train(tiny(**BASE | {field: SAME[field]}), tmp_path)
    assert same_weights(base, tmp_path)
    epochs = [row["epoch"] for row in final_state(tmp_path)[1]["history"]]
    steps = [row["step"] for row in log_lines(tmp_path) if row["kind"] == "train"]
    saved = [int(path.stem[5:]) for path in list_checkpoints(tmp_path / "checkpoints")]
    assert epochs == ([2] if field == "val_every" else [1, 2])
    assert steps == ([2, 4, 6, 8] if field == "log_every" else list(range(1, 9)))
    assert saved == {"save_every": [8, 7, 6], "keep": [8]}.get(field, [8, 6, 3])


def test_the_last_epoch_is_validated_whatever_val_every(tmp_path):
    train(tiny(val_every=2), tmp_path)
    assert [row["epoch"] for row in final_state(tmp_path)[1]["history"]] == [2, 3]


def test_save_every_0_is_an_epoch(tmp_path):
    train(tiny(save_every=0, keep=9), tmp_path)
    assert [int(path.stem[5:]) for path in list_checkpoints(tmp_path / "checkpoints")] == [12, 8, 4]


def test_grad_checkpointing_reaches_the_model():
    assert build_model(tiny(grad_checkpointing=True), 4).grad_checkpointing
    assert not build_model(tiny(), 4).grad_checkpointing


def test_size_reaches_model_and_data(tmp_path):
    run = train(tiny(image_size=40, val_resize=40, epochs=1, warmup_epochs=0), tmp_path)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["pretrained_cfg"]["input_size"] == [3, 40, 40]
    assert run.result["recipe"]["image_size"] == 40


def test_the_machine_of_a_recipe():
    options = machine_options(tiny(accumulate=2, devices=3, nodes=2, precision="bf16-mixed"))
    assert (options["accelerator"], options["devices"], options["num_nodes"]) == ("cpu", 3, 2)
    assert (options["accumulate_grad_batches"], options["precision"]) == (2, "bf16-mixed")
    kinds = {s: type(machine_options(tiny(strategy=s))["strategy"]).__name__ for s in ("auto", "ddp", "fsdp")}
    assert kinds == {"auto": "str", "ddp": "DDPStrategy", "fsdp": "ModelParallelStrategy"}


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"device": "mps"}, {"precision": "16-mixed"}])
def test_devices_that_are_not_there_are_one_line(changes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=one_line("GPU|mps")):
        machine_options(tiny(**changes))


def test_init_starts_from_the_weights(tmp_path):
    folder = save_weights(small("infsa_linear", embed_dim=16, num_heads=2, num_classes=9), tmp_path / "init")
    recipe = tiny(init=str(folder), model_options={"depth": 2, "embed_dim": 16, "num_heads": 2})
    model, source = build_model(recipe, 4), small("infsa_linear", embed_dim=16, num_heads=2, num_classes=9)
    assert torch.equal(model.patch_embed.proj.weight, source.patch_embed.proj.weight)
    assert model.head.weight.shape == (4, 16)
    with pytest.raises(ValueError, match=one_line("gamma")):
        build_model(dataclasses.replace(recipe, model_options=recipe.model_options | {"gamma": 0.2}), 4)
    run = train(recipe, tmp_path / "run")
    assert len(run.result["history"]) == 3


def test_another_set_to_validate_on(tmp_path):
    from tests.data.helpers import write_image

    for root, splits in (("a", ("train",)), ("b", ("train", "val"))):
        for split in splits:
            for label, colour in (("cat", "red"), ("dog", "blue")):
                for index in range(8):
                    write_image(tmp_path / root / split / label / f"{index}.png", colour)
    fields = {"data": f"folder:{tmp_path / 'a'}", "data_options": {}, "batch_size": 8}
    with pytest.raises((ValueError, OSError), match=one_line("val")):
        train(tiny(**fields), tmp_path / "run")
    run = train(tiny(**fields, val_data=f"folder:{tmp_path / 'b'}"), tmp_path / "run")
    assert run.result["classes"] == ["cat", "dog"]


def test_a_validation_set_without_the_options_of_the_data_is_one_line(tmp_path):
    (tmp_path / "val" / "cat").mkdir(parents=True)
    with pytest.raises((ValueError, TypeError), match=one_line("length")):
        train(tiny(val_data=f"folder:{tmp_path}"), tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "word"),
    [({"num_classes": 7}, "num_classes"), ({"img_size": 64}, "img_size"), ({"drop_path_rate": 0.5}, "drop_path")],
)
def test_options_of_the_model_that_contradict_the_recipe_are_one_line(options, word, tmp_path):
    recipe = tiny(model_options={"depth": 2, "embed_dim": 16, "num_heads": 2, **options}, drop_path=0.1)
    with pytest.raises(ValueError, match=one_line(word)):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_smoothed_labels_are_the_textbook_rows():
    rows = smoothed(torch.tensor([1, 0]), classes=4, smoothing=0.2)
    torch.testing.assert_close(rows, torch.tensor([[0.05, 0.85, 0.05, 0.05], [0.85, 0.05, 0.05, 0.05]]))
    logits = torch.randn(2, 4)
    ours = torch.nn.functional.cross_entropy(logits, rows)
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0]), label_smoothing=0.2)
    torch.testing.assert_close(ours, theirs)


def test_the_first_step_is_the_plain_one(tmp_path):
    """One SGD step without augmentation, against a naive loop."""
    from infsa.data import open_dataset
    from infsa.data.order import Order
    from infsa.data.resident import load_resident

    plain = {
        "crop_min": 1.0,
        "crop_ratio": 1.0,
        "flip": 0.0,
        "jitter": (0, 0, 0),
        "clip_norm": 0.0,
        "weight_decay": 0.0,
    }
    recipe = tiny(**plain, optimizer="sgd", lr=0.1, warmup_epochs=0, epochs=1, batch_size=48)
    train(recipe, tmp_path)
    model = build_model(recipe, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    pixels, labels = load_resident(open_dataset("shapes", "train", size=32, length=48, classes=4), 32)
    _, indices = Order(48, 48, seed=0).batch(0)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = (pixels[indices].float() / 255 - mean) / std
    torch.nn.functional.cross_entropy(model(images), labels[indices]).backward()
    optimizer.step()
    trained, _ = final_state(tmp_path)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[f"model.{name}"], value, rtol=1e-4, atol=1e-6)


def test_the_result_says_everything(tmp_path):
    run = train(tiny(ema=0.9), tmp_path)
    assert json.loads((tmp_path / "result.json").read_text()) == run.result
    assert json.loads((tmp_path / "recipe.json").read_text()) == tiny(ema=0.9).as_dict() == run.result["recipe"]
    last = log_lines(tmp_path)[-1]
    assert (last["step"], last["top1"], last["val_loss"]) == (STEPS, run.result["top1"], run.result["val_loss"])
    assert {"torch", "infsa", "cpu", "python"} <= set(run.result["made_with"])


def test_the_exported_model_is_the_validated_average(tmp_path):
    import infsa
    from infsa.data import ValTransform
    from infsa.evaluate.accuracy import measure_accuracy, validation_loader
    from infsa.train.feed import open_splits

    run_recipe = tiny(ema=0.9, data_options={"length": 480, "classes": 4}, batch_size=120)
    run = train(run_recipe, tmp_path)
    model = infsa.create_model("infvit_linear_tiny", pretrained=tmp_path / "model")
    assert model.pretrained_cfg["label_names"] == run.result["classes"]
    _, val = open_splits(run_recipe)
    found = measure_accuracy(model.eval(), validation_loader(val, ValTransform(32)), val.classes)
    assert found.top1 == run.result["top1"]
    assert found.loss == pytest.approx(run.result["val_loss"], rel=1e-5)


def test_a_loss_that_is_not_finite_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=one_line("the loss is (nan|inf)")):
        train(tiny(lr=1e30, clip_norm=0, optimizer="sgd"), tmp_path)


def test_an_exported_model_is_evaluated_as_it_was_validated(monkeypatch, tmp_path):
    """Size, shorter side and resampling go with the model."""
    from infsa.evaluate import load_model
    from infsa.evaluate.accuracy import evaluate_model
    from infsa.train.feed import open_splits

    recipe = tiny(val_resize=48, interpolation="nearest")
    run = train(recipe, tmp_path)
    monkeypatch.setattr("infsa.data.shapes.LENGTHS", {"train": 48, "val": len(open_splits(recipe)[1])})
    found = evaluate_model(load_model(str(tmp_path / "model"), torch.device("cpu")), "shapes", "val")
    assert found.top1 == run.result["top1"]
    assert found.loss == pytest.approx(run.result["val_loss"], rel=1e-5)
