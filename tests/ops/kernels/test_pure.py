"""Values and gradients of Pure InfSA's kernels against float64, over types, widths, lengths, masks and tiles."""

import pytest
import torch

import infsa
from infsa.ops.pure import triton_forward
from infsa.ops.triton.configs import Config
from infsa.ops.triton.layout import readable

from ..helpers import lengths_mask, random_mask
from .helpers import (
    DEVICE,
    DTYPES,
    assert_accurate,
    assert_within_twice,
    attend,
    backward,
    exact,
    forward,
    plain_results,
    problem,
    pull,
    rms,
    value_and_gradients,
)

CASES = {
    "relu": {},
    "gelu": {"activation": "gelu"},
    "abs": {"activation": "abs"},
    "causal": {"is_causal": True},
    "causal_gelu": {"is_causal": True, "activation": "gelu"},
    "padded": {"key_mask": lengths_mask([29], 45)},
    "queries": {"key_mask": random_mask((1, 45), 1), "query_mask": random_mask((1, 45), 2), "activation": "abs"},
    "hops": {"hops": 2},
    "row": {"norm": "row"},
    "row_gelu_padded": {"norm": "row", "activation": "gelu", "key_mask": lengths_mask([29], 45)},
    "row_causal_padded": {"norm": "row", "is_causal": True, "key_mask": random_mask((1, 45), 1)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_is_at_most_twice_that_of_plain_torch(dtype, case):
    assert_accurate(problem(0, 45, heads=1, dtype=dtype), **CASES[case])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_of_the_decay_gradient_over_many_inputs(dtype):
    ours, theirs = [], []
    for seed in range(10):
        inputs = problem(seed, 29, dtype=dtype)
        expected = exact(inputs)[-1]
        ours.append(value_and_gradients(attend(), inputs)[-1].cpu() - expected)
        theirs.append(plain_results(inputs)[-1] - expected)
    assert rms(torch.stack(ours)) <= 2 * rms(torch.stack(theirs))


@pytest.mark.parametrize(("width", "value_width"), [(1, 1), (3, 20), (80, 48), (128, 128)])
def test_widths(width, value_width):
    assert_accurate(problem(1, 19, 35, width=width, value_width=value_width, heads=1))


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n", [1, 2, 32, 33])
def test_lengths(n, is_causal):
    """Two tokens are drawn many times: the terms of a gradient nearly cancel, so that one draw's error is luck."""
    many = {"heads": 16, "batch": 4} if n == 2 else {"heads": 1}
    assert_accurate(problem(2, n, **many), is_causal=is_causal)


@pytest.mark.parametrize(("n_q", "n_k"), [(1, 70), (33, 64)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross_attention_with_the_row_norm(dtype, n_q, n_k):
    assert_accurate(problem(3, n_q, n_k, batch=2, dtype=dtype), key_mask=random_mask((2, n_k), 6), norm="row")


@pytest.mark.parametrize(("n_q", "n_k"), [(1, 70), (70, 1), (33, 64)])
def test_cross_attention(n_q, n_k):
    assert_accurate(problem(3, n_q, n_k, batch=2), query_mask=random_mask((2, n_q), 5))


TILES = {
    "rows_longer": Config(64, 16),
    "columns_longer": Config(16, 64),
    "lanes": Config(32, 32, lanes=True),
    "descriptors": Config(32, 32, tma=True),
    "specialized": Config(16, 32, tma=True, specialize=True, lanes=True),
}


@pytest.mark.parametrize(
    ("name", "is_causal"), [*((name, False) for name in TILES), *((name, True) for name in list(TILES)[:3])]
)
def test_every_way_to_run_the_kernels(name, is_causal):
    inputs, config = problem(4, 50, heads=1), TILES[name]
    *qkv, gamma = inputs
    call, options = (*qkv, gamma.view(-1, 1, 1), None), ("relu", is_causal, 1e-6)
    z, norm = forward(call, *options, config=config)
    *found, c = backward(pull(z), call, (z, norm), *options, config=config)
    found = (z, *found, c.double().sum((0, 2)) / gamma)
    yardstick = value_and_gradients(attend("reference", is_causal=is_causal), inputs)
    assert_within_twice(found, yardstick, exact(inputs, is_causal=is_causal), torch.float32)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_views_of_one_projection_are_read_where_they_are(is_causal):
    """The (B, N, 3, H, d) layout of a qkv projection, without copies, to the same bits."""
    packed = torch.randn(1, 37, 3, 2, 16, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    views = packed.permute(2, 0, 3, 1, 4).unbind()
    gamma = torch.tensor(0.7, device=DEVICE)
    assert all(readable(x) is x and not x.is_contiguous() for x in views)
    function = attend(is_causal=is_causal)
    found = function(*views, gamma)
    assert found.transpose(1, 2).is_contiguous(), "merging the heads is a view"
    assert torch.equal(found, function(*(x.contiguous() for x in views), gamma))
    by_view = value_and_gradients(lambda x: function(*x.permute(2, 0, 3, 1, 4).unbind(), gamma), [packed])
    by_copy = value_and_gradients(function, [*(x.contiguous() for x in views), gamma])
    assert torch.equal(by_view[1].permute(2, 0, 3, 1, 4), torch.stack(by_copy[1:4]))


@pytest.mark.parametrize("together", [1, 4, 9])
def test_causal_heads_that_take_turns(together, monkeypatch):
    """Six heads in groups of four: every block is computed, whoever comes first."""
    inputs = problem(12, 40, batch=2, heads=3)
    monkeypatch.setattr(triton_forward, "CACHE", together * 40 * 32 * 4)
    triton_forward.forward_plan.cache_clear()
    try:
        q, k, v, gamma = inputs
        plan = triton_forward.plan_for(q, k, v, gamma, None, "relu", True, 1e-6)
        assert plan.group == min(together, 6)
        z, norm = plan(q, k, v, gamma, None)
        *found, c = backward(pull(z), (q, k, v, gamma, None), (z, norm), "relu", True, 1e-6)
    finally:
        triton_forward.forward_plan.cache_clear()
    found = (z, *found, c.sum((0, 2)) / gamma)
    yardstick = value_and_gradients(attend("reference", is_causal=True), inputs)
    assert_within_twice(found, yardstick, exact(inputs, is_causal=True), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_channels_that_are_not_adjacent(dtype):
    q, k, v, gamma = problem(6, 20, dtype=dtype)
    apart = [x.mT.contiguous().mT.requires_grad_() for x in (q, k, v)]
    out = attend()(*apart, gamma)
    found = out, *torch.autograd.grad(out, apart, pull(out))
    for x, y in zip(found, value_and_gradients(attend(), (q, k, v, gamma)), strict=False):
        assert torch.equal(x, y)


def test_gradient_of_an_expanded_output():
    """sum() hands the backward pass a gradient whose strides are all zero."""
    inputs = [x.requires_grad_() for x in problem(7, 20)]
    attend()(*inputs).sum().backward()
    expected = [x.detach().clone().requires_grad_() for x in inputs]
    attend("reference")(*expected).sum().backward()
    for x, y in zip(inputs, expected, strict=True):
        torch.testing.assert_close(x.grad, y.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.7, torch.tensor(0.6), torch.tensor([0.6])], ids=["float", "scalar", "one"])
def test_a_shared_gamma(gamma):
    q, k, v, _ = problem(8, 20)
    gamma = gamma.to(DEVICE) if torch.is_tensor(gamma) else gamma
    found = infsa.pure_attention(q, k, v, gamma=gamma, impl="triton")
    torch.testing.assert_close(found, infsa.pure_attention(q, k, v, gamma=gamma, impl="reference"))


def test_no_batch():
    x = torch.zeros(0, 2, 5, 16, device=DEVICE, requires_grad=True)
    out = infsa.pure_attention(x, x, x, impl="triton")
    out.sum().backward()
    assert out.shape == x.grad.shape == (0, 2, 5, 16)
