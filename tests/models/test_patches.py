"""Disjoint patches by one product: what the convolution gives, and the convolution wherever it is more than that."""

import pytest
import torch
from timm.layers import PatchEmbed
from torch import nn

from infsa.models.patches import disjoint, embed_patches, project, unfold


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


def test_a_gpu_takes_the_product_unless_somebody_listens():
    layer = patch_embed()
    images, calls = torch.randn(1, 3, 16, 12, dtype=torch.float64), []
    layer.forward = lambda x: calls.append(x.shape) or PatchEmbed.forward(layer, x)
    on_gpu = images.as_subclass(OnGpu)
    torch.testing.assert_close(embed_patches(layer, on_gpu).as_subclass(torch.Tensor), embed_patches(layer, images))
    assert len(calls) == 1
    layer.proj.register_forward_hook(lambda *_: None)
    embed_patches(layer, on_gpu)
    assert len(calls) == 2


@pytest.mark.parametrize("change", ["groups", "stride", "padding", "subclass"])
def test_other_layers_are_not_disjoint_patches(change):
    layer = patch_embed()
    assert disjoint(layer)
    if change == "subclass":
        layer.proj = type("Conv", (nn.Conv2d,), {})(3, 24, 4, 4)
    else:
        layer.proj = nn.Conv2d(3, 24, 4, **{"stride": 4, change: {"groups": 3, "stride": 2, "padding": 1}[change]})
    assert not disjoint(layer)
