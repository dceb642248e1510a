"""Weights on disk: round trips, and damage that changes nothing."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import infsa
from infsa.models import load_weights, save_weights

from .helpers import images, small

TINY = "infvit_linear_tiny"
FILES = ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(1)
    model = infsa.create_model(TINY, num_classes=5, attention="agent", reg_tokens=2).eval()
    return model, save_weights(model, tmp_path / "model")


def test_round_trip_through_infsa_and_timm(saved):
    model, folder = saved
    x = torch.randn(1, 3, 64, 64)
    options = {"num_classes": 5, "attention": "agent", "reg_tokens": 2}
    loaded = [
        infsa.create_model(TINY, pretrained=folder, **options),
        infsa.create_model(TINY, pretrained=folder / "model.safetensors", **options),
        timm.create_model(f"local-dir:{folder}", pretrained=True),
        timm.create_model(
            TINY,
            pretrained=True,
            pretrained_cfg_overlay={"file": str(folder / "model.safetensors"), "num_classes": 5},
            **options,
        ),
    ]
    for other in loaded:
        assert torch.equal(other.eval()(x), model(x))


def test_the_folder_holds_safetensors_configuration_and_card(saved):
    model, folder = saved
    assert sorted(file.name for file in folder.iterdir()) == FILES
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == TINY
    assert config["model_args"]["attention"] == "agent"
    card = (folder / "README.md").read_text()
    assert f"{sum(p.numel() for p in model.parameters()):,}" in card
    assert "`agent`" in card


@pytest.mark.parametrize("attention", ["infsa_pure", "flatten", "agent", "linformer", "soft", "performer"])
def test_a_model_without_a_name_and_with_a_new_head_and_size_comes_back(attention, tmp_path):
    model = small(attention, drop_path_rate=0.1)
    model.reset_classifier(9)
    model.set_input_size((48, 32))
    folder = save_weights(model, tmp_path)
    other = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(other(images(height=48)), model(images(height=48)))


def damaged(kind, folder):
    """A weight file with one kind of damage."""
    source, target = folder / "model.safetensors", folder / f"{kind}.safetensors"
    data = source.read_bytes()
    weights = load_file(source)
    if kind == "truncated":
        target.write_bytes(data[: len(data) // 2])
    elif kind == "corrupt":
        target.write_bytes(b"\xff" * 64 + data[64:])
    elif kind == "empty":
        target.write_bytes(b"")
    elif kind == "missing":
        save_file({k: v for k, v in weights.items() if not k.startswith("head.")}, target)
    elif kind == "unexpected":
        save_file({**weights, "extra.weight": torch.zeros(1)}, target)
    elif kind == "misshapen":
        save_file({**weights, "head.bias": torch.zeros(6)}, target)
    else:
        target = folder / "weights.pth"
        torch.save(weights, target)
    return target


@pytest.mark.parametrize("kind", ["truncated", "corrupt", "empty", "missing", "unexpected", "misshapen", "pickle"])
def test_damage_is_one_line_and_changes_nothing(kind, saved):
    model, folder = saved
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        load_weights(model, damaged(kind, folder))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_pickle_is_refused_with_a_way_to_convert_it(saved):
    model, folder = saved
    with pytest.raises(ValueError, match="save_file"):
        load_weights(model, damaged("pickle", folder))


@pytest.mark.parametrize("kind", ["truncated", "corrupt", "missing", "misshapen"])
def test_damage_is_one_line_through_timm_too(kind, saved):
    _, folder = saved
    overlay = {"file": str(damaged(kind, folder)), "num_classes": 5}
    with pytest.raises(ValueError, match=r"^infvit_linear_tiny: its weights could not be loaded: [^\n]+$"):
        timm.create_model(
            TINY, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=5, attention="agent", reg_tokens=2
        )


def test_a_missing_file_is_named(saved):
    model, folder = saved
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_weights(model, folder / "nowhere.safetensors")


def test_saving_over_an_old_folder_leaves_no_scratch(saved):
    model, folder = saved
    save_weights(model, folder)
    assert sorted(file.name for file in folder.iterdir()) == FILES


def test_the_saved_arguments_are_used_and_contradictions_refused(tmp_path):
    model = infsa.create_model(TINY, gamma=0.2, num_classes=5).eval()
    folder = save_weights(model, tmp_path)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(infsa.create_model(TINY, pretrained=folder).eval()(x), model(x))
    assert torch.equal(infsa.create_model(TINY, pretrained=folder / "model.safetensors").eval()(x), model(x))
    for options, message in (({"gamma": 0.7}, r"gamma=0\.2"), ({"num_classes": 3}, "num_classes=5")):
        with pytest.raises(ValueError, match=message):
            infsa.create_model(TINY, pretrained=folder, **options)
    with pytest.raises(ValueError, match="architecture='infvit_linear_tiny'"):
        infsa.create_model("vit_tiny", pretrained=folder)
    with pytest.raises(ValueError, match=r"gamma=0\.2"):
        load_weights(infsa.create_model(TINY, num_classes=5, gamma=0.3), folder)


@pytest.mark.parametrize("attention", ["infsa_pure", "agent", "flatten", "linformer"])
def test_timm_loads_at_another_size_and_with_another_head(attention, tmp_path):
    model = infsa.create_model(TINY, attention=attention, num_heads=4).eval()
    folder = save_weights(model, tmp_path)
    x = torch.randn(1, 3, 96, 96)
    larger = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=96).eval()
    torch.testing.assert_close(larger(x), model(x), atol=1e-5, rtol=1e-4)
    assert timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=3)(x).shape == (1, 3)
    with pytest.raises(ValueError, match="could not be loaded"):
        timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=3, attention="mlla")


def test_where_weights_came_from_is_not_published(tmp_path):
    first = save_weights(infsa.create_model(TINY), tmp_path / "origin")
    second = save_weights(timm.create_model(f"local-dir:{first}", pretrained=True), tmp_path / "second")
    assert "origin" not in (second / "config.json").read_text()


def test_weights_go_back_into_a_model_made_with_the_same_defaults(tmp_path):
    model = infsa.create_model("infvit_linear_tiny", num_classes=3)
    again = infsa.create_model("infvit_linear_tiny", num_classes=3)
    infsa.models.load_weights(again, infsa.models.save_weights(model, tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    other = infsa.create_model("infvit_linear_tiny", num_classes=3, gamma=0.5)
    with pytest.raises(ValueError, match=r"saved with gamma=0\.7, got 0\.5"):
        infsa.models.load_weights(other, tmp_path)
