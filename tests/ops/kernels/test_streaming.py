"""A streamed image by the kernels that the model in memory runs: the same result, and they are what runs."""

import pytest
import torch

import infsa
from infsa.models import InfViT
from infsa.ops.linear import tiles

from .helpers import DEVICE

LAYERS = {
    "plain": {},
    "untied": {"tied": False},
    "partly untied": {"key_rank": 3},
    "no bias": {"bias": False},
}


def model(dtype, activation="relu", **layer):
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    found = InfViT(**size, activation=activation, attention_options={"impl": "fused", **layer}).eval()
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return found.to(DEVICE, dtype)


def relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


CASES = [("plain", name, dtype) for name in ("relu", "gelu", "abs") for dtype in (torch.float32, torch.bfloat16)]
CASES += [(layer, "relu", torch.float32) for layer in LAYERS if layer != "plain"]


@pytest.mark.parametrize(("layer", "activation", "dtype"), CASES)
def test_equals_the_whole_image(layer, activation, dtype, monkeypatch):
    calls = []
    for name in ("energy_sums", "score_sums"):
        run = getattr(tiles, name)
        monkeypatch.setattr(tiles, name, lambda *args, run=run, name=name: calls.append(name) or run(*args))
    net = model(dtype, activation, **LAYERS[layer])
    x = torch.randn(3, 88, 120, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    with torch.no_grad():
        exact = model(dtype, activation, **LAYERS[layer]).cpu().double()
        for block in exact.blocks:
            block.attn.impl = "reference"
        expected = exact(x[None].cpu().double())
        own = relative(net(x[None]).cpu(), expected)
    found = infsa.stream(net, x, tile=40)
    passes = ["energy_sums"] * 6 + ["score_sums"] * 6  # of 9 tiles; the lowest have too few tokens
    assert calls == passes * 2
    bound = {torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    assert relative(found.logits.cpu(), expected) < max(2 * own, bound), own


def test_gradients_and_float16_take_plain_operations():
    weights = tiles.Weights(4, *model(torch.float32).blocks[0].attn.projections(), "relu", "fused")
    x = torch.randn(1, 64, 32, device=DEVICE)
    assert not tiles.kernels_do(x, weights)  # gradients are on
    with torch.no_grad():
        assert tiles.kernels_do(x, weights)
        assert not tiles.kernels_do(x.half(), weights)
        assert not tiles.kernels_do(x[:, :3], weights)
