"""Pool-first Linear-InfSA by matrix products in bfloat16, as a GPU computes it: as accurate as the equations."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import infsa
from infsa.ops.linear import projected

from .helpers import generator, lengths_mask

CASES = {
    "tied": {},
    "padded": {"key_mask": lengths_mask([170], 200)},
    "gelu": {"activation": "gelu"},
    "abs": {"activation": "abs"},
}


def rms(x):
    return x.double().square().mean().sqrt().item()


def results(inputs, impl, **options):
    inputs = [x.detach().requires_grad_() for x in inputs]
    x, weight, bias = inputs
    pooled = infsa.ops.projected_pool(x, 4, (weight, bias), impl=impl, **options)
    g = generator(3)
    loss = sum((torch.randn(y.shape, generator=g).to(y) * y).sum() for y in (pooled.mean, pooled.mass))
    return [y.detach().double() for y in (pooled.mean, pooled.mass, *torch.autograd.grad(loss, inputs))]


@pytest.fixture
def by_products(monkeypatch):
    monkeypatch.setattr(projected, "_products_pay", lambda x: True)


def problem(dtype=torch.bfloat16, seed=0):
    g = generator(seed)
    shapes = ((1, 200, 64), (64, 64), (64,))
    x, weight, bias = (torch.randn(shape, generator=g) for shape in shapes)
    return [y.to(dtype) for y in (x, weight / 8, 0.3 * bias)]


@pytest.mark.parametrize("case", CASES)
def test_error_is_at_most_twice_that_of_the_equations(case, by_products):
    """The yardstick is the equations typed in bfloat16; over several inputs, as scores near zero may change sides."""
    found, plain = [], []
    for seed in range(6):
        inputs = problem(seed=seed)
        exact = results([x.double() for x in inputs], "reference", **CASES[case])
        ours, theirs = results(inputs, "auto", **CASES[case]), typed(inputs, **CASES[case])
        found.append([rms(f - e) for f, e in zip(ours, exact, strict=True)])
        plain.append([rms(p - e) for p, e in zip(theirs, exact, strict=True)])
    found, plain = (torch.tensor(errors).square().mean(0).sqrt() for errors in (found, plain))
    assert (found <= torch.maximum(2 * plain, torch.tensor(1e-7))).all(), (found, plain)


def typed(inputs, key_mask=None, activation="relu"):
    """The equations in the type of the inputs, without care for accuracy."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    x, weight, bias = inputs
    q = torch.nn.functional.linear(x, weight, bias).unflatten(-1, (4, -1)).transpose(1, 2)
    real = torch.ones(1, x.shape[1], dtype=torch.bool) if key_mask is None else key_mask
    e = q.norm(dim=-1) * real[:, None]
    central = (e.unsqueeze(-1) * q).sum(2, keepdim=True) / (e.sum(2)[..., None, None] + 1e-6)
    phi = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "abs": torch.abs}[activation]
    scores = phi(central @ q.mT) * real[:, None, None]  # (B, H, 1, N)
    a = scores / (scores.abs().sum(-1, keepdim=True) + 1e-6)
    pooled = (a @ x.unsqueeze(1), a.sum(-1))
    g = generator(3)
    loss = sum((torch.randn(y.shape, generator=g).to(y) * y).sum() for y in pooled)
    return [y.detach().double() for y in (*pooled, *torch.autograd.grad(loss, inputs))]


def test_in_float64_it_is_the_reference(by_products):
    inputs = [x.double() for x in problem(torch.float32)]
    expected, found = results(inputs, "reference"), results(inputs, "auto")
    for f, e in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-6)  # its sums are float32
    compiled = torch.compile(lambda x, w, b: infsa.ops.projected_pool(x, 4, (w, b)).mean, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs).double(), found[0])


def test_padding_leaves_no_trace(by_products):
    x, weight, bias = problem()
    alone = infsa.ops.projected_pool(x[:, :50], 4, (weight, bias)).mean
    x = x.clone()
    x[:, 50:] = float("nan")
    padded = infsa.ops.projected_pool(x, 4, (weight, bias), key_mask=lengths_mask([50], 200)).mean
    torch.testing.assert_close(padded, alone, rtol=1e-2, atol=1e-2)


def test_one_graph_for_every_length(by_products):
    _, weight, bias = problem()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda x: infsa.ops.projected_pool(x, 4, (weight, bias)).mean, fullgraph=True, dynamic=True, backend=counter
    )
    for n in (67, 71, 79):
        x = torch.randn(1, n, 64, generator=generator(n)).bfloat16()
        expected = infsa.ops.projected_pool(x, 4, (weight, bias)).mean
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=2**-7 * expected.abs().max().item())  # bfloat16
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_only_bfloat16_on_a_gpu_goes_this_way():
    x = torch.randn(1, 3, 4)
    assert not projected._products_pay(x.bfloat16())
    on_gpu = type("OnGpu", (), {"is_cuda": True, "device": torch.device("cuda"), "dtype": torch.bfloat16})
    assert projected._products_pay(on_gpu)
    on_gpu.dtype = torch.float16
    assert not projected._products_pay(on_gpu)


def test_no_tokens_are_refused():
    with pytest.raises(ValueError, match=r"^x needs at least one token, got shape \(1, 0, 8\)$"):
        infsa.ops.projected_pool(torch.zeros(1, 0, 8), 2, (torch.zeros(8, 8), None))
