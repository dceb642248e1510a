"""The weights that come with the package: small, offline, with names, and fitted to other sizes and classes."""

import socket

import pytest
import timm
import torch
from safetensors.torch import load_file

import infsa
from infsa.models.presets import SHIPPED, shipped_weights
from tests.data.helpers import one_line
from tests.models.helpers import images


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_loaded_as_they_are_in_the_file(name):
    model, file = infsa.create_model(name, pretrained=True), load_file(shipped_weights(name))
    own = model.state_dict()
    assert own.keys() == file.keys()
    for key, value in file.items():
        assert value.dtype == torch.float16
        assert torch.equal(own[key], value.float())
    assert not any(value.isnan().any() for value in own.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_fifty_named_classes(name):
    model = infsa.create_model(name, pretrained=True).eval()
    assert model.num_classes == 50
    assert len(set(model.pretrained_cfg["label_names"])) == 50
    with torch.no_grad():
        assert model(images(2, 64, 64)).shape == (2, 50)


@pytest.mark.parametrize("name", SHIPPED)
def test_timm_loads_the_same(name):
    ours, theirs = infsa.create_model(name, pretrained=True), timm.create_model(name, pretrained=True)
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, two)


def test_timm_lists_what_is_shipped():
    listed = {name for name in timm.list_models(pretrained=True) if name in infsa.list_models()}
    assert listed == set(SHIPPED)


def test_what_a_user_says_of_the_weights_goes_first(tmp_path):
    """Another mean keeps the shipped weights; weights from elsewhere replace them."""
    other = timm.create_model("vit_tiny", pretrained=True, pretrained_cfg_overlay={"mean": (0.1, 0.2, 0.3)})
    assert other.num_classes == 50
    assert tuple(other.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)
    missing = {"url": (tmp_path / "missing.safetensors").as_uri(), "num_classes": 1000}
    with pytest.raises(ValueError, match="could not be loaded"):
        timm.create_model("vit_tiny", pretrained=True, pretrained_cfg_overlay=missing)


@pytest.mark.parametrize("name", SHIPPED)
def test_another_number_of_classes_starts_a_new_classifier(name):
    whole, other = infsa.create_model(name, pretrained=True), infsa.create_model(name, pretrained=True, num_classes=7)
    assert other.head.weight.shape[0] == 7
    assert torch.equal(whole.blocks[0].norm1.weight, other.blocks[0].norm1.weight)
    assert torch.equal(whole.patch_embed.proj.weight, other.patch_embed.proj.weight)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_new_classifier_does_not_keep_the_old_names(name):
    names = infsa.create_model(name, pretrained=True, num_classes=7).pretrained_cfg.get("label_names")
    assert not names


@pytest.mark.parametrize("name", SHIPPED)
def test_another_size_resizes_the_positions(name):
    model = infsa.create_model(name, pretrained=True, img_size=96).eval()
    with torch.no_grad():
        assert model(images(1, 96, 96)).shape == (1, 50)
    assert torch.equal(model.head.weight, infsa.create_model(name, pretrained=True).head.weight)


@pytest.mark.parametrize("options", [{"attention": "mean"}, {"num_heads": 6}, {"depth": 3}, {"gamma": 0.1}])
def test_another_model_is_refused_in_one_line(options):
    with pytest.raises(ValueError, match=one_line(next(iter(options)))):
        infsa.create_model("infvit_linear_tiny", pretrained=True, **options)


def test_names_without_weights_are_refused_in_one_line():
    with pytest.raises(ValueError, match=one_line("vit_tiny")):
        infsa.create_model("vit_4l16h_patch16_224", pretrained=True)


def test_together_they_are_at_most_20_megabytes():
    assert sum(shipped_weights(name).stat().st_size for name in SHIPPED) <= 20e6


def test_without_pretrained_nothing_is_loaded():
    torch.manual_seed(0)
    model = infsa.create_model("vit_tiny")
    assert model.num_classes == 1000
    assert "label_names" not in model.pretrained_cfg or not model.pretrained_cfg["label_names"]


def test_saving_and_loading_keeps_names_and_logits(tmp_path):
    model = infsa.create_model("vit_tiny", pretrained=True).eval()
    infsa.models.save_weights(model, tmp_path)
    again = infsa.create_model("vit_tiny", pretrained=tmp_path).eval()
    assert again.pretrained_cfg["label_names"] == model.pretrained_cfg["label_names"]
    with torch.no_grad():
        assert torch.equal(again(images(1, 64, 64)), model(images(1, 64, 64)))
