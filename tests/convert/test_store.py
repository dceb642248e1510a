"""Converted models on disk say how to make them again; models are opened by name."""

import copy
import json
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import infsa
from infsa.cli.app import main
from infsa.conversion import converted_layers, load_converted, open_model, save_converted

OPTIONS = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
NAME = "timm:deit_tiny_patch16_224"


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["infsa", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


def pairs(options):
    return [part for name, value in options.items() for part in ("--model-option", f"{name}={value}")]


def test_a_file_makes_its_model_again(tmp_path):
    model = open_model(NAME, options=OPTIONS)
    model = infsa.convert(model, "linear", include="blocks.0.*", learn_gamma=True)
    infsa.convert(model, "pure", gamma=0.5, inplace=True)
    file = save_converted(model, tmp_path / "model.safetensors", NAME, OPTIONS)
    same = load_converted(file)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(same(x), model(x))
    settings = [layer.infsa_settings for layer in converted_layers(same).values()]
    assert [(s.variant, s.gamma) for s in settings] == [("linear", 0.7), ("pure", 0.5)]
    into = load_converted(file, open_model(NAME, options=OPTIONS))
    assert torch.equal(into(x), model(x))


def test_a_compiled_model_is_saved_as_the_one_inside(tmp_path):
    model = infsa.convert(open_model(NAME, options=OPTIONS))
    file = save_converted(torch.compile(model, backend="eager"), tmp_path / "model.safetensors", NAME, OPTIONS)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_converted(file)(x), model(x))


def test_loaded_surgery_cannot_be_undone(tmp_path):
    model = infsa.convert(open_model(NAME, options=OPTIONS), "linear", level="surgery")
    file = save_converted(model, tmp_path / "model.safetensors", NAME, OPTIONS)
    loaded = load_converted(file)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(x), model(x))
    with pytest.raises(ValueError, match=r"blocks\.0\.attn: surgery"):
        infsa.revert(loaded)
    torch.testing.assert_close(loaded(x), model(x))


def test_wrong_files_are_refused(tmp_path):
    model = open_model(NAME, options=OPTIONS)
    with pytest.raises(ValueError, match="no layer of this VisionTransformer"):
        save_converted(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"got 'model\.pt'"):
        save_converted(infsa.convert(model), tmp_path / "model.pt")
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="no converted model"):
        load_converted(tmp_path / "plain.safetensors")
    file = save_converted(infsa.convert(model), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="pass the model"):
        load_converted(file)
    with pytest.raises(ValueError, match="do not fit"):
        load_converted(file, open_model(NAME, options={**OPTIONS, "num_classes": 4}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deit_minuscule", "no model 'deit_minuscule'"),
        ("torchvision:vit_z_16", "no model 'vit_z_16'; near are vit_"),
        ("jax:vit", "got 'jax:vit'"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        open_model(name)


def test_names_open(tmp_path):
    weights = open_model(NAME, options=OPTIONS)
    save_file(weights.state_dict(), tmp_path / "w.safetensors")
    loaded = open_model(NAME.removeprefix("timm:"), tmp_path / "w.safetensors", options=OPTIONS)
    assert all(torch.equal(a, b) for a, b in zip(weights.parameters(), loaded.parameters(), strict=True))
    assert open_model("torchvision:swin_t").head.out_features == 1000


def test_the_command_shows_a_plan_and_writes_nothing(monkeypatch, capsys, tmp_path):
    arguments = ["convert", "-m", NAME, *pairs(OPTIONS), "--variant", "linear", "--exclude", "blocks.1.*"]
    code, out, _ = run(monkeypatch, capsys, *arguments, "--plan")
    assert code == 0
    assert "blocks.0.attn" in out
    assert "linear (swap)" in out
    assert "blocks.1.attn: keep: excluded by 'blocks.1.*'" in out
    code, out, _ = run(monkeypatch, capsys, *arguments, "--plan", "--json")
    assert [layer["action"] for layer in json.loads(out)["layers"]] == ["convert", "keep"]


def test_the_command_converts(monkeypatch, capsys, tmp_path):
    file = tmp_path / "deit.safetensors"
    code, out, _ = run(monkeypatch, capsys, "convert", "-m", NAME, *pairs(OPTIONS), "--out", str(file), "--json")
    assert code == 0
    assert json.loads(out)["file"] == str(file)
    assert len(converted_layers(load_converted(file))) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-m", NAME], 2, "--plan"),
        (["-m", NAME, "--plan", "--gamma", "2"], 2, "got 2.0"),
        (["-m", NAME, "--plan", "--model-option", "depth"], 2, "name=value"),
        (["-m", NAME, "--plan", "--model-option", "colour=1"], 1, "colour"),
        (["-m", "resnet18", "--out", "x.safetensors"], 1, "nothing to convert"),
        (["-m", "torchvision:swin_t", "--variant", "linear", "--out", "x.safetensors"], 1, "features.1.0.attn"),
        (["-m", NAME, "--plan", "--variant", "cubic"], 1, "got 'cubic'"),
    ],
)
def test_the_command_fails_in_one_line(arguments, code, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    found, _, err = run(monkeypatch, capsys, "convert", *arguments)
    assert found == code
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_file_keeps_the_norm_and_an_older_one_has_the_papers(tmp_path):
    model = torch.nn.ModuleDict({"attn": torch.nn.MultiheadAttention(16, 2)})
    path = save_converted(infsa.convert(model), tmp_path / "new.safetensors")
    assert load_converted(path, copy.deepcopy(model)).attn.norm == "row"
    with safe_open(path, "pt") as handle:
        facts = json.loads(handle.metadata()["conversion"])
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    for fields in facts["layers"].values():
        del fields["norm"], fields["pool_queries"]
    save_file(tensors, tmp_path / "old.safetensors", {"format": "pt", "conversion": json.dumps(facts)})
    assert load_converted(tmp_path / "old.safetensors", copy.deepcopy(model)).attn.norm == "frobenius"
