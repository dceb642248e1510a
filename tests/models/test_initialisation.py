"""Where weights start: the scale of every layer under every scheme."""

import math

import pytest
import torch

from infsa.models import InfViT
from infsa.nn.peers.registry import ATTENTIONS
from tests.data.helpers import one_line

WIDTH, TOKENS = 96, 65
MECHANISMS = ["softmax", "infsa_pure", "infsa_linear"]


def started(scheme, **options):
    model = InfViT(64, 8, num_classes=10, embed_dim=WIDTH, depth=2, num_heads=4, **options)
    torch.manual_seed(0)
    model.init_weights(scheme)
    return model


def deviations(model):
    """The deviation of every square projection and of the MLP's two layers, times what Xavier's would be."""
    block = model.blocks[1]
    names = {"proj": block.attn.proj.weight, "fc1": block.mlp.fc1.weight, "fc2": block.mlp.fc2.weight}
    if hasattr(block.attn, "qkv"):
        names |= dict(zip(("q", "k", "v"), block.attn.qkv.weight.chunk(3), strict=True))
    else:
        names |= {"q": block.attn.q.weight, "v": block.attn.v.weight}
    return {name: float(w.detach().std() / math.sqrt(2 / sum(w.shape))) for name, w in names.items()}


@pytest.mark.parametrize("attention", MECHANISMS)
def test_the_scale_of_every_projection(attention):
    xavier, preserving = (deviations(started(scheme, attention=attention)) for scheme in ("xavier", "preserving"))
    assert xavier == pytest.approx(dict.fromkeys(xavier, 1.0), rel=0.05)
    assert preserving == pytest.approx(xavier | {"proj": xavier["proj"] * math.sqrt(TOKENS)}, rel=1e-5)
    normal = deviations(started("normal", attention=attention))
    assert normal["proj"] == pytest.approx(0.02 * math.sqrt(WIDTH), rel=0.05)


def test_the_mean_of_unrelated_tokens_keeps_its_scale():
    """With q = 0 softmax averages: what leaves the layer is then as large as a token, and √N times less by Xavier."""
    tokens = torch.nn.functional.layer_norm(torch.randn(32, TOKENS, WIDTH), (WIDTH,))
    sizes = {}
    for scheme in ("xavier", "preserving"):
        layer = started(scheme, attention="softmax").blocks[0].attn
        torch.nn.init.zeros_(layer.qkv.weight[: 2 * WIDTH])
        with torch.no_grad():
            sizes[scheme] = float(layer(tokens, (8, 8), 1).square().mean().sqrt())
    assert sizes["preserving"] == pytest.approx(1, rel=0.2)
    assert sizes["preserving"] == pytest.approx(sizes["xavier"] * math.sqrt(TOKENS), rel=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_mechanism_starts_finite(attention):
    model = started("preserving", attention=attention)
    assert model(torch.randn(2, 3, 64, 64)).isfinite().all()
    bias = model.blocks[0].attn.proj.bias
    assert bias is None or not bias.any()


def test_an_unknown_scheme_is_one_line():
    with pytest.raises(ValueError, match=one_line("scheme must be one of .*'preserving'.* got 'orthogonal'")):
        started("orthogonal")
