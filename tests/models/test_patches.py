"""Disjoint patches by one product: what the convolution gives, and the convolution wherever it is more than that."""

import pytest
import torch
from timm.layers import PatchEmbed
from torch import nn

import infsa
from infsa.models.patches import disjoint, project, unfold


class OnGpu(torch.Tensor):
    is_cuda = True


def patch_embed(patch=4, **options):
    torch.manual_seed(0)
    return PatchEmbed((16, 12), patch, 3, 24, output_fmt="NHWC", strict_img_size=False, **options).double()


@pytest.mark.parametrize("patch", [4, (2, 3), 1])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"norm_layer": nn.LayerNorm}], ids=["plain", "free", "norm"])
def test_the_product_is_the_convolution(patch, options):
    layer = patch_embed(patch, **options)
    images = torch.randn(2, 3, 16, 12, dtype=torch.float64, requires_grad=True)
    found, expected = project(layer, unfold(layer, images)), layer(images).flatten(1, 2)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    inputs = [images, *layer.parameters()]
    for a, b in zip(*(torch.autograd.grad(y, inputs, weights) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("size", [(16, 12), (17, 12), (13, 15), (1, 1)])
def test_sides_are_padded_as_by_the_layer(size):
    layer = patch_embed(dynamic_img_pad=True)
    images = torch.randn(1, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(project(layer, unfold(layer, images)), layer(images).flatten(1, 2))


def test_a_gpu_takes_the_product(monkeypatch):
    torch.manual_seed(0)
    model = infsa.create_model("infvit_linear_tiny", embed_dim=24, num_heads=3).eval()
    images = torch.randn(2, 3, 48, 32)
    expected, grid = model.embed(images)
    monkeypatch.setattr(PatchEmbed, "forward", lambda *_: pytest.fail("the convolution was called"))
    found, same = model.embed(images.as_subclass(OnGpu))
    assert grid == same == (6, 4)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("listening", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
@pytest.mark.parametrize("inner", [False, True])
def test_whoever_listens_is_called(listening, inner):
    layer = patch_embed()
    listener = layer.proj if inner else layer
    handle = getattr(listener, f"register_{listening}_hook")(lambda *_: None)
    assert not disjoint(layer)
    handle.remove()
    assert disjoint(layer)
    listener.forward = lambda x: x
    assert not disjoint(layer)


def test_whoever_listens_to_everything_is_called():
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert not disjoint(patch_embed())
    assert disjoint(patch_embed())


@pytest.mark.parametrize("change", ["groups", "stride", "padding", "dilation", "subclass"])
def test_other_layers_are_not_disjoint_patches(change):
    layer = patch_embed()
    if change == "subclass":
        layer.proj = type("Conv", (nn.Conv2d,), {})(3, 24, 4, 4)
    else:
        values = {"groups": 3, "stride": 2, "padding": 1, "dilation": 2}
        layer.proj = nn.Conv2d(3, 24, 4, **{"stride": 4, change: values[change]})
    assert not disjoint(layer)


def test_images_without_pixels_are_refused():
    model = infsa.create_model("infvit_linear_tiny", dynamic_img_pad=True)
    for size in ((0, 32), (32, 0)):
        with pytest.raises(ValueError, match=rf"^images must have at least one pixel a side, got \({size[0]}, "):
            model(torch.zeros(1, 3, *size))
