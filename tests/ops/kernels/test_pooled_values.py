"""From tokens to pooled values in few launches: as accurate as the equations, and only where it is right."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import infsa
from infsa.ops import projected
from infsa.ops.triton import pooled_values as kernels

from ..helpers import lengths_mask, random_mask
from .helpers import DEVICE, rms

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(projected, "_products_pay", lambda x: x.dtype == torch.bfloat16)
    monkeypatch.setattr(projected, "choose_implementation", lambda impl, *_: "triton" if impl == "auto" else impl)


def problem(seed, batch, n, dim, heads, *, rows=None, values=None, tied=True, bias=True):
    """x and the projections of queries, keys (None: those of the queries) and values, in bfloat16."""
    g = torch.Generator().manual_seed(seed)

    def projection(rows=rows or dim):
        weight, offset = torch.randn(rows, dim, generator=g) / dim**0.5, 0.3 * torch.randn(rows, generator=g)
        return weight.to(DEVICE, torch.bfloat16), offset.to(DEVICE, torch.bfloat16) if bias else None

    x = torch.randn(batch, n, dim, generator=g).to(DEVICE, torch.bfloat16)
    return x, heads, projection(), None if tied else projection(), projection(values or rows or dim)


def wide(x, heads, *projections):
    """The same in float64."""
    pairs = [p if p is None else tuple(None if y is None else y.double() for y in p) for p in projections]
    return x.double(), heads, *pairs


def typed(x, heads, query, key, value, *, key_mask=None, activation="relu"):
    """The equations in bfloat16, without care for accuracy."""
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
    q, k, v = (
        nn.functional.linear(x, *p).unflatten(-1, (heads, -1)).transpose(1, 2) for p in (query, key or query, value)
    )
    e = q.norm(dim=-1) * real[:, None]
    central = (e.unsqueeze(-1) * q).sum(2, keepdim=True) / (e.sum(2)[..., None, None] + 1e-6)
    scores = {"relu": torch.relu, "abs": torch.abs}[activation](central @ k.mT) * real[:, None, None]
    return scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v


CASES = {
    "tied": ((1, 150, 48, 3), {}, {}),
    "untied": ((2, 70, 40, 5), {"tied": False}, {}),
    "no_bias": ((1, 17, 64, 4), {"bias": False}, {"activation": "abs"}),
    "padded": ((2, 70, 48, 3), {}, {"key_mask": lengths_mask([50, 70], 70)}),
    "masked": ((1, 130, 34, 2), {"tied": False}, {"key_mask": random_mask((1, 130), 2), "activation": "abs"}),
    "many_heads": ((1, 100, 96, 96), {"rows": 192}, {}),
    "wide_heads": ((2, 70, 200, 2), {}, {}),  # more channels than one step of a kernel takes
    "other_values": ((1, 40, 260, 2), {"tied": False, "rows": 96, "values": 40}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_error_is_at_most_twice_that_of_the_equations(case, monkeypatch):
    monkeypatch.setattr(kernels, "SPANS_AT_ONCE", 2)  # a few spans are several steps then
    sizes, projections, options = CASES[case]
    options = {name: y.to(DEVICE) if isinstance(y, torch.Tensor) else y for name, y in options.items()}
    found, plain = [], []
    for seed in range(4):
        x, heads, query, key, value = problem(seed, *sizes, **projections)
        mask = options.get("key_mask")
        x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)
        exact, _ = projected.projected_values(*wide(x, heads, query, key, value), impl="reference", **options)
        arguments = (x, heads, query, key or query, value, mask, options.get("activation", "relu"), 1e-6)
        ours, again = kernels.pooled_values(*arguments), kernels.pooled_values(*arguments)
        assert torch.equal(ours, again)
        found.append(rms(ours - exact) ** 2)
        plain.append(rms(typed(x, heads, query, key, value, **options) - exact) ** 2)
    assert sum(found) <= 4 * sum(plain)


def test_a_layer_takes_them_and_padding_leaves_no_trace(as_on_a_gpu, monkeypatch):
    calls = []
    launch = kernels.pooled_values
    monkeypatch.setattr(kernels, "pooled_values", lambda *arguments: calls.append(1) or launch(*arguments))
    monkeypatch.setattr(infsa.nn.LinearInfSA, "_pools_tokens", lambda *_: True)
    torch.manual_seed(0)
    layer = infsa.nn.LinearInfSA(48, 3, tied=False, extra_proj=True).to(DEVICE, torch.bfloat16)
    x, mask = torch.randn(2, 70, 48).to(DEVICE, torch.bfloat16), lengths_mask([50, 70], 70).to(DEVICE)
    x[0, 50:] = float("nan")
    alone, padded = layer(x[:1, :50]), layer(x, mask)
    assert len(calls) == 2
    torch.testing.assert_close(padded[0, 0], alone[0, 0], rtol=0.02, atol=0.02)
    monkeypatch.setattr(projected, "_in_few_launches", lambda *_, **__: False)
    plain = layer(x, mask)
    assert len(calls) == 2
    assert (padded - plain).norm() <= 2**-6 * plain.norm()


def test_autocast_computes_in_its_type(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(projected, "_products_pay", lambda x: projected._compute_dtype(x) == torch.bfloat16)
    x, heads, *projections = problem(0, 1, 70, 48, 3, tied=False)
    expected, _ = projected.projected_values(x, heads, *projections)
    pairs = [tuple(y.float() for y in pair) for pair in projections]
    with torch.autocast(DEVICE, torch.bfloat16):
        found, _ = projected.projected_values(x.float(), heads, *pairs)
    assert torch.equal(found, expected)


LEFT = {
    "gelu": {"activation": "gelu"},
    "iterations": {"iterations": 2},
    "queries": {"queries": 2},
    "chunks": {"causal": "chunk", "chunk_size": 8},
    "reference": {"impl": "reference"},
}


@pytest.mark.parametrize("case", [*LEFT, "few", "nobody", "float32", "gradients", "counting", "fake"])
def test_everything_else_is_left_to_plain_operations(case, as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(kernels, "pooled_values", lambda *_: pytest.fail("not for these kernels"))
    batch, n = {"nobody": (0, 20), "few": (1, 16)}.get(case, (1, 20))
    x, *projections = problem(0, batch, n, 32, 4)
    if case == "float32":
        heads, *pairs = projections
        pairs = [None if pair is None else tuple(y.float() for y in pair) for pair in pairs]
        projected.projected_values(x.float(), heads, *pairs)
    elif case == "gradients":
        with torch.enable_grad():
            projected.projected_values(x, *projections)
    elif case == "counting":
        with FlopCounterMode(display=False):
            projected.projected_values(x, *projections)
    elif case == "fake":
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            projected.projected_values(mode.from_tensor(x), *projections)
    else:
        projected.projected_values(x, *projections, **LEFT.get(case, {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"eps": -1.0}, "eps must be finite"), ({"activation": "tanh"}, "activation must be one of")],
)
def test_bad_options_are_refused_in_one_line(change, message, as_on_a_gpu):
    with pytest.raises(ValueError, match=message):
        projected.projected_values(*problem(0, 1, 20, 32, 4), **change)
    x, _, query, key, value = problem(0, 1, 20, 32, 4)
    with pytest.raises(ValueError, match=r"^x must be \(B, N, D\)"):
        projected.projected_values(x, 5, query, key, value)
    with pytest.raises(ValueError, match=r"^num_heads must be an integer >= 1, got 0$"):
        projected.projected_values(x, 0, query, key, value)
    with pytest.raises(RuntimeError):  # as PyTorch refuses it; a kernel would read past its end
        projected.projected_values(x, 4, query, key, (value[0], value[1][:7]))
