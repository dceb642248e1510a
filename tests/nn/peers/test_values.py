"""Every mechanism equals its formula, values and gradients, at the grid of construction and at another."""

import pytest
import torch
from torch.func import functional_call

from infsa.nn.peers.layout import resize_by_products

from . import naive
from .helpers import BASE, BLOCK, LARGER, NAMES, build, gradients, tokens


def assert_equals_formula(name, module, grid, num_prefix):
    x = tokens(grid, num_prefix).requires_grad_()
    actual = module(x, grid, num_prefix)
    expected = naive.attend(name, module, x, grid, num_prefix)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(actual, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("grid", "num_prefix"), [(BASE, 1), (BASE, 0), (BASE, 3), (LARGER, 1), (LARGER, 3)])
@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_equals_its_formula(name, grid, num_prefix):
    assert_equals_formula(name, build(name, num_prefix=num_prefix), grid, num_prefix)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linformer", {"share_kv": True}),
        ("performer", {"features": 21, "eps": 1e-6}),
        ("soft", {"normalize": False}),
        ("soft", {"landmarks": 7, "newton_steps": 5, "kernel_size": 5}),
        ("flatten", {"power": 2, "kernel_size": 3}),
        ("agent", {"agents": 49}),
        ("agent", {"position_bias": False, "kernel_size": 5}),
        ("mean", {"gamma": 0.3}),
        ("energy", {"gamma": 0.3}),
    ],
)
def test_options_equal_their_formula(name, options):
    assert_equals_formula(name, build(name, **options), LARGER, 1)


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_extra_projection_stands_before_the_output_projection(name):
    module = build(name, extra_proj=True)
    assert_equals_formula(name, module, BASE, 1)
    plain = build(name)
    more = sum(p.numel() for p in module.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 16 * 16 + 16


@pytest.mark.parametrize("name", NAMES)
def test_without_biases(name):
    module = build(name, bias=False)
    assert not [n for n, _ in module.named_parameters() if n.endswith(("qkv.bias", "proj.bias"))]
    assert_equals_formula(name, module, BASE, 1)


# The performer's stabiliser carries no gradient and cancels without ε; a converged Newton inverse is exact.
SMOOTH = {"performer": {"eps": 0.0}, "soft": {"newton_steps": 40}}


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_gradients_equal_finite_differences(name):
    grid = (2, 3)
    module = build(name, dim=8, grid=(2, 2), **SMOOTH.get(name, {}))
    names = [n for n, _ in module.named_parameters()]
    x = tokens(grid, dim=8, batch=1).requires_grad_()

    def function(x, *parameters):
        return functional_call(module, dict(zip(names, parameters, strict=True)), (x, grid))

    assert torch.autograd.gradcheck(function, (x, *module.parameters()), fast_mode=True)


@pytest.mark.parametrize("masked", [False, True])
def test_fused_and_explicit_softmax_agree(masked):
    fused, explicit = build("softmax"), build("softmax", fused=False)
    mask = None
    if masked:
        mask = torch.ones(2, 16, dtype=torch.bool)
        mask[0, 4:9] = mask[1, 0] = False
    x = tokens().requires_grad_()
    out, expected = fused(x, BASE, key_mask=mask), explicit(x, BASE, key_mask=mask)
    torch.testing.assert_close(out, expected)
    found = gradients(out, [x, *fused.parameters()])
    for a, b in zip(found, gradients(expected, [x, *explicit.parameters()]), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("grid", [BASE, LARGER, (BASE[0], LARGER[1])])
@pytest.mark.parametrize("name", ["linformer", "flatten", "agent"])
def test_tables_resized_by_products_give_the_same(name, grid, monkeypatch):
    """As a GPU resizes them: many channels, or with gradients."""
    monkeypatch.setattr(f"infsa.nn.peers.{name}.resize", resize_by_products)
    assert_equals_formula(name, build(name), grid, 1)


@pytest.mark.parametrize("name", ["linformer", "flatten", "agent"])
def test_position_tables_are_resized_in_float32(name):
    """A float16 module resizes its tables to within the rounding of its inputs, not of its tables."""
    exact = build(name)
    half = build(name).half()
    for target, source in zip(exact.parameters(), half.parameters(), strict=True):
        target.data.copy_(source)
    x = tokens(LARGER).half()
    error = (half(x, LARGER).double() - exact(x.double(), LARGER)).abs().max()
    assert error < 4 * torch.finfo(torch.float16).eps * exact(x.double(), LARGER).abs().max()
