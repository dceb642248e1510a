"""A converted plain vision transformer is an InfViT too: the same function, for streaming and every command."""

import re

import pytest
import timm
import torch
from timm.layers import SwiGLU
from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock

import infsa
from infsa.conversion import as_infvit, load_converted, save_converted
from infsa.evaluate import load_model
from tests.cli.test_cli import run

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
KINDS = {
    "plain": {},
    "no bias": {"qkv_bias": False, "proj_bias": False, "init_values": 0.1},
    "no class token": {"class_token": False, "global_pool": "avg", "fc_norm": False, "reg_tokens": 2},
    "no positions": {"pos_embed": "none"},
    "layer scale": {"init_values": 0.1},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "one channel": {"in_chans": 1, "img_size": (32, 48)},
    "features": {"num_classes": 0},
}


def vit(**changes):
    """A vision transformer of timm whose every parameter is random."""
    model = timm.create_model("vit_tiny_patch16_224", **{**SIZES, **changes}).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def distance(model, other):
    side = model.patch_embed.img_size
    images = torch.randn(2, model.patch_embed.proj.in_channels, *side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model(images)
        return float((other(images) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"variant": "pure"}, {"variant": "linear"}], ids=lambda s: s["variant"])
def test_it_computes_the_same(kind, settings):
    converted = infsa.convert(vit(**KINDS[kind]), **settings)
    assert distance(converted, as_infvit(converted)) < 1e-5


@pytest.mark.parametrize(
    ("settings", "attention"),
    [
        ({"variant": "linear", "level": "surgery"}, "infsa_linear"),
        ({"variant": "linear", "learn_gamma": True, "gamma": 0.4}, "infsa_linear"),
        ({"variant": "pure", "activation": "abs"}, "infsa_pure"),
        ({"variant": "linear", "include": "blocks.1.*"}, "softmax, infsa_linear, softmax"),
    ],
)
def test_settings_are_kept(settings, attention):
    converted = infsa.convert(vit(), **settings)
    with torch.no_grad():
        for layer in infsa.conversion.converted_layers(converted).values():
            if layer.decay.logit is not None:
                layer.decay.logit.normal_(generator=torch.Generator().manual_seed(2))
    ours = as_infvit(converted)
    assert ours.attention == attention
    assert distance(converted, ours) < 1e-5


def test_layers_folded_and_swapped_in_one_model():
    model = infsa.convert(vit(), "linear", level="surgery", include="blocks.0.*")
    model = infsa.convert(model, "linear", include=["blocks.1.*", "blocks.2.*"])
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[48:96] += 1  # training may move the rows that surgery no longer reads
    assert distance(model, as_infvit(model)) < 1e-5


def test_the_type_the_mode_and_the_weights_of_the_original_stay():
    converted = infsa.convert(vit(), "linear").double().train()
    before = {name: value.clone() for name, value in converted.state_dict().items()}
    ours = as_infvit(converted)
    assert (ours.head.weight.dtype, ours.training, converted.training) == (torch.float64, True, True)
    with torch.no_grad():
        ours.head.weight.zero_()
    assert all(torch.equal(value, before[name]) for name, value in converted.state_dict().items())


def test_any_size_and_streaming():
    ours = as_infvit(infsa.convert(vit(), "linear"))
    pixels = torch.randint(0, 256, (88, 56, 3), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    result = infsa.stream(ours, pixels.numpy(), tile=24)
    config = ours.pretrained_cfg
    images = (pixels.permute(2, 0, 1) / 255 - torch.tensor(config["mean"])[:, None, None]) / torch.tensor(
        config["std"]
    )[:, None, None]
    with torch.no_grad():
        wanted = ours(images.unsqueeze(0))
    assert torch.allclose(result.logits, wanted, rtol=1e-4, atol=1e-5)


def test_commands_take_converted_files(monkeypatch, capsys, tmp_path):
    from PIL import Image

    converted = infsa.convert(vit(), "linear")
    file = save_converted(converted, tmp_path / "mine.safetensors", "timm:vit_tiny_patch16_224", SIZES)
    assert distance(load_converted(file), load_model(file)) < 1e-5
    Image.new("RGB", (40, 56), (200, 30, 90)).save(tmp_path / "a.png")
    picture, out = str(tmp_path / "a.png"), ["--out", str(tmp_path / "out")]
    for words in (["stream", picture], ["predict", picture, "--json"], ["explain", picture, *out]):
        assert run(monkeypatch, capsys, *words, "--model", str(file))[0] == 0


def test_training_starts_from_converted_files(tmp_path):
    from infsa.train.init import read_start

    converted = infsa.convert(vit(), "linear", learn_gamma=True)
    file = save_converted(converted, tmp_path / "mine.safetensors", "timm:vit_tiny_patch16_224", SIZES)
    start = read_start(str(file))
    arguments = {name: value for name, value in start.arguments.items() if name != "architecture"}
    model = infsa.create_model(start.model, **arguments).eval()
    model.load_state_dict(start.weights)
    assert distance(converted, model) < 1e-5


def test_mechanisms_keep_their_implementation():
    for variant in ("pure", "linear"):
        ours = as_infvit(infsa.convert(vit(), variant, impl="reference"))
        assert {block.attn.impl for block in ours.blocks} == {"reference"}
    mixed = as_infvit(infsa.convert(vit(), "linear", impl="reference", include="blocks.1.*"))
    assert mixed.blocks[1].attn.impl == "reference"


def test_weights_do_not_hide_a_difference():
    model = vit(act_layer="relu")
    torch.nn.init.zeros_(model.head.weight)
    with pytest.raises(ValueError, match="an InfViT has no ReLU"):
        as_infvit(infsa.convert(model, "linear"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vit(), "no layer of this VisionTransformer was converted"),
        (lambda: infsa.create_model("vit_tiny"), "an InfViT already"),
        (lambda: torch.nn.Linear(2, 2), "got Linear"),
        (lambda: infsa.convert(vit(), "pure", norm="row"), "norm='frobenius', got 'row'"),
        (lambda: infsa.convert(vit(global_pool="avg"), "pure"), "does not compute the same"),
        (
            lambda: infsa.convert(vit(qk_norm=True), "pure"),
            "does not compute the same (only one of them has blocks.0.attn",
        ),
        (lambda: infsa.convert(vit(pre_norm=True), "pure"), "does not compute the same (only one of them has norm_pre"),
        (lambda: infsa.convert(vit(block_fn=ParallelThingsBlock), "pure"), "an InfViT has no ParallelThingsBlock"),
        (lambda: infsa.convert(vit(block_fn=ResPostBlock), "pure"), "an InfViT has no ResPostBlock"),
        (lambda: infsa.convert(vit(mlp_layer=SwiGLU), "pure"), "an InfViT has no SwiGLU"),
        (lambda: infsa.convert(vit(global_pool="map"), "pure", include="attn_pool"), "no layer of this"),
        (
            lambda: infsa.convert(
                infsa.convert(vit(), "linear", gamma=0.5, include="blocks.0.*"), "linear", include="blocks.1.*"
            ),
            "one gamma for all layers, got [0.5, 0.7]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        as_infvit(make())
    assert "\n" not in str(caught.value)


def test_padding_of_images_is_kept():
    model = vit()
    model.patch_embed.dynamic_img_pad = True
    assert as_infvit(infsa.convert(model, "linear")).patch_embed.dynamic_img_pad
