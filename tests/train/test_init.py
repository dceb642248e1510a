"""Starting from weights: every kind of source, what the recipe takes from it, the classifier, and what is refused."""

import json
import shutil

import pytest
import timm
import torch

import infsa
from infsa.cli.recipe_options import choose_recipe
from infsa.evaluate import class_names, data_config, load_model
from infsa.models import describe_data, save_weights
from infsa.models.huggingface import InfViTForImageClassification
from infsa.train import RECIPES, list_checkpoints, train
from infsa.train.init import completed, load_start, read_start
from infsa.train.module import build_model
from tests.cli.test_cli import run
from tests.data.helpers import one_line, write_photos
from tests.models.helpers import images

TUNE = {
    "epochs": 2, "batch_size": 4, "warmup_epochs": 1, "workers": 0, "device": "cpu", "val_every": 2,
}  # fmt: skip
NAMES = ["ant", "bee", "cow"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    write_photos(root, {"bee": "yellow", "dog": "blue"}, 4)
    return f"folder:{root}"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = infsa.create_model(
        "infvit_pure_tiny", num_classes=3, img_size=32, depth=2, embed_dim=24, num_heads=2, gamma=0.3
    )
    describe_data(
        made, label_names=NAMES, interpolation="bilinear", crop_pct=0.8, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4]
    )
    return made.eval()


@pytest.fixture(scope="module")
def sources(model, photos, tmp_path_factory):
    """The same weights in every form."""
    root = tmp_path_factory.mktemp("sources")
    save_weights(model, root / "saved")
    InfViTForImageClassification.from_infvit(model).save_pretrained(root / "hugging face")
    train(tuned(photos, root / "saved"), root / "run")
    shutil.copytree(root / "run", root / "unfinished")
    shutil.rmtree(root / "unfinished" / "model")
    return root


def tuned(data, init, **changes):
    return RECIPES["finetune"].override({**TUNE, "data": data, "init": str(init), **changes})


@pytest.mark.parametrize("form", ["saved", "saved/model.safetensors", "hugging face"])
def test_the_recipe_takes_everything_from_the_weights(form, sources, model):
    recipe = completed(tuned("shapes", sources / form))
    assert recipe.model == "infvit_pure_tiny"
    assert recipe.model_options == {
        "depth": 2, "embed_dim": 24, "num_heads": 2, "gamma": 0.3, "attention_grid": [4, 4]
    }  # fmt: skip
    assert (recipe.image_size, recipe.val_resize, recipe.interpolation) == (32, 40, "bilinear")
    assert (recipe.mean, recipe.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    same = build_model(recipe, NAMES).eval()
    with torch.no_grad():
        assert torch.equal(same(images()), model(images()))


@pytest.mark.parametrize("form", ["run", "run/model", "unfinished", "checkpoint"])
def test_runs_and_their_checkpoints_are_weights(form, sources):
    source = list_checkpoints(sources / "run" / "checkpoints")[0] if form == "checkpoint" else sources / form
    recipe = completed(tuned("shapes", source))
    wanted = load_model(sources / "run")
    assert (recipe.model, recipe.image_size, recipe.mean) == ("infvit_pure_tiny", 32, (0.5, 0.4, 0.3))
    found = build_model(recipe, 2).eval()
    with torch.no_grad():
        assert torch.equal(found(images()), wanted(images()))


@pytest.mark.parametrize("name", ["infvit_linear_tiny", "infvit_pure_tiny", "vit_tiny", "timm:vit_tiny"])
def test_shipped_models_by_name(name):
    recipe = completed(tuned("shapes", name))
    assert (recipe.model, recipe.model_options, recipe.image_size) == (name.removeprefix("timm:"), {}, 64)
    weights = infsa.create_model(recipe.model, pretrained=True)
    assert torch.equal(build_model(recipe, 7).patch_embed.proj.weight, weights.patch_embed.proj.weight)


def test_what_is_told_wins(sources):
    told = {"image_size": 64, "interpolation": "bicubic", "mean": "0.1,0.2,0.3", "val_resize": 70}
    recipe = completed(tuned("shapes", sources / "saved", **told))
    assert (recipe.image_size, recipe.val_resize, recipe.interpolation) == (64, 70, "bicubic")
    assert recipe.mean == (0.1, 0.2, 0.3)
    assert completed(tuned("shapes", sources / "saved", image_size=64)).val_resize == 80
    assert build_model(recipe, 3).pos_embed.shape[1] == 65


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (NAMES, "its classifier of 3 classes"),
        (["bee", "dog"], "a new classifier: 2 classes instead of 3, 1 known"),
        (["cow", "bee", "ant"], "a new classifier: 3 classes instead of 3, 3 known"),
        (["x", "y", "z"], "a new classifier: 3 classes instead of 3"),
        (5, "a new classifier: 5 classes instead of 3"),
    ],
)
def test_the_classifier_follows_the_names_of_the_classes(classes, said, sources, model):
    recipe = completed(tuned("shapes", sources / "saved"))
    made = build_model(recipe, classes, fresh=False)
    before = made.head.weight.detach().clone()
    assert load_start(made, recipe, classes).endswith(said)
    for index, name in enumerate(classes if isinstance(classes, list) else []):
        wanted = model.head.weight[NAMES.index(name)] if name in NAMES else before[index]
        assert torch.equal(made.head.weight[index], wanted)


def test_another_stem_starts_anew(sources, model):
    """Patches embedded one by one give convolutions no weights, and a line says so; all else is taken."""
    recipe = completed(tuned("shapes", sources / "saved", model_options={"stem": "conv"}))
    notes = []
    made = build_model(recipe, NAMES, notes=notes)
    assert made.stem == "conv"
    assert notes[0].endswith("its classifier of 3 classes, and a new stem: the weights have another one than 'conv'")
    for name, value in model.state_dict().items():
        assert name.startswith("patch_embed.") or torch.equal(made.state_dict()[name], value), name


def test_a_run_learns_is_saved_with_its_view_and_goes_on_without_the_weights(sources, photos, tmp_path, monkeypatch):
    shutil.copytree(sources / "saved", tmp_path / "weights")
    rows = []
    done = train(tuned(photos, tmp_path / "weights"), tmp_path / "run", watch=rows.append)
    assert [row["text"] for row in rows if row["kind"] == "note"] == [
        f"starting from {tmp_path / 'weights'} at 32 px, with a new classifier: 2 classes instead of 3, 1 known"
    ]
    found = load_model(tmp_path / "run")
    assert class_names(found) == ["bee", "dog"]
    assert (data_config(found)["mean"], data_config(found)["crop_pct"]) == ([0.5, 0.4, 0.3], 0.8)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"top-1, top-5 | {done.result['top1']:.1%}".replace("%", " %") in card
    for part in (
        ": 2 classes, 8 training and 8 validation images",
        "started from | weights",
        "2 epochs, batch 4, adamw, lr 0.0005",
    ):
        assert part in card
    assert str(tmp_path) not in card
    shutil.rmtree(tmp_path / "weights")
    for path in list_checkpoints(tmp_path / "run" / "checkpoints")[:1]:
        path.unlink()
    again = train(tuned(photos, tmp_path / "weights"), tmp_path / "run", resume=True)
    assert again.result["history"] == done.result["history"]


def test_a_run_and_its_model_belong_to_the_same_run(sources):
    from infsa.evaluate.held_out import run_of

    assert run_of(sources / "run") == run_of(sources / "run" / "model") == (sources / "run").resolve()


@pytest.mark.parametrize("changes", [{"image_size": "32"}, {"epochs": "1"}, {}])
def test_what_was_not_asked_for_gives_way_without_touching_what_weights_decide(changes):
    recipe, _, _ = choose_recipe(None, None, [], [], {"init": "infvit_linear_tiny", **changes})
    assert (recipe.val_resize, recipe.interpolation, recipe.loader) == (0, "", "resident")
    assert completed(recipe).val_resize == int(changes.get("image_size", 64))


def test_the_command(sources, photos, monkeypatch, capsys, tmp_path):
    words = ["--data", photos, "--init", str(sources / "saved"), "--out", str(tmp_path / "run")]
    words += [word for name, value in TUNE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    code, out, err = run(monkeypatch, capsys, "train", *words)
    assert (code, err) == (0, "")
    assert "new classifier: 2 classes instead of 3" in " ".join(out.split())
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["layer_decay"] == RECIPES["finetune"].layer_decay


# timm's and Hugging Face's names


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of Hugging Face's hub that holds nothing, and a way to put a folder there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository, fill):
        root = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        folder = root / "snapshots" / "0123abc"
        folder.mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text("0123abc")
        fill(folder)

    return put


def save_timm(made, folder, **options):
    timm.models.save_for_hf(made, folder, model_args=options, safe_serialization=True)


def test_a_timm_name_whose_weights_are_on_disk(hub):
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224").eval()
    hub("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", lambda folder: save_timm(made, folder))
    recipe = completed(tuned("shapes", "vit_tiny_patch16_224"))
    assert (recipe.image_size, recipe.val_resize, recipe.mean) == (224, 248, (0.5, 0.5, 0.5))
    found = build_model(recipe.override({"init": "timm:vit_tiny_patch16_224"}), 1000).eval()
    with torch.no_grad():
        torch.testing.assert_close(found(images(1, 224, 224)), made(images(1, 224, 224)), atol=1e-4, rtol=1e-4)


def test_a_hugging_face_name_whose_weights_are_on_disk(hub):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=8,
        id2label={0: "ant", 1: "bee", 2: "cow"}, label2id={"ant": 0, "bee": 1, "cow": 2},
    )  # fmt: skip
    made = ViTForImageClassification(config).eval()

    def fill(folder):
        made.save_pretrained(folder)
        ViTImageProcessor(image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.3, 0.4]).save_pretrained(folder)

    hub("someone/tiny-vit", fill)
    for source in ("hf:someone/tiny-vit", "someone/tiny-vit"):
        recipe = completed(tuned("shapes", source))
        assert (recipe.image_size, recipe.mean, read_start(source).data["label_names"]) == (32, (0.5, 0.4, 0.3), NAMES)
        found = build_model(recipe, NAMES).eval()
        with torch.no_grad():
            torch.testing.assert_close(found(images()), made(images()).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("nowhere", "no weights at nowhere"),
        ("infvit_linear_tin", "did you mean infvit_linear_tiny"),
        ("infvit_linear_24l16h_patch16_224", "no weights are shipped"),
        ("timm:nothing_like_it", "timm has no weights for a model 'nothing_like_it'"),
        ("timm:vit_tiny_patch16_224", "not on this disk, and nothing is downloaded"),
        ("timm:infvit_linear_24l16h_patch16_224", "timm has no weights"),
        ("hf:someone/missing", "not on this disk|no folder"),
        ("hf:", "after the colon"),
        ("hf:empty", "no config.json in empty"),
        ("hf:not a name", "not the name of a repository|no folder"),
        ("pickle.pth", "safetensors"),
        ("broken.safetensors", "not a complete safetensors file"),
        ("headless.safetensors", "does not name its model"),
        ("empty", "no model.safetensors in"),
    ],
)
def test_what_is_not_there_is_one_line(source, reason, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({}, "pickle.pth")
    (tmp_path / "broken.safetensors").write_bytes(b"\0" * 20)
    (tmp_path / "empty").mkdir()
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, "headless.safetensors")
    with pytest.raises((ValueError, FileNotFoundError), match=one_line(reason)):
        completed(tuned("shapes", source))


def test_other_architectures_are_refused(hub):
    hub("timm/resnet18.a1_in1k", lambda folder: save_timm(timm.create_model("resnet18"), folder))
    with pytest.raises(ValueError, match=one_line("ResNet; accepted are plain vision transformers")):
        read_start("timm:resnet18")
    name = "vit_base_patch16_clip_quickgelu_224"

    def fill(folder):
        torch.manual_seed(0)
        options = {"embed_dim": 24, "num_heads": 2, "depth": 1, "num_classes": 3}
        made = timm.create_model(name, **options)
        save_timm(made, folder, **options)

    hub("someone/clip", fill)
    with pytest.raises(ValueError, match=one_line("not a plain vision transformer")):
        read_start("hf:someone/clip")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "vit_tiny"}, "architecture='infvit_pure_tiny'"),
        ({"model_options": {"gamma": 0.9}}, r"gamma=0\.3"),
        ({"image_size": 30}, "multiples of the patch"),
    ],
)
def test_contradictions_are_one_line(changes, reason, sources, photos, tmp_path):
    with pytest.raises(ValueError, match=one_line(reason)):
        train(tuned(photos, sources / "saved", **changes), tmp_path)
    assert not (tmp_path / "recipe.json").exists()


def test_empty_fields_without_weights_are_refused():
    with pytest.raises(ValueError, match=one_line("model is empty")):
        completed(tuned("shapes", ""))
