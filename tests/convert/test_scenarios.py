"""What people do with converted models: both layouts, functions, weights, one layer, a training loop, autocast."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infsa
from infsa.conversion import converted_layers
from tests.ops import plain

from .models import build
from .oracle import Formula

BOTH = pytest.mark.parametrize("variant", ["pure", "linear"])


def heads(x, weight, bias):
    return F.linear(x, weight, bias).unflatten(-1, (4, -1)).transpose(1, 2)


@BOTH
@pytest.mark.parametrize("batch_first", [True, False])
def test_one_layer_equals_the_function_on_its_weights(variant, batch_first):
    """A single layer in either layout is the plain function between its own projections."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first).double()
    options = {"norm": "frobenius"} if variant == "pure" else {}
    converted = infsa.convert(layer, variant, **options)
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    tokens = x if batch_first else x.transpose(0, 1)
    out, weights = converted(tokens, tokens, tokens)
    parts = zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    q, k, v = (heads(x, *part) for part in parts)
    function = infsa.pure_attention if variant == "pure" else infsa.linear_attention
    oracle = plain.pure_attention if variant == "pure" else plain.linear_attention
    z = oracle(q, k, v)
    torch.testing.assert_close(function(q, k, v), z, rtol=1e-10, atol=1e-12)
    expected = layer.out_proj(z.expand(-1, -1, 9, -1).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out if batch_first else out.transpose(0, 1), expected, rtol=1e-10, atol=1e-12)
    assert weights.shape == (3, 9, 9)
    assert (weights >= 0).all()


@BOTH
def test_weights_on_request(variant):
    layer = infsa.convert(nn.MultiheadAttention(16, 4, batch_first=True), variant)
    x = torch.randn(3, 9, 16)
    assert layer(x, x, x, need_weights=False)[1] is None
    assert layer(x, x, x, average_attn_weights=False)[1].shape == (3, 4, 9, 9)
    torch.testing.assert_close(layer(x, x, x)[0], layer(x, x, x, need_weights=False)[0])


def test_replacing_one_layer_by_hand():
    """The converted layer is an ordinary module: it can be put where the original was."""
    model, inputs, _ = build("encoder")
    whole = infsa.convert(model, include="layers.1.*")
    model.layers[1].self_attn = infsa.convert(model.layers[1].self_attn, norm="frobenius")
    assert torch.equal(model(*inputs), whole(*inputs))


def test_copy_or_in_place():
    model, inputs, _ = build("timm vit")
    expected = model(*inputs)
    converted = infsa.convert(model)
    assert converted is not model
    assert torch.equal(model(*inputs), expected)
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in converted.parameters()}
    parameters = dict(model.named_parameters())
    assert infsa.convert(model, inplace=True) is model
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert torch.equal(model(*inputs), converted(*inputs))


@BOTH
@pytest.mark.parametrize("name", ["encoder", "torchvision vit", "timm vit", "eva"])
def test_a_short_training_loop_learns(name, variant):
    model, inputs, _ = build(name, torch.float32)
    model = infsa.convert(model, variant, learn_gamma=True).train()
    start = [layer.decay.logit.detach().clone() for layer in converted_layers(model).values()]
    target = torch.randn_like(model(*inputs)).detach()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = F.mse_loss(model(*inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    for before, layer in zip(start, converted_layers(model).values(), strict=True):
        assert not torch.equal(before, layer.decay.logit)


@BOTH
@pytest.mark.parametrize("name", ["encoder", "torchvision vit", "timm vit", "timm gate", "eva", "pooling"])
def test_autocast(name, variant):
    """Within twice the error of the original code with the formula in it, under the same autocast."""
    model, inputs, _ = build(name, torch.float32)
    converted = infsa.convert(model, variant)
    with torch.autocast("cpu", torch.bfloat16):
        result = converted(*inputs)
        with Formula(variant):
            usual = model(*inputs)
    with Formula(variant):
        truth = copy.deepcopy(model).double()(*(x.double() for x in inputs))
    slack = torch.finfo(torch.bfloat16).eps * truth.norm()
    assert (result.double() - truth).norm() <= 2 * (usual.double() - truth).norm() + slack
    result.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in converted.parameters())


@BOTH
@pytest.mark.parametrize("name", ["encoder", "timm vit"])
def test_evaluation_is_deterministic(name, variant):
    model, inputs, _ = build(name, torch.float32)
    model = infsa.convert(model, variant).eval()
    assert torch.equal(model(*inputs), model(*inputs))


def test_dropout_on_the_weights_acts_in_training_only():
    torch.manual_seed(0)
    layer = infsa.convert(nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True))
    x = torch.randn(3, 9, 16)
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])


@BOTH
def test_hooks_on_projections_see_them(variant):
    model, inputs, _ = build("timm vit")
    seen = {}
    for which, network in (("before", model), ("after", infsa.convert(model, variant))):
        network.blocks[0].attn.qkv.register_forward_hook(lambda m, a, out, which=which: seen.update({which: out}))
        plain = None if which == "before" else infsa.convert(model, variant)(*inputs)
        output = network(*inputs)
        assert plain is None or torch.allclose(plain, output)
    torch.testing.assert_close(seen["before"], seen["after"])


def test_hooks_and_shared_layers_stay():
    shared = nn.MultiheadAttention(16, 4, batch_first=True)
    model = nn.ModuleDict({"first": shared, "second": shared})
    seen = []
    shared.register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
    converted = infsa.convert(model)
    assert converted["first"] is converted["second"]
    x = torch.randn(3, 9, 16)
    converted["second"](x, x, x)
    assert seen == ["SwappedMultiheadAttention"]
