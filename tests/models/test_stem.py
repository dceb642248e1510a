"""The convolutional stem: local, exact on windows, at home wherever the patch embedding is."""

import json
from itertools import pairwise

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import infsa
from infsa.models import InfViT, fast, load_weights, read_weights, save_weights
from infsa.models.exporting import export_model
from infsa.models.patches import embed_patches
from infsa.models.stem import ConvStem, margin

from .helpers import NAMES, SMALL, images, small

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def stem(patch=8, width=32, pads=True):
    """A stem with weights large enough that every pixel counts."""
    torch.manual_seed(0)
    made = ConvStem(32, patch, 3, width, output_fmt="NHWC", strict_img_size=False, dynamic_img_pad=pads).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


@pytest.mark.parametrize("attention", NAMES)
def test_every_mechanism_at_any_size(attention):
    model = small(attention, stem="conv", dynamic_img_pad=True)
    for height, width in ((32, 32), (1, 1), (41, 27)):
        assert model(images(2, height, width)).isfinite().all()
    assert model.train()(images()).sum().backward() is None
    assert all(parameter.grad is not None for parameter in model.patch_embed.parameters())


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_window_of_a_larger_image_has_the_same_patches(data):
    """Cut out with its margin, as far as the image goes."""
    patch = data.draw(st.sampled_from([1, 2, 8, (8, 2), (1, 4)]))
    layer = stem(patch, 16)
    size = [data.draw(st.integers(1, 6 * side)) for side in layer.patch_size]
    whole = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = layer(whole)
    cuts, inside, windows = [], [], []
    for side, cells, (before, after) in zip(layer.patch_size, expected.shape[1:3], margin(layer), strict=True):
        first = data.draw(st.integers(0, cells - 1))
        last = data.draw(st.integers(first + 1, cells))
        lead = min(before, first)
        cuts.append(slice((first - lead) * side, (last + after) * side))
        inside.append(slice(lead, lead + last - first))
        windows.append(slice(first, last))
    found = embed_patches(layer, whole[:, :, *cuts], *inside)
    torch.testing.assert_close(found, expected[:, *windows].flatten(1, 2), **EXACT)


@pytest.mark.parametrize("patch", [1, 4, (8, 2)])
def test_a_token_sees_its_margin_and_no_more(patch):
    layer = stem(patch)
    (above, below), (left, right) = margin(layer)
    rows, columns = layer.patch_size
    pixels = torch.randn(1, 3, 7 * rows, 7 * columns, dtype=torch.float64, requires_grad=True)
    layer(pixels)[0, 3, 3].square().sum().backward()
    seen = pixels.grad.abs().sum((0, 1)).nonzero()
    low, high = seen.amin(0), seen.amax(0)
    assert (low // torch.tensor([rows, columns])).tolist() == [3 - above, 3 - left]
    assert (high // torch.tensor([rows, columns])).tolist() == [3 + below, 3 + right]


def test_images_of_a_batch_do_not_meet():
    layer, x = stem(), torch.randn(3, 3, 32, 40, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]), **EXACT)


def test_sides_are_padded_with_zeros_below_and_to_the_right():
    layer, x = stem(), torch.randn(1, 3, 29, 18, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer(torch.nn.functional.pad(x, (0, 6, 0, 3))), **EXACT)
    with pytest.raises(ValueError, match="multiples of the patch"):
        small(stem="conv")(x.float())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 14}, r"^stem='conv' needs patches whose sides are powers of two, got patch_size=14$"),
        ({"patch_size": (8, 6)}, r"^stem='conv' needs .* got patch_size=\(8, 6\)$"),
        ({"stem": "hybrid"}, r"^stem must be one of \['patch', 'conv'\], got 'hybrid'$"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        small(**{"stem": "conv", **options})


def test_parameters():
    """16 pixels at width 128, by hand: five convolutions and four norms instead of one convolution."""
    plain, conv = (
        InfViT(32, 16, embed_dim=128, depth=1, num_heads=8, num_classes=5, stem=kind) for kind in ("patch", "conv")
    )
    widths = [3, 16, 32, 64, 128]
    stages = sum(9 * a * b + 3 * b for a, b in pairwise(widths))
    counts = [sum(p.numel() for p in model.parameters()) for model in (plain, conv)]
    assert counts[1] - counts[0] == stages + 9 * 128 * 128 - 3 * 16 * 16 * 128


def test_half_precision_stays_half_under_autocast():
    layer = stem().float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.stages[0](images()).dtype == torch.bfloat16
        assert layer(images()).dtype == torch.bfloat16


def test_checkpointing_recomputes_the_stem():
    model = small(stem="conv").train()
    gradients, calls = [], []
    model.patch_embed.register_forward_pre_hook(lambda *_: calls.append(1))
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(images()).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert len(calls) == 3
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_at_home_in_timm():
    model = small(stem="conv", depth=3, pos_embed="sincos")
    final, features = model.forward_intermediates(images(2, 40, 48), indices=[0, 2])
    assert [f.shape for f in features] == [(2, 32, 5, 6)] * 2
    assert [info["reduction"] for info in model.feature_info] == [8] * 3
    assert final.shape == (2, 31, 32)
    wrapped = timm.create_model("infvit_linear_conv_tiny", features_only=True, out_indices=(1, 3))
    assert [f.shape[1:] for f in wrapped(torch.randn(1, 3, 64, 72))] == [(192, 8, 9)] * 2
    model.reset_classifier(7)
    assert model(images()).shape == (2, 7)
    model.set_input_size(img_size=48)
    assert model.patch_embed.grid_size == (6, 6)
    with pytest.raises(ValueError, match=r"^stem='conv' was built for the patch \(8, 8\), got patch_size=16$"):
        model.set_input_size(patch_size=16)
    with pytest.raises(ValueError, match=r"got patch_size=8$"):
        small(stem="conv", patch_size=(8, 2)).set_input_size(patch_size=8)


def test_maps_have_the_size_of_the_grid():
    maps = small(stem="conv").attention_maps(images(1, 40, 48))
    assert maps.shape == (1, 5, 6)
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(1))


def test_fast_gives_the_same():
    model = small(stem="conv")
    torch.testing.assert_close(fast(model, compile=False)(images()), model(images()))


def test_saved_and_loaded_everywhere(tmp_path):
    from infsa.models.huggingface import InfViTForImageClassification

    model, x = small(stem="conv"), images()
    expected = model(x)
    save_weights(model, tmp_path / "ours")
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path / "theirs")
    for folder in (tmp_path / "ours", tmp_path / "theirs"):
        for again in (
            infsa.create_model("infvit_linear_4l64h_patch16_224", pretrained=folder),
            timm.create_model(f"local-dir:{folder}", pretrained=True),
            InfViTForImageClassification.from_pretrained(folder).infvit,
        ):
            assert again.stem == "conv"
            assert torch.equal(again.eval()(x), expected)
    grey = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True, in_chans=1)
    assert grey(x[:, :1]).shape == (2, 5)
    with pytest.raises(ValueError, match=r"were saved with stem='conv', got 'patch'$"):
        infsa.create_model("infvit_linear_4l64h_patch16_224", pretrained=tmp_path / "ours", stem="patch")


def test_files_without_a_stem_have_patches(tmp_path):
    model = small()
    file = save_weights(model, tmp_path) / "model.safetensors"
    weights, arguments = read_weights(file)
    assert arguments.pop("stem") == "patch"
    save_file(weights, tmp_path / "old.safetensors", metadata={"infsa": json.dumps(arguments)})
    again = small(seed=1)
    load_weights(again, tmp_path / "old.safetensors")
    assert torch.equal(again(images()), model(images()))
    with pytest.raises(ValueError, match=r"were saved with stem='patch', got 'conv'$"):
        load_weights(InfViT(**SMALL, stem="conv"), tmp_path / "old.safetensors")


@torch.no_grad()
def test_compiles_whole_for_any_size():
    torch._dynamo.reset()
    model = small(stem="conv", depth=1, dynamic_img_pad=True)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for x in (images(2, 29, 40), images(3, 48, 33)):
        torch.testing.assert_close(compiled(x), model(x))


def test_exports_with_dynamic_sizes(tmp_path):
    done = export_model(small(stem="conv", depth=1), tmp_path / "model.onnx")
    assert done.dynamic == ["batch", "height", "width"]
    assert len(done.checked) == 4
