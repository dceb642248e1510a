"""Pool-first Linear-InfSA from tokens and weights: what projecting every token gives, as accurate as the equations."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import infsa

from .helpers import IMPLS, generator, lengths_mask

CASES = {
    "tied": {},
    "padded": {"key_mask": lengths_mask([170], 200)},
    "gelu": {"activation": "gelu"},
    "abs": {"activation": "abs"},
    "queries": {"queries": 3},
    "iterations": {"iterations": 2},
    "chunks": {"causal": "chunk", "chunk_size": 64},
}


def rms(x):
    return x.double().square().mean().sqrt().item()


def problem(dtype=torch.bfloat16, seed=0):
    """x, weight and bias of queries, keys and values."""
    g = generator(seed)
    x, *projections = (torch.randn(shape, generator=g) for shape in ((1, 200, 64), *((64, 64), (64,)) * 3))
    scaled = (y / 8 if y.dim() == 2 else 0.3 * y for y in projections)
    return [y.to(dtype).requires_grad_() for y in (x, *scaled)]


def results(function, inputs, **options):
    """The values, and the gradients of a fixed combination of them."""
    values = function(*inputs, **options)
    weights = torch.randn(values.shape, generator=generator(3)).to(values)
    return [y.detach().double() for y in (values, *torch.autograd.grad(values, inputs, weights, allow_unused=True))]


def pooled(impl):
    def run(x, wq, bq, wk, bk, wv, bv, **options):
        values, groups = infsa.ops.projected_values(x, 4, (wq, bq), (wk, bk), (wv, bv), gamma=0.7, impl=impl, **options)
        return infsa.ops.spread(values, groups)

    return run


def projected(x, wq, bq, wk, bk, wv, bv, **options):
    """Every token projected, then the operator on heads."""
    pairs = ((wq, bq), (wk, bk), (wv, bv))
    q, k, v = (torch.nn.functional.linear(x, *p).unflatten(-1, (4, -1)).transpose(1, 2) for p in pairs)
    return infsa.linear_attention(q, k, v, impl="reference", **options)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_projecting_every_token(case, impl):
    inputs = problem(torch.float64)
    found, expected = (results(function, inputs, **CASES[case]) for function in (pooled(impl), projected))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", ["tied", "padded", "gelu", "abs"])
def test_error_is_at_most_twice_that_of_projecting_every_token(case, impl):
    """In bfloat16; over several inputs, as scores near zero may change sides."""
    found, plain = [], []
    for seed in range(4):
        inputs = problem(seed=seed)
        exact = results(projected, [x.detach().double().requires_grad_() for x in inputs], **CASES[case])
        ours, theirs = (results(f, inputs, **CASES[case]) for f in (pooled(impl), projected))
        found.append([rms(f - e) for f, e in zip(ours, exact, strict=True)])
        plain.append([rms(p - e) for p, e in zip(theirs, exact, strict=True)])
    found, plain = (torch.tensor(errors).square().mean(0).sqrt() for errors in (found, plain))
    assert (found <= torch.maximum(2 * plain, torch.tensor(1e-7))).all(), (found, plain)


@pytest.mark.parametrize("impl", IMPLS)
def test_padding_leaves_no_trace(impl):
    x, *projections = problem(torch.float32)
    alone = pooled(impl)(x[:, :50], *projections)
    spoiled = x.detach().clone()
    spoiled[:, 50:] = float("nan")
    padded = pooled(impl)(spoiled, *projections, key_mask=lengths_mask([50], 200))
    torch.testing.assert_close(padded, alone)


def test_one_graph_for_every_length():
    _, *projections = problem(torch.float32)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = pooled("auto")
    compiled = torch.compile(lambda x: run(x, *projections), fullgraph=True, dynamic=True, backend=counter)
    for n in (67, 71, 79):
        x = torch.randn(1, n, 64, generator=generator(n))
        torch.testing.assert_close(compiled(x), run(x, *projections))
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_wrong_inputs_are_refused_in_one_line():
    weight = torch.zeros(8, 8)
    with pytest.raises(ValueError, match=r"^x needs at least one token, got shape \(1, 0, 8\)$"):
        infsa.ops.projected_values(torch.zeros(1, 0, 8), 2, (weight, None), None, (weight, None))
    with pytest.raises(RuntimeError):  # as PyTorch refuses it
        infsa.ops.projected_values(torch.zeros(1, 5, 8), 2, (weight, torch.zeros(7)), None, (weight, None))
    with pytest.raises(TypeError, match="hops"):
        infsa.ops.projected_values(torch.zeros(1, 5, 8), 2, (weight, None), None, (weight, None), hops=2)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("impl", ["auto", "chunked", "reference"])
@torch.no_grad()
def test_queries_of_another_product_make_the_central_query_alone(impl, tied):
    """Keys are still those of the weights: as untied keys of the same weight are."""
    g = generator(5)
    x, (wq, wk, wv, other) = torch.randn(2, 19, 24, generator=g), torch.randn(4, 24, 24, generator=g) / 5
    key, options = None if tied else (wk, None), {"gamma": 0.7, "impl": impl}

    def run(query, key, **further):
        return infsa.ops.projected_values(x, 4, (query, None), key, (wv, None), **options, **further)[0]

    torch.testing.assert_close(run(wq, key, q=x @ wq.mT), run(wq, key))
    torch.testing.assert_close(run(wq, key, q=x @ other.mT), run(other, key or (wq, None)))


def test_wrong_queries_of_another_product_are_refused():
    x, weight = torch.randn(2, 5, 24), torch.randn(24, 24)
    layer = infsa.nn.LinearInfSA(24, 4)

    def run(q):
        infsa.ops.projected_values(x, 4, (weight, None), None, (weight, None), q=q)

    with pytest.raises(ValueError, match="without gradients only"):
        run(x)
    with torch.no_grad():
        for wrong in (x[:1], x[..., :12], x.double()):
            with pytest.raises(ValueError, match=r"^q must be \(B, N, H d\)"):
                run(wrong)
        torch.testing.assert_close(layer.context(x, q=layer.q(x)), layer.context(x))
        layer.q.register_forward_hook(lambda *_: None)
        with pytest.raises(ValueError, match="adapters or hooks"):
            layer.context(x, q=x)
