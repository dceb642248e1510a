"""Small types: at most twice the error of the plain PyTorch path in the same type, values and gradients.

Errors are root mean squares against float64 on the same, already rounded, inputs. Where the plain path is
better than one unit in the last place of the output's scale, one such unit is allowed.
"""

import math

import pytest
import torch

import infsa

from . import plain
from .helpers import IMPLS, generator, head_gammas, leaves, lengths_mask, tokens

N = 48
SEEDS = range(4)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PURE = {
    "relu": {},
    "gelu": {"activation": "gelu"},
    "abs": {"activation": "abs"},
    "causal": {"is_causal": True},
    "padded": {"key_mask": lengths_mask([30, N], N)},
    "hops": {"hops": 3},
    "limit": {"hops": math.inf},
    "causal_limit": {"hops": math.inf, "is_causal": True},
}
LINEAR = {
    "relu": {},
    "gelu": {"activation": "gelu"},
    "abs": {"activation": "abs"},
    "iterations": {"iterations": 3},
    "queries": {"queries": 5},
    "chunk": {"causal": "chunk", "chunk_size": 10},
    "padded": {"key_mask": lengths_mask([30, N], N)},
}
CASES = [("pure", name) for name in PURE] + [("linear", name) for name in LINEAR]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
impls = pytest.mark.parametrize("impl", IMPLS)
cases = pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{k}-{n}" for k, n in CASES])


def operators(kind, name, impl):
    """The library's function and the plain one, of (q, k, v, gamma)."""
    options = (PURE if kind == "pure" else LINEAR)[name]
    ours, theirs = getattr(infsa, f"{kind}_attention"), getattr(plain, f"{kind}_attention")
    return (
        lambda q, k, v, gamma: ours(q, k, v, gamma=gamma, impl=impl, **options),
        lambda q, k, v, gamma: theirs(q, k, v, gamma=gamma, **options),
    )


def value_and_gradients(function, inputs, autocast=None):
    """The output and the gradients of ⟨w, output⟩ for a fixed w that every type represents exactly.

    As in any training loop, the backward pass is left outside the autocast region.
    """
    inputs = leaves(*inputs)
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        out = function(*inputs)
    w = torch.randn(out.shape, generator=generator(11)).to(torch.bfloat16).to(torch.float16)
    return out.detach(), *torch.autograd.grad(out, inputs, w.to(out.dtype))


def unit(scale, dtype):
    """One unit in the last place of numbers as large as `scale`."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(scale))


def rms(tensors):
    return torch.cat([t.flatten() for t in tensors]).square().mean().sqrt().item()


def assert_within_twice(found, plain_found, exact, dtype, what):
    """Lists over the seeds of one output or gradient."""
    errors = rms([x.double() - y for x, y in zip(found, exact, strict=True)])
    yardstick = rms([x.double() - y for x, y in zip(plain_found, exact, strict=True)])
    allowed = max(2 * yardstick, unit(max(x.abs().max().item() for x in exact), dtype))
    assert errors <= allowed, f"{what}: error {errors:.3e}, plain path {yardstick:.3e}, allowed {allowed:.3e}"


@cases
@dtypes
@impls
def test_error_is_at_most_twice_that_of_plain_torch(impl, dtype, kind, name):
    ours, theirs = operators(kind, name, impl)
    runs = []
    for seed in SEEDS:
        inputs = (*tokens(seed, N, width=16, dtype=dtype), head_gammas(dtype=dtype))
        exact = value_and_gradients(theirs, [x.double() for x in inputs])
        runs.append((value_and_gradients(ours, inputs), value_and_gradients(theirs, inputs), exact))
    for i, what in enumerate(("output", "q.grad", "k.grad", "v.grad", "gamma.grad")):
        found, plain_found, exact = ([run[j][i] for run in runs] for j in range(3))
        assert all(x.dtype == dtype for x in found)
        assert_within_twice(found, plain_found, exact, dtype, what)


@dtypes
@impls
@pytest.mark.parametrize("kind", ["pure", "linear"])
def test_gamma_may_be_wider_than_the_tokens(kind, impl, dtype):
    """A float32 parameter beside half-precision tokens: the tokens decide the type of the output."""
    q, k, v = tokens(0, N, dtype=dtype)
    gamma = head_gammas(dtype=torch.float32).requires_grad_()
    ours, _ = operators(kind, "relu", impl)
    out = ours(q, k, v, gamma)
    assert out.dtype == dtype
    out.sum().backward()
    assert gamma.grad.dtype == torch.float32
    assert gamma.grad.all()


@dtypes
@pytest.mark.parametrize("mask_dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@impls
def test_a_bias_may_have_another_type(impl, mask_dtype, dtype):
    q, k, v = tokens(1, 8, dtype=dtype)
    bias = torch.randn(8, 8, generator=generator(2), dtype=torch.float64).to(mask_dtype)
    out = infsa.pure_attention(q, k, v, attn_mask=bias, impl=impl)
    assert out.dtype == dtype
    exact = plain.pure_attention(*(x.double() for x in (q, k, v)), attn_mask=bias.double())
    assert (out.double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps * exact.abs().max()


AUTOCAST = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("autocast", AUTOCAST, ids=str)
@pytest.mark.parametrize("kind", ["pure", "linear"])
@impls
def test_autocast_casts_as_it_does_for_torchs_attention(impl, kind, autocast):
    """Mixed inputs and float32 ones are cast, float64 ones are not; sums are kept in float32 all the same."""
    q, k, v = tokens(0, N, width=16, dtype=torch.float32)
    ours, _ = operators(kind, "relu", impl)
    want = value_and_gradients(ours, (q.to(autocast), k.to(autocast), v.to(autocast), head_gammas(dtype=torch.float32)))
    found = value_and_gradients(ours, (q, k.to(autocast), v, head_gammas(dtype=torch.float32)), autocast)
    assert [x.dtype for x in found[:4]] == [autocast, torch.float32, autocast, torch.float32]
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x.double(), y.double(), rtol=0, atol=0)
    wide = tokens(0, N, width=16)
    with torch.autocast("cpu", dtype=autocast):
        out = ours(*wide, 0.7)
    assert torch.equal(out, ours(*wide, 0.7))
    assert out.dtype == torch.float64
    with torch.autocast("cpu", dtype=autocast):
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert theirs.dtype == found[0].dtype


@pytest.mark.parametrize("autocast", AUTOCAST, ids=str)
@pytest.mark.parametrize("kind", ["pure", "linear"])
@impls
def test_autocast_does_not_overflow(impl, kind, autocast):
    """Products of 1e4 leave the range of float16; sums of them must not."""
    x = torch.full((1, 1, 64, 16), 1e4)
    ours, _ = operators(kind, "relu", impl)
    with torch.autocast("cpu", dtype=autocast):
        out = ours(x, x, x, 0.7)
    assert torch.allclose(out.float(), torch.tensor(7e3), rtol=torch.finfo(autocast).eps)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"queries": 2}, {"causal": "chunk", "chunk_size": 3000}], ids=str)
def test_gradients_are_summed_over_many_tokens_in_float32(dtype, options, device):
    """What many tokens share gets the sum of their gradients: kept in half precision it would stop growing."""
    q, k, v = (x.to(device) for x in tokens(7, 6000, batch=1, heads=1, dtype=dtype))
    gradients = []
    for exact in (True, False):
        inputs = [(x.double() if exact else x).detach().requires_grad_() for x in (q, k, v)]
        infsa.linear_attention(*inputs, **options).double().sum().backward()
        gradients.append([x.grad.double() for x in inputs])
    for expected, actual in zip(*gradients, strict=True):
        assert (actual - expected).norm() <= 4 * torch.finfo(dtype).eps * expected.norm()
