"""The pool-first kernels of Linear-InfSA: sums, gradients and their registration, against float64."""

import pytest
import torch

import infsa
from infsa.ops.linear import projected
from infsa.ops.linear import triton_register as register_linear

from ..helpers import lengths_mask, random_mask
from .helpers import DEVICE, DTYPES, rms, unit

NAMES = ("mean", "mass", "x.grad", "query.weight.grad", "query.bias.grad", "key.weight.grad", "key.bias.grad")


def layer(seed, n, dim, dtype, *, tied=True, bias=True, batch=1):
    """x, then weight and bias of the query and, untied, of the key projection."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, n, dim, generator=g)
    projections = []
    for _ in range(1 if tied else 2):
        projections += [torch.randn(dim, dim, generator=g) / dim**0.5]
        projections += [0.3 * torch.randn(dim, generator=g)] if bias else []
    return [y.to(dtype) for y in (x, *projections)]


def pool(inputs, heads, impl, *, tied=True, bias=True, **options):
    x, *rest = inputs
    pairs = [(rest[0], rest[1]), tuple(rest[2:])] if bias else [(w, None) for w in rest]
    key = None if tied else pairs[1]
    return infsa.ops.projected_pool(x, heads, pairs[0], key, impl=impl, **options)


def pooled_and_gradients(inputs, heads, impl, device, **options):
    """Mean and mass, and the gradients of a fixed combination of both."""
    inputs = [x.detach().to(device).requires_grad_() for x in inputs]
    mask = options.pop("key_mask", None)
    found = pool(inputs, heads, impl, key_mask=None if mask is None else mask.to(device), **options)
    g = torch.Generator().manual_seed(3)
    loss = sum((torch.randn(y.shape, generator=g).to(y) * y).sum() for y in (found.mean, found.mass))
    return [y.detach().cpu() for y in (found.mean, found.mass, *torch.autograd.grad(loss, inputs))]


CASES = {
    "tied": {},
    "gelu_untied_padded": {"activation": "gelu", "tied": False, "key_mask": lengths_mask([50], 70)},
    "abs_no_bias": {"activation": "abs", "tied": False, "bias": False},
    "gelu_masked": {"activation": "gelu", "key_mask": random_mask((1, 70), 2)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_is_at_most_twice_that_of_the_reference(dtype, case):
    """The yardstick projects in the same type and sums in float32.

    Mean and mass are quotients of two sums: three roundings, so one and a half units in the last place.
    """
    options = dict(CASES[case])
    sizes = {k: options[k] for k in ("tied", "bias") if k in options}
    inputs = layer(0, 70, 48, dtype, **sizes)
    exact = pooled_and_gradients([x.double() for x in inputs], 3, "reference", "cpu", **options)
    yardstick = pooled_and_gradients(inputs, 3, "reference", "cpu", **options)
    found = pooled_and_gradients(inputs, 3, "triton", DEVICE, **options)
    for name, x, y, e in zip(NAMES, found, yardstick, exact, strict=False):
        units = 1.5 if name in ("mean", "mass") else 1
        error, allowed = rms(x - e), max(2 * rms(y - e), units * unit(e.abs().max().item(), dtype))
        assert x.isfinite().all(), name
        assert error <= allowed, f"{name}: error {error:.3e}, reference {rms(y - e):.3e}, allowed {allowed:.3e}"


@pytest.mark.parametrize(
    ("n", "dim", "heads", "batch"), [(1, 16, 1, 2), (33, 40, 5, 2), (100, 34, 2, 1), (20, 130, 1, 1)]
)
def test_sizes(n, dim, heads, batch):
    """Batches, odd lengths, and widths and head counts that fill no tile."""
    inputs = layer(1, n, dim - dim % heads, torch.float32, batch=batch)
    exact = pooled_and_gradients([x.double() for x in inputs], heads, "reference", "cpu")
    if inputs[0].shape[2] // heads > 128:
        with pytest.raises(ValueError, match="head widths up to 128, got 130"):
            pool([x.to(DEVICE) for x in inputs], heads, "triton")
        return
    found = pooled_and_gradients(inputs, heads, "triton", DEVICE)
    for x, e in zip(found, exact, strict=True):
        torch.testing.assert_close(x.double(), e, rtol=1e-4, atol=1e-5 * max(1.0, e.abs().max().item()))


def test_large_and_small_tokens_in_float16():
    """Sums over tokens in units of their own: neither end of float16's range is reached on the way."""
    for size in (1e3, 1e-2):
        x, w, b = layer(2, 40, 32, torch.float16)
        inputs = [(size * x).half(), w, 0 * b]
        exact = pooled_and_gradients([y.double() for y in inputs], 2, "reference", "cpu")
        found = pooled_and_gradients(inputs, 2, "triton", DEVICE)
        for name, y, e in zip(NAMES, found, exact, strict=False):
            assert rms(y.double() - e) <= 2e-3 * rms(e), name


def test_two_runs_are_equal_to_the_bit():
    inputs = layer(4, 70, 32, torch.bfloat16)
    first, second = (pooled_and_gradients(inputs, 2, "triton", DEVICE) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_masked_tokens_leave_no_trace():
    """Not even NaN: the real tokens give what they give alone."""
    x, w, b = (y.to(DEVICE) for y in layer(5, 40, 32, torch.float32))
    alone = infsa.ops.projected_pool(x[:, :23], 2, (w, b), impl="triton")
    x[:, 23:] = float("nan")
    mask = lengths_mask([23], 40).to(DEVICE)
    padded = infsa.ops.projected_pool(x, 2, (w, b), key_mask=mask, impl="triton")
    torch.testing.assert_close(padded.mean, alone.mean)
    torch.testing.assert_close(padded.mass, alone.mass)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"iterations": 2}, "iterations=1, got 2"), ({"queries": 3}, "queries=1, got 3")],
    ids=["iterations", "queries"],
)
def test_what_the_kernels_do_not_do_is_refused(options, says):
    x, w, b = (y.to(DEVICE) for y in layer(6, 8, 32, torch.float32))
    with pytest.raises(ValueError, match=f"^impl='triton' takes {says}$"):
        infsa.ops.projected_pool(x, 2, (w, b), impl="triton", **options)
    assert infsa.ops.projected_pool(x, 2, (w, b), impl="chunked", **options).mean.isfinite().all()


def test_projected_tokens_are_refused():
    q = torch.randn(1, 2, 8, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"use infsa\.ops\.projected_pool"):
        infsa.linear_attention(q, q, q, impl="triton")


def test_opcheck_and_compile():
    x, w, b = (y.to(DEVICE).requires_grad_() for y in layer(7, 9, 32, torch.float32))
    mask = lengths_mask([7], 9).to(DEVICE)
    torch.library.opcheck(torch.ops.infsa_triton.energy_sums, (x, w, b, mask, 2))
    u = torch.randn(1, 2, 32, device=DEVICE, requires_grad=True)
    offset = torch.randn(1, 2, device=DEVICE, requires_grad=True)
    torch.library.opcheck(torch.ops.infsa_triton.score_sums, (x, u, offset, mask, "gelu"))

    def function(x):
        return infsa.ops.projected_pool(x, 2, (w, b), key_mask=mask, impl="triton").mean

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), function(x))
    torch._dynamo.reset()


def test_flops():
    assert register_linear.energy_flops((2, 10, 8), (8, 8)) == 2 * 2 * 10 * 8 * 8
    assert register_linear.score_flops((2, 10, 8), (2, 4, 8)) == 4 * 2 * 10 * 8 * 4


@pytest.mark.parametrize("mask", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize(
    ("n", "heads", "width", "batch"), [(1, 1, 16, 1), (37, 4, 16, 2), (130, 3, 20, 1), (200, 12, 48, 2), (5, 2, 16, 0)]
)
def test_sums_over_queries_that_exist(n, heads, width, batch, mask):
    """Values and gradient against float64; queries outside the mask may be anything."""
    g = torch.Generator().manual_seed(n)
    q = torch.randn(batch, n, heads * width, generator=g).to(DEVICE).requires_grad_()
    real = random_mask((batch, n), 1).to(DEVICE) if mask else None
    exact = q.detach().double().requires_grad_()
    split = exact.unflatten(-1, (heads, -1))
    energy = split.norm(dim=-1) if real is None else split.norm(dim=-1) * real.unsqueeze(-1)
    expected = energy.sum(1), (energy.unsqueeze(-1) * split).sum(1)
    found = register_linear.query_sums(q, real, heads)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f.double(), e, rtol=1e-5, atol=1e-6 * n)  # float32 sums of n terms that cancel
    weights = [torch.randn(y.shape, generator=g).to(DEVICE) for y in found]

    def gradient(sums, x, **options):
        return torch.autograd.grad(sum((w * y).sum() for w, y in zip(weights, sums, strict=True)), x, **options)[0]

    by_kernel, other = gradient(found, q, retain_graph=True), gradient(expected, exact)
    torch.testing.assert_close(by_kernel.double(), other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient(found, q, create_graph=True), by_kernel)  # plain operations: differentiable
    if real is not None:
        spoiled = q.detach().masked_fill(~real.unsqueeze(-1), float("nan")).requires_grad_()
        again = register_linear.query_sums(spoiled, real, heads)
        assert all(torch.equal(f, e) for f, e in zip(again, found, strict=True))
        assert torch.equal(gradient(again, spoiled), by_kernel)


def test_queries_of_length_zero_have_no_direction():
    q = torch.zeros(1, 3, 8, device=DEVICE, requires_grad=True)
    total, vectors = register_linear.query_sums(q, None, 2)
    (gradient,) = torch.autograd.grad(total.sum() + vectors.sum(), q)
    assert not total.any()
    assert not vectors.any()
    assert not gradient.any()


def test_the_registered_sums_over_queries():
    q = torch.randn(2, 37, 32, device=DEVICE, requires_grad=True)
    mask = lengths_mask([30, 37], 37).to(DEVICE)
    torch.library.opcheck(register_linear.query_sums, (q, mask, 4))
    first, again = (register_linear.query_sums(q, mask, 4) for _ in "ab")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    compiled = torch.compile(lambda q: register_linear.query_sums(q, mask, 4), fullgraph=True, backend="aot_eager")
    assert all(torch.equal(a, b) for a, b in zip(first, compiled(q), strict=True))
    gradients = [torch.autograd.grad(sums[0].sum() + sums[1].sum(), q)[0] for sums in (first, compiled(q))]
    torch.testing.assert_close(*gradients)


def test_the_way_back_under_vmap_and_compiled_autograd():
    """Where a kernel cannot go, plain operations do."""
    q = torch.randn(1, 20, 32, device=DEVICE, requires_grad=True)
    total, vectors = register_linear.query_sums(q, None, 4)
    weights = torch.randn(3, *total.shape, device=DEVICE)

    def pulled(weight):
        return torch.autograd.grad((total, vectors), q, (weight, torch.ones_like(vectors)), retain_graph=True)[0]

    expected = torch.stack([pulled(weight) for weight in weights])
    torch.testing.assert_close(torch.func.vmap(pulled)(weights), expected)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        (total * weights[0]).sum().add(vectors.sum()).backward()
    torch.testing.assert_close(q.grad, expected[0])


def test_products_with_the_kernel_are_the_layer(monkeypatch):
    """What a GPU takes by default: the projection by a product, its sums by the kernel, scores by products."""
    monkeypatch.setattr(projected, "_products_pay", lambda x: True)
    monkeypatch.setattr(projected, "choose_implementation", lambda impl, *_: "triton" if impl == "auto" else impl)
    inputs = layer(4, 90, 48, torch.float32)
    mask = lengths_mask([71], 90)
    for options in ({}, {"key_mask": mask}):
        found = pooled_and_gradients(inputs, 3, "auto", DEVICE, **options)
        expected = pooled_and_gradients([x.double() for x in inputs], 3, "reference", "cpu", **options)
        for name, f, e in zip(NAMES, found, expected, strict=False):
            torch.testing.assert_close(f.double(), e, rtol=1e-4, atol=1e-4, msg=name)
