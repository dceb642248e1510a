"""Products of 8 bits give the model's logits with a small, reported error."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import nn

import infsa
from infsa.models import fast
from infsa.models.fp8 import round_rows, rounded_product

from .test_speed import images, small


def test_eight_bits_round_to_the_nearest_of_their_row():
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(2)) * torch.tensor([1e-3, 1, 1e3, 1, 1, 0])[:, None]
    eight, scale = round_rows(x)
    assert ((eight.float() * scale - x).abs() <= x.abs() * 2**-4 + scale * 2**-10).all()
    assert eight.float().abs().amax(1)[:5].tolist() == [448] * 5


@torch.no_grad()
def test_error_of_eight_bits_is_reported():
    model = small(dtype=torch.bfloat16)
    x = images(torch.bfloat16)
    for activation in (nn.GELU(), nn.ReLU()):
        for block in model.blocks:
            block.mlp.act = activation
        error = fast(model, fp8=True, chunk=9).eval().error(x)
        assert 0 < error["relative"] < 0.2
        assert 0 <= error["same_class"] <= 1
    layer = nn.Linear(32, 16, dtype=torch.bfloat16)
    rows = torch.randn(6, 32, dtype=torch.bfloat16)
    found = rounded_product(round_rows(rows), round_rows(layer.weight), layer.bias, rows.dtype)
    assert (found - layer(rows)).norm() <= 0.1 * layer(rows).norm()


@torch.no_grad()
def test_eight_bits_keep_the_classes_of_a_trained_model():
    """As docs/models.md says; there on more pieces of the photographs."""
    model = infsa.create_model("infvit_linear_tiny", pretrained=True).eval()
    mean, deviation = (torch.tensor(model.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    photographs = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2) / 255
    pieces = nn.functional.interpolate(photographs[..., :256, :512], scale_factor=0.5, mode="area")
    x = torch.cat([(piece - mean) / deviation for piece in pieces.split(64, 3)]).to(torch.bfloat16)
    error = fast(model.to(torch.bfloat16), fp8=True).error(x)
    assert error["same_class"] == 1
    assert 0.01 < error["relative"] < 0.06


@torch.no_grad()
@pytest.mark.parametrize("change", ["in place", "data", "replaced"])
def test_eight_bits_are_those_of_the_weights_as_they_are(change):
    model, x = small(dtype=torch.bfloat16), images(torch.bfloat16)
    quick = fast(model, fp8=True)
    before, layer = quick(x), model.blocks[0].mlp.fc2
    if change == "in place":
        layer.weight.mul_(-1)
    elif change == "data":
        layer.weight.data.mul_(-1)
    else:
        model.blocks[0].mlp.fc2 = nn.Linear(128, 32, dtype=torch.bfloat16).eval()
    found = quick(x)
    assert (found - before).norm() > 0.1 * before.norm()
    assert (found - model(x)).norm() < 0.3 * found.norm()
    torch.testing.assert_close(found, fast(model, fp8=True)(x), rtol=0, atol=0)
