"""What counts as a mask: every −∞ that softmax would take for one, in every type; NaN never does."""

import math

import pytest
import torch

import infsa

from .helpers import ACTIVATIONS, IMPLS, minus_infinity, random_mask, tokens

impls = pytest.mark.parametrize("impl", IMPLS)
LOW = [-100.0, -1e3, -1e4, -5e4, -1e9, -1e30, -math.inf]
LOWEST = [torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@impls
def test_every_minus_infinity_removes_the_edge(impl, activation, dtype):
    q, k, v = tokens(0)
    allowed = random_mask((7, 7), 1)
    options = {"activation": activation, "impl": impl}
    want = infsa.pure_attention(q, k, v, attn_mask=allowed, **options)
    for low in LOW + LOWEST:
        mask = torch.where(allowed, 0.0, torch.tensor(low, dtype=torch.float64)).to(dtype)
        assert torch.equal(infsa.pure_attention(q, k, v, attn_mask=mask, **options), want)


@pytest.mark.parametrize("low", LOW)
@impls
def test_such_a_triangle_is_recognised_as_causal(impl, low):
    q, k, v = tokens(1)
    mask = torch.full((7, 7), low, dtype=torch.bfloat16).triu(1)
    found = infsa.pure_attention(q, k, v, attn_mask=mask.masked_fill(mask.isnan(), 0), is_causal="auto", impl=impl)
    torch.testing.assert_close(found, infsa.pure_attention(q, k, v, is_causal=True, impl=impl))


@pytest.mark.parametrize("norm", ["frobenius", "row"])
@impls
def test_nan_in_a_mask_stays_nan(impl, norm):
    q, k, v = tokens(2)
    bias = minus_infinity(random_mask((7, 7), 3))
    bias[4, 2] = math.nan
    out = infsa.pure_attention(q, k, v, attn_mask=bias, norm=norm, impl=impl)
    assert out[:, :, 4].isnan().all()
    assert out.isnan().all() == (norm == "frobenius")  # whoever shares the norm shares what became of it


@pytest.mark.parametrize("attend", [infsa.pure_attention, infsa.linear_attention])
@pytest.mark.parametrize("place", ["q", "k", "v"])
@impls
def test_nan_in_a_token_is_seen_by_whoever_sees_the_token(impl, place, attend):
    inputs = dict(zip("qkv", tokens(4), strict=True))
    inputs[place][:, :, 3, 1] = math.nan
    out = attend(**inputs, impl=impl)
    assert out.isnan().any(-1).all() if place == "v" else out.isnan().all()
    if attend is infsa.pure_attention and place != "v":  # 0 times NaN is NaN, for torch's attention too
        causal = attend(**inputs, impl=impl, is_causal=True)
        assert causal[:, :, :3].isfinite().all()
        assert causal[:, :, 3:].isnan().any(-1).all()


def test_gradients_of_a_diverged_head_are_not_finite_and_of_the_others_are():
    q, k, v = (x.requires_grad_() for x in tokens(5))
    bias = torch.zeros(3, 7, 7, dtype=torch.float64)
    bias[1, 2, 2] = math.nan
    for impl in IMPLS:
        grads = torch.autograd.grad(infsa.pure_attention(q, k, v, attn_mask=bias, impl=impl).sum(), (q, k, v))
        assert all(g[:, 1].isnan().any() for g in grads)
        assert all(g[:, [0, 2]].isfinite().all() for g in grads)
