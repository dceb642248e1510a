"""Extreme inputs: outputs and gradients stay finite, and right where the answer is known."""

import math

import pytest
import torch

import infsa

from .helpers import ACTIVATIONS, IMPLS, generator, gradients, leaves, tokens

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
OPERATORS = {
    "pure": (infsa.pure_attention, {}),
    "causal": (infsa.pure_attention, {"is_causal": True}),
    "hops": (infsa.pure_attention, {"hops": 2}),
    "limit": (infsa.pure_attention, {"hops": math.inf}),
    "linear": (infsa.linear_attention, {}),
    "iterations": (infsa.linear_attention, {"iterations": 2}),
    "queries": (infsa.linear_attention, {"queries": 3}),
    "chunk": (infsa.linear_attention, {"causal": "chunk", "chunk_size": 3}),
}
impls = pytest.mark.parametrize("impl", IMPLS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
operators = pytest.mark.parametrize("operator", OPERATORS)
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def run(operator, qkv, **options):
    """Output and gradients; all of them must be finite."""
    function, fixed = OPERATORS[operator]
    inputs = leaves(*qkv)
    out = function(*inputs, **fixed, **options)
    found = gradients(lambda *x: function(*x, **fixed, **options), inputs)
    assert out.isfinite().all()
    assert all(g.isfinite().all() for g in found)
    return out, found


@operators
@dtypes
@impls
def test_negative_scores(impl, dtype, operator):
    """Dead heads: no positive score anywhere."""
    q, k, v = tokens(0, 7, dtype=dtype)
    out, found = run(operator, (q.abs(), -k.abs(), v), impl=impl)
    assert not out.any()
    assert not any(g.any() for g in found)


@pytest.mark.parametrize("zeros", ["queries", "keys", "values", "everything"])
@activations
@operators
@dtypes
@impls
def test_zeros(impl, dtype, operator, activation, zeros):
    q, k, v = tokens(1, 7, dtype=dtype)
    qkv = q, k, v / 100  # the slope of 0 / ε is 1e6 times the values: keep it in the range of float16
    dead = {"queries": [0], "keys": [1], "values": [2], "everything": [0, 1, 2]}[zeros]
    qkv = [torch.zeros_like(x) if i in dead else x for i, x in enumerate(qkv)]
    out, found = run(operator, qkv, activation=activation, impl=impl)
    assert not out.any()
    if OPERATORS[operator][0] is infsa.pure_attention and zeros != "values":
        assert not any(g.any() for g in found), "F = 0 gives zero gradients"


@pytest.mark.parametrize("size", [1e-4, 1e-7, 1e-20])
@activations
@operators
@impls
def test_tiny_tokens(impl, operator, activation, size):
    """Scores far below ε, down to where their squares underflow."""
    qkv = [size * x for x in tokens(2, 7, dtype=torch.float32)]
    run(operator, qkv, activation=activation, impl=impl)


@activations
@operators
@halves
@impls
def test_the_largest_half_precision_tokens(impl, dtype, operator, activation):
    signs = [torch.randn(2, 3, 9, 8, generator=generator(i)).sign() for i in range(3)]
    run(operator, [(6e4 * s).to(dtype) for s in signs], activation=activation, impl=impl)


def ulp(value, dtype):
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(value))


def constant(n, width, dtype):
    return torch.full((1, 1, n, width), 1e4).to(dtype)


@pytest.mark.parametrize(("kind", "n"), [("linear", 65536), ("pure", 4096)])
@halves
def test_many_large_tokens(kind, n, dtype):
    """Equal tokens are their own weighted mean, h = γ x; in Pure InfSA Â = 1/N, so that Z = γ x too."""
    x = constant(n, 64, dtype)
    out, _ = run(kind, (x, x, x))
    exact = 0.7 * x[0, 0, 0, 0].item()
    assert (out.double() - exact).abs().max() <= ulp(exact, dtype)


@halves
def test_causal_over_4096_large_tokens(dtype):
    """Row i of equal tokens sums i + 1 of them over a norm of √((i + 1)(i + 2) / 2)."""
    x = constant(4096, 16, dtype)
    out, _ = run("causal", (x, x, x))
    count = torch.arange(1, 4097, dtype=torch.float64)
    exact = 0.7 * x[0, 0, 0, 0].item() * (2 * count / (count + 1)).sqrt()
    assert (out[0, 0].double() - exact[:, None]).abs().max() <= ulp(exact.max().item(), dtype)


def test_pure_forward_over_65536_large_tokens():
    """4.3e9 scores of 2.8e8 each: their squares sum to 3e26, inside float32."""
    x = constant(65536, 8, torch.float16)
    out = infsa.pure_attention(x, x, x)
    assert (out.double() - 7e3).abs().max() <= ulp(7e3, torch.float16)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_whose_squares_leave_float32(impl, dtype, is_causal):
    """|R| of 1e20 has squares beyond float32; the norm must not become infinite and the output zero."""
    q, k, v = tokens(3, 16, width=8, dtype=dtype)
    small = infsa.pure_attention(q, k, v, impl=impl, is_causal=is_causal, eps=0.0)
    large = infsa.pure_attention(q * 2.0**33, k * 2.0**33, v, impl=impl, is_causal=is_causal, eps=0.0)
    torch.testing.assert_close(large, small, rtol=8 * torch.finfo(dtype).eps, atol=0)
