"""One folder, three libraries: what this package, timm and Hugging Face save, the others read with labels and views."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

import infsa
from infsa.data import transform_for
from infsa.evaluate import class_names, data_config, load_model
from infsa.models import describe_data, save_weights
from infsa.models.huggingface import InfViTConfig, InfViTForImageClassification, InfViTModel, image_processor

from .helpers import images, small

NAMES = ["ant", "bee", "cow", "dog", "eel"]


@pytest.fixture(scope="module")
def model():
    """A model with a name, names of classes and a view that is not the default."""
    torch.manual_seed(0)
    made = infsa.create_model("infvit_linear_tiny", num_classes=5, depth=2, embed_dim=48, num_heads=4, gamma=0.4)
    describe_data(
        made, label_names=NAMES, interpolation="bilinear", crop_pct=0.8, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4]
    )
    return made.eval()


@pytest.fixture(scope="module", params=["ours", "theirs", "theirs of ours", "ours of theirs"])
def folder(request, model, tmp_path_factory):
    """The model in a folder written by this package, by Hugging Face, and by either after the other."""
    root = tmp_path_factory.mktemp("folders")
    ours, theirs = root / "ours", root / "theirs"
    converted = InfViTForImageClassification.from_infvit(model)
    if request.param == "ours":
        return save_weights(model, ours)
    if request.param == "theirs":
        converted.save_pretrained(theirs)
        return theirs
    if request.param == "theirs of ours":
        AutoModelForImageClassification.from_pretrained(save_weights(model, ours)).save_pretrained(theirs)
        return theirs
    converted.save_pretrained(theirs)
    return save_weights(load_model(theirs), ours)


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: timm.create_model(f"local-dir:{folder}", pretrained=True),
        lambda folder: infsa.create_model("infvit_linear_tiny", pretrained=folder),
        lambda folder: infsa.create_model("infvit_linear_tiny", pretrained=folder / "model.safetensors"),
        load_model,
        lambda folder: AutoModelForImageClassification.from_pretrained(folder).infvit,
    ],
    ids=["timm", "infsa", "infsa file", "commands", "transformers"],
)
def test_every_reader_gets_the_model_its_labels_and_its_view(read, folder, model):
    found = read(folder).eval()
    x = images(2, 64, 64)
    with torch.no_grad():
        assert torch.equal(found(x), model(x))
    assert class_names(found) == NAMES
    wanted = data_config(model)
    assert {name: _plain(value) for name, value in data_config(found).items()} == {
        name: _plain(value) for name, value in wanted.items()
    }


def _plain(value):
    return json.loads(json.dumps(value))


def test_a_pipeline_classifies_a_file_with_names(folder, model, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    found = pipeline("image-classification", model=str(folder), device="cpu")(str(tmp_path / "photo.png"), top_k=5)
    assert sorted(entry["label"] for entry in found) == NAMES
    view, _ = transform_for(data_config(model), train=False)(Image.fromarray(pixels), np.zeros((0, 4), np.float32))
    with torch.no_grad():
        wanted = dict(zip(NAMES, model(view[None]).softmax(-1)[0].tolist(), strict=True))
    assert {entry["label"]: entry["score"] for entry in found} == pytest.approx(wanted, abs=2e-3)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_the_processor_resamples_as_the_model_does(interpolation):
    model = small(img_size=32)
    model.pretrained_cfg = {"interpolation": interpolation}
    assert image_processor(model).resample == Image.Resampling[interpolation.upper()]


def test_the_processor_of_a_folder_gives_the_view_of_the_model(folder, model):
    ramp = np.add.outer(np.arange(77), np.arange(200))[..., None] * 0.9  # smooth: centres may differ by a pixel
    pixels = (ramp + np.array([0, 5, 9])).astype(np.uint8)
    processor = AutoImageProcessor.from_pretrained(folder)
    theirs = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0]
    ours, _ = transform_for(data_config(model), train=False)(Image.fromarray(pixels), np.zeros((0, 4), np.float32))
    assert theirs.shape == ours.shape
    assert (theirs - ours).abs().mean() < 0.02  # the smallest step of a pixel


def test_labels_given_to_hugging_face_reach_the_others(model, tmp_path):
    names = dict(enumerate("vwxyz"))
    converted = InfViTForImageClassification.from_infvit(model, id2label=names)
    converted.save_pretrained(tmp_path)
    assert class_names(load_model(tmp_path)) == list("vwxyz")
    converted.config.id2label = {0: "a", 1: "b", 2: "c", 3: "d", 4: "e"}
    converted.save_pretrained(tmp_path)
    assert class_names(load_model(tmp_path)) == list("abcde")


def test_a_new_head_has_no_old_names(model, tmp_path):
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path / "five")
    smaller = AutoModelForImageClassification.from_pretrained(
        tmp_path / "five", num_labels=3, ignore_mismatched_sizes=True
    )
    smaller.save_pretrained(tmp_path / "three")
    found = load_model(tmp_path / "three")
    assert class_names(found) == ["class 0", "class 1", "class 2"]
    with torch.no_grad():
        torch.testing.assert_close(found(images(1, 64, 64)), smaller.eval()(images(1, 64, 64)).logits)


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "agent"])
def test_a_model_made_by_hugging_face_alone_is_read(attention, tmp_path):
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "attention": attention}
    made = InfViTForImageClassification(InfViTConfig(**options, num_labels=4)).eval()
    made.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = made(images()).logits
        assert torch.equal(load_model(tmp_path)(images()), wanted)
        assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(images()), wanted)
        assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=7)(images()).shape == (2, 7)


def test_a_model_without_a_head_is_read(tmp_path):
    made = InfViTModel(InfViTConfig(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4)).eval()
    made.save_pretrained(tmp_path)
    with torch.no_grad():
        found = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(images())
        torch.testing.assert_close(found, made(images()).pooler_output)


def test_a_folder_without_our_part_of_the_configuration_is_read(model, tmp_path):
    """Only what Hugging Face itself writes: arguments at the top and the labels."""
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("model_args", "architecture", "pretrained_cfg", "num_features"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)(images(1, 64, 64)), model(images(1, 64, 64)))


def test_the_folder_of_a_run_stands_for_its_model(model, tmp_path):
    save_weights(model, tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)(images(1, 64, 64)), model(images(1, 64, 64)))


def test_a_broken_configuration_is_one_line(model, tmp_path):
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"^[^\n]*config.json is not JSON[^\n]*$"):
        load_model(tmp_path)


def test_a_configuration_may_only_set_arguments_of_the_model(model, tmp_path):
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"]["pretrained_cfg_overlay"] = {"url": "http://example.org/weights"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"^[^\n]*config.json asks for 'pretrained_cfg_overlay'[^\n]*$"):
        load_model(tmp_path)


def test_split_weights_are_one_line(model, tmp_path):
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path, max_shard_size="20KB")
    with pytest.raises(ValueError, match=r"^[^\n]*split into several files[^\n]*$"):
        load_model(tmp_path)
