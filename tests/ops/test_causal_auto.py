"""is_causal="auto": a mask that forbids every j > i selects the prefix norm, any other the global one."""

import math

import pytest
import torch

import infsa

from . import oracles
from .helpers import BATCH, IMPLS, assert_close, generator, minus_infinity, random_mask, tokens

N = 8


def lower(n=N):
    return torch.ones(n, n, dtype=torch.bool).tril()


def window(n=N, width=3):
    return lower(n) & ~lower(n).tril(-width)


def one_future_pair():
    mask = lower()
    mask[2, 5] = True
    return mask


CAUSAL = {
    "bool": lower(),
    "inf": minus_infinity(lower()),
    "inf32": minus_infinity(lower(), torch.float32),
    "inf16": minus_infinity(lower(), torch.float16),
    "bias": minus_infinity(lower()) + torch.randn(N, N, generator=generator(0), dtype=torch.float64),
    "window": window(),
    "window_inf": minus_infinity(window()),
    "strict": lower().tril(-1),
    "random": lower() & random_mask((BATCH, 1, N, N), 1),
    "nothing": torch.zeros(N, N, dtype=torch.bool),
}
NOT_CAUSAL = {
    "all": torch.ones(N, N, dtype=torch.bool),
    "zeros": torch.zeros(N, N, dtype=torch.float64),
    "upper": lower().mT.contiguous(),
    "one_future_pair": one_future_pair(),
    "one_future_pair_inf": minus_infinity(one_future_pair()),
    "finite_upper": torch.zeros(N, N, dtype=torch.float64).masked_fill(~lower(), -2.0),
    "random": random_mask((BATCH, 3, N, N), 2),
    "key_row": torch.ones(1, N, dtype=torch.bool),
}
CASES = [(name, mask, True) for name, mask in CAUSAL.items()]
CASES += [(name, mask, False) for name, mask in NOT_CAUSAL.items()]
impls = pytest.mark.parametrize("impl", [*IMPLS, "auto"])


@pytest.mark.parametrize(("name", "mask", "causal"), CASES, ids=[f"{n}-{c}" for n, _, c in CASES])
@impls
def test_auto(impl, name, mask, causal):
    q, k, v = tokens(0, N)
    for activation in ("relu", "abs"):
        out = infsa.pure_attention(q, k, v, attn_mask=mask, is_causal="auto", impl=impl, activation=activation)
        expected = oracles.pure_attention(q, k, v, attn_mask=mask, is_causal=causal, activation=activation)
        assert_close(out, expected)


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@impls
def test_auto_with_hops_and_padding(impl, hops):
    q, k, v = tokens(1, N)
    options = {"attn_mask": window(), "key_mask": random_mask((BATCH, N), 3), "hops": hops}
    out = infsa.pure_attention(q, k, v, is_causal="auto", impl=impl, **options)
    assert_close(out, oracles.pure_attention(q, k, v, is_causal=True, **options))


@pytest.mark.parametrize("mask_dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@impls
def test_the_lowest_value_of_a_mask_counts_as_forbidden(impl, mask_dtype):
    q, k, v = tokens(1, N)
    mask = torch.zeros(N, N, dtype=mask_dtype).masked_fill(~lower(), torch.finfo(mask_dtype).min)
    out = infsa.pure_attention(q, k, v, attn_mask=mask, is_causal="auto", impl=impl)
    assert_close(out, oracles.pure_attention(q, k, v, is_causal=True))


@impls
def test_auto_without_a_mask_is_full_attention(impl):
    q, k, v = tokens(2, N)
    out = infsa.pure_attention(q, k, v, is_causal="auto", impl=impl)
    assert_close(out, oracles.pure_attention(q, k, v))


@impls
def test_auto_in_cross_attention_is_full_attention(impl):
    q, k, v = tokens(3, 4, n_k=6)
    mask = torch.ones(4, 6, dtype=torch.bool).tril()
    out = infsa.pure_attention(q, k, v, attn_mask=mask, is_causal="auto", impl=impl)
    assert_close(out, oracles.pure_attention(q, k, v, attn_mask=mask))


@pytest.mark.parametrize("mask", [lower(), one_future_pair()], ids=["causal", "full"])
@impls
def test_auto_gradients(impl, mask):
    q, k, v = tokens(4, 4, width=2, batch=1, heads=2)
    q, k, v = (x.requires_grad_() for x in (q, k, v))

    def attend(*qkv):
        return infsa.pure_attention(*qkv, attn_mask=mask[:4, :4], is_causal="auto", impl=impl)

    torch.autograd.gradcheck(attend, (q, k, v))


def test_auto_reads_no_value():
    """A decision that reads the mask would synchronise the device; meta tensors have nothing to read."""
    q, k, v = (x.to("meta") for x in tokens(5, N))
    out = infsa.pure_attention(q, k, v, attn_mask=lower().to("meta"), is_causal="auto")
    assert out.shape == v.shape


@impls
def test_auto_decides_for_each_item_and_head_by_itself(impl):
    """What an item gets does not depend on its neighbours' masks."""
    q, k, v = tokens(5, N)
    full = torch.ones(N, N, dtype=torch.bool)
    for mask in (torch.stack([lower(), full])[:, None], torch.stack([full, lower(), window()])):
        out = infsa.pure_attention(q, k, v, attn_mask=mask, is_causal="auto", impl=impl, hops=3)
        expanded = mask.expand(BATCH, 3, N, N)
        for b in range(BATCH):
            for h in range(3):
                item = (slice(b, b + 1), slice(h, h + 1))
                alone = {"attn_mask": expanded[item], "is_causal": not expanded[item].triu(1).any(), "hops": 3}
                assert_close(out[item], oracles.pure_attention(q[item], k[item], v[item], **alone))
