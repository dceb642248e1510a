"""From tokens to pooled values in one function: values and gradients as accurate as the equations, only where right."""

import functools

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import infsa
from infsa.ops.linear import fused, plan, projected

from ..helpers import generator, lengths_mask, random_mask
from .helpers import DEVICE, DTYPES, rms

NAMES = ("values", "x", "query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias", "gamma")


def problem(seed, batch, n, dim, heads, *, rows=None, values=None, tied=True, bias=True, learned=False):
    """x, weight and bias of queries, keys (None: those of the queries) and values, and γ; types come later."""
    g = torch.Generator().manual_seed(seed)

    def projection(rows=rows or dim):
        weight, offset = torch.randn(rows, dim, generator=g) / dim**0.5, 0.3 * torch.randn(rows, generator=g)
        return weight, offset if bias else None

    x = torch.randn(batch, n, dim, generator=g) + 0.5 * torch.randn(dim, generator=g)  # tokens have a common part
    pairs = (*projection(), *((None, None) if tied else projection()), *projection(values or rows or dim))
    return [x, *pairs, torch.linspace(0.4, 0.8, heads) if learned else None]


def typed(inputs, dtype, device=DEVICE):
    """Leaves of one type; γ stays in float32 or better."""
    *tensors, gamma = (None if y is None else y.to(device) for y in inputs)
    tensors = [None if y is None else y.bfloat16().to(dtype) for y in tensors]  # numbers that every type holds
    gamma = None if gamma is None else gamma.to(torch.promote_types(dtype, torch.float32))
    return [None if y is None else y.detach().requires_grad_() for y in (*tensors, gamma)]


def call(function, inputs, heads, key_mask=None, activation="relu"):
    x, wq, bq, wk, bk, wv, bv, gamma = inputs
    mask = None if key_mask is None else key_mask.to(x.device)
    x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)
    key = None if wk is None else (wk, bk)
    return function(x, heads, (wq, bq), key, (wv, bv), 0.7 if gamma is None else gamma, mask, activation, 1e-6)


def results(function, inputs, heads, **options):
    """The values, and the gradients of ⟨w, values⟩ for a fixed w, None where there is no input."""
    found = call(function, inputs, heads, **options)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(found)
    asked = [y for y in inputs if y is not None]
    pulled = iter(torch.autograd.grad(found, asked, weights))
    return [found.detach(), *(None if y is None else next(pulled) for y in inputs)]


def equations(x, heads, query, key, value, gamma, mask, activation, eps):
    """The layer as it is written, in the type of x, without care for accuracy."""
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    q, k, v = (
        nn.functional.linear(x, *p).unflatten(-1, (heads, -1)).transpose(1, 2) for p in (query, key or query, value)
    )
    e = q.norm(dim=-1) * real[:, None]
    central = (e.unsqueeze(-1) * q).sum(2, keepdim=True) / (e.sum(2)[..., None, None] + eps)
    phi = {"relu": torch.relu, "abs": torch.abs, "gelu": nn.functional.gelu}[activation]
    scores = phi(central @ k.mT) * real[:, None, None]
    gamma = gamma.to(x.dtype).view(-1, 1, 1) if isinstance(gamma, torch.Tensor) else gamma
    return gamma * (scores / (scores.abs().sum(-1, keepdim=True) + eps)) @ v


CASES = {  # sizes, projections, options; the interpreter is slow, so all are small
    "tied": ((1, 70, 48, 3), {}, {}),
    "untied": ((2, 20, 40, 5), {"tied": False, "learned": True}, {}),
    "no_bias": ((1, 17, 64, 4), {"bias": False}, {"activation": "abs"}),
    "padded": ((2, 40, 48, 3), {"learned": True}, {"key_mask": lengths_mask([30, 40], 40)}),
    "masked": ((1, 66, 34, 2), {"tied": False}, {"key_mask": random_mask((1, 66), 2), "activation": "abs"}),
    "many_images": ((17, 17, 16, 1), {}, {}),  # more images than one step takes
    "wide_heads": ((1, 40, 200, 2), {}, {}),  # more channels than one step takes
    "other_values": ((1, 20, 130, 2), {"tied": False, "rows": 96, "values": 40}, {}),
    "gelu": ((2, 40, 48, 3), {"tied": False}, {"activation": "gelu", "key_mask": random_mask((2, 40), 1)}),
}
SEEDS = {"many_images": 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_error_is_at_most_twice_that_of_the_equations(case, dtype, monkeypatch):
    """Values and every gradient in half precision; over several inputs, as scores near zero may change sides."""
    monkeypatch.setattr(plan, "SPANS_AT_ONCE", 2)  # a few spans are several steps then
    monkeypatch.setattr(plan, "HEADS", 2)  # and a few heads several blocks
    monkeypatch.setattr(plan, "plan_of", plan.Plan)
    sizes, projections, options = CASES[case]
    found, plain = torch.zeros(9), torch.zeros(9)
    for seed in range(SEEDS.get(case, 2)):
        inputs = problem(seed, *sizes, **projections)
        exact = results(equations, typed(inputs, torch.float64), sizes[3], **options)
        ours = results(fused.fused_values, typed(inputs, dtype), sizes[3], **options)
        theirs = results(equations, typed(inputs, dtype), sizes[3], **options)
        for i, (o, t, e) in enumerate(zip(ours, theirs, exact, strict=True)):
            if e is not None:
                assert o.dtype == t.dtype
                found[i] += rms(o - e) ** 2
                plain[i] += rms(t - e) ** 2
    assert (found <= 4 * plain).all(), dict(zip(NAMES, (found / plain).sqrt().tolist(), strict=True))


@pytest.mark.parametrize("case", ["padded", "gelu", "other_values"])
def test_float32(case):
    sizes, projections, options = CASES[case]
    inputs = problem(5, *sizes, **projections)
    exact = results(equations, typed(inputs, torch.float64), sizes[3], **options)
    ours, again = (results(fused.fused_values, typed(inputs, torch.float32), sizes[3], **options) for _ in "ab")
    for name, o, a, e in zip(NAMES, ours, again, exact, strict=True):
        if e is not None:
            assert torch.equal(o, a), name
            assert rms(o - e) <= 1e-5 * rms(e), name


WANTED = {"x": [0], "biases": [2, 4, 6], "query": [1, 2], "keys": [3], "values": [5, 6], "decay": [7]}


@functools.cache
def all_gradients():
    sizes, projections, options = CASES["untied"]
    inputs = problem(0, *sizes, **projections)
    return results(fused.fused_values, typed(inputs, torch.float32), sizes[3], **options)


@pytest.mark.parametrize("wanted", WANTED)
def test_only_what_is_asked_for_is_formed(wanted, monkeypatch):
    """The gradients are those of a run that asks for all, and no others exist."""
    sizes, projections, options = CASES["untied"]
    inputs = problem(0, *sizes, **projections)
    everything = all_gradients()
    leaves = [y.requires_grad_(i in WANTED[wanted]) for i, y in enumerate(typed(inputs, torch.float32))]
    products = []
    count = plan.wide_product
    monkeypatch.setattr(plan, "wide_product", lambda a, b: products.append(1) or count(a, b))
    found = call(fused.fused_values, leaves, sizes[3], **options)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(found)
    found.backward(weights)
    for name, leaf, expected in zip(NAMES[1:], leaves, everything[1:], strict=True):
        assert (leaf.grad is None) == (not leaf.requires_grad), name
        assert leaf.grad is None or torch.equal(leaf.grad, expected), name
    assert len(products) == {"query": 4, "values": 1, "decay": 1}.get(wanted, 3)  # those over tokens


def test_twice_differentiated_batched_and_checkpointed():
    """Where a kernel cannot go, plain operations do."""
    sizes, projections, options = ((1, 20, 32, 2), {"learned": True}, {"key_mask": lengths_mask([18], 20)})
    inputs = problem(0, *sizes, **projections)
    leaves, plain = typed(inputs, torch.float32), typed(inputs, torch.float64)

    def second(function, leaves):
        found = call(function, leaves, sizes[3], **options)
        (dx,) = torch.autograd.grad(found.square().sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(dx.square().sum(), [y for y in leaves if y is not None])

    for f, e in zip(second(fused.fused_values, leaves), second(equations, plain), strict=True):
        assert rms(f - e) <= 1e-4 * rms(e)

    found = call(fused.fused_values, leaves, sizes[3], **options)
    pulls = torch.randn(3, *found.shape, device=DEVICE)
    one_by_one = [torch.autograd.grad(found, leaves[0], pull, retain_graph=True)[0] for pull in pulls]
    (batched,) = torch.autograd.grad(found, leaves[0], pulls, retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(batched, torch.stack(one_by_one), rtol=1e-4, atol=1e-5)

    again = checkpoint(lambda *y: call(fused.fused_values, y, sizes[3], **options), *leaves, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, leaves[0], pulls[0])[0], one_by_one[0])


def test_a_weight_used_twice_has_the_sum_of_both_gradients():
    x, wq, bq, *_ = typed(problem(0, 1, 20, 32, 2), torch.float32)
    for create_graph in (False, True):
        found = fused.fused_values(x, 2, (wq, bq), (wq, bq), (wq, bq), 0.7, None, "relu", 1e-6)
        exact = equations(x.double(), 2, *((wq.double(), bq.double()),) * 3, 0.7, None, "relu", 1e-6)
        ours, theirs = (
            torch.autograd.grad(y.square().sum(), (wq, bq), create_graph=create_graph) for y in (found, exact)
        )
        for o, t in zip(ours, theirs, strict=True):
            assert rms(o - t) <= 1e-4 * rms(t)


def layer_and_tokens(dtype=torch.bfloat16, **options):
    torch.manual_seed(0)
    layer = infsa.nn.LinearInfSA(48, 3, impl="fused", **options).to(DEVICE, dtype)
    return layer, torch.randn(2, 40, 48).to(DEVICE, dtype), lengths_mask([30, 40], 40).to(DEVICE)


def test_padding_leaves_no_trace_in_a_layer():
    layer, x, mask = layer_and_tokens(tied=False, extra_proj=True, learn_gamma=True)
    x[0, 30:] = float("nan")
    x.requires_grad_()
    alone, padded = layer(x[:1, :30]), layer(x, mask)
    torch.testing.assert_close(padded[0, 0], alone[0, 0], rtol=0.02, atol=0.02)
    padded[:, 0].float().square().sum().backward()
    assert not x.grad[0, 30:].any()
    assert all(y.grad.isfinite().all() for y in (x, *layer.parameters()))


@pytest.mark.parametrize("gradients", ["off", "merely enabled", "of the tokens"])
def test_gradients_are_asked_for_not_merely_enabled(gradients, monkeypatch):
    saved = []
    monkeypatch.setattr(fused._Fused, "forward", _listening(fused._Fused.forward, saved))
    layer, x, mask = layer_and_tokens()
    layer.requires_grad_(False)
    x.requires_grad_(gradients == "of the tokens")
    with torch.set_grad_enabled(gradients != "off"):
        found = layer(x, mask)
    assert found.requires_grad == (gradients == "of the tokens") == bool(saved)


def _listening(function, calls):
    def listen(*arguments):
        calls.append(1)
        return function(*arguments)

    return staticmethod(listen)


def test_autocast_computes_in_its_type():
    layer, x, mask = layer_and_tokens(learn_gamma=True)
    wide = infsa.nn.LinearInfSA(48, 3, learn_gamma=True, impl="fused").to(DEVICE)
    wide.load_state_dict(layer.state_dict())
    tokens = x.float().requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        found = wide(tokens, mask)
    assert torch.equal(found, layer(x, mask))
    found.float().square().sum().backward()
    assert all(y.grad.dtype == torch.float32 for y in (tokens, *wide.parameters()))


def arguments(dtype=torch.float32, n=20):
    x, wq, bq, _, _, wv, bv, _ = typed(problem(0, 1, n, 32, 4), dtype)
    return {"x": x, "num_heads": 4, "query": (wq, bq), "key": None, "value": (wv, bv)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_few_tokens_are_computed_in_float32(dtype):
    """The two terms of a score's gradient nearly cancel: rounding each would leave noise."""
    exact = results(equations, typed(problem(0, 1, 3, 32, 2), torch.float64), 2)
    ours = results(fused.fused_values, typed(problem(0, 1, 3, 32, 2), dtype), 2)
    for name, o, e in zip(NAMES, ours, exact, strict=True):
        if e is not None:
            assert rms(o - e) <= torch.finfo(dtype).eps * rms(e), name


@pytest.mark.parametrize("size", [1e3, 1e-2])
def test_large_and_small_tokens_in_float16(size):
    """Scores in units of their central query: neither end of float16's range is reached on the way."""
    inputs = problem(2, 1, 40, 32, 2, bias=False)
    inputs[0] = size * torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(2))
    exact = results(equations, typed(inputs, torch.float64), 2)
    for name, o, e in zip(NAMES, results(fused.fused_values, typed(inputs, torch.float16), 2), exact, strict=True):
        if e is not None:
            assert rms(o.double() - e) <= 2e-3 * rms(e), name


@pytest.mark.parametrize("activation", ["relu", "gelu", "abs"])
def test_not_a_number_stays_one(activation):
    """In values and gradients, of the image that holds it and of no other."""
    inputs = problem(0, 2, 20, 32, 2)
    inputs[0][0, 3, 5] = float("nan")
    values, dx = results(fused.fused_values, typed(inputs, torch.float32), 2, activation=activation)[:2]
    assert values[0].isnan().all()
    assert dx[0].isnan().all()
    assert values[1].isfinite().all()
    assert dx[1].isfinite().all()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_registered_operators(activation):
    """Two runs are equal to the bit, compiled code sees one operator for every length, and it can be counted."""
    torch._dynamo.reset()
    layer = infsa.nn.LinearInfSA(32, 2, activation=activation, learn_gamma=True, impl="fused").to(DEVICE)
    x = torch.randn(2, 20, 32, device=DEVICE, requires_grad=True)
    tensors = (x, layer.q.weight, layer.q.bias, None, None, layer.v.weight, layer.v.bias, layer.decay(), None)
    torch.library.opcheck(torch.ops.infsa_triton.linear_fused, (*tensors, 2, activation, 1e-6, 1.0))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    frames = []
    for n in (20, 33):
        x = torch.randn(2, n, 32, device=DEVICE, requires_grad=True)
        found = [
            torch.autograd.grad(run(x)[:, 0].square().sum(), [x, *layer.parameters()])
            for run in (layer, layer, compiled)
        ]
        for eager, again, other in zip(*found, strict=True):
            assert torch.equal(eager, again)
            assert torch.equal(eager, other)
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]
    torch._dynamo.reset()
    with FlopCounterMode(display=False) as counted:
        infsa.ops.projected_values(**arguments(), impl="fused")
    assert counted.get_total_flops() == 2 * 20 * 32 * 32 + 4 * 20 * 32 * 4


def test_bad_options_are_refused_in_one_line():
    for change, message in (
        ({"eps": -1.0}, "eps must be finite"),
        ({"activation": "tanh"}, "activation must be one of"),
        ({"num_heads": 5}, r"^x must be \(B, N, D\)"),
        ({"num_heads": 0}, r"^num_heads must be an integer >= 1, got 0$"),
        (
            {"value": (torch.zeros(32, 32, device=DEVICE), torch.zeros(7, device=DEVICE))},
            r"^impl='fused' takes projections [^\n]+\(7,\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            projected.projected_values(**arguments() | change, impl="fused")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dead_head_gives_no_gradient(dtype):
    """Every score is negative: the values are 0 whatever the weights are, nothing is pulled and nothing overflows."""
    g = generator(0)
    query, value = ((torch.randn(32, 32, generator=g) / 6).to(DEVICE, dtype) for _ in range(2))
    tokens = torch.ones(1, 1, 32) + 0.1 * torch.randn(2, 20, 32, generator=g)  # all alike
    inputs = [y.requires_grad_() for y in (tokens.to(DEVICE, dtype), query, -query.detach(), value)]
    x, wq, wk, wv = inputs
    found = fused.fused_values(x, 2, (wq, None), (wk, None), (wv, None), 0.7, None, "relu", 1e-6)
    assert not found.any()
    assert not any(y.any() for y in torch.autograd.grad(found.float().sum(), inputs))
