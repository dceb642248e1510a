"""dropout_p drops entries of Â after the norm: unbiased, reproducible, and the same mask in both passes."""

import pytest
import torch

import infsa

from .helpers import IMPLS, assert_close, leaves, tokens

COPIES = 4000
impls = pytest.mark.parametrize("impl", IMPLS)
causality = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


def copies(n=4):
    """One problem COPIES times over in the batch: each copy draws its own mask."""
    return tuple(x.expand(COPIES, -1, -1, -1) for x in tokens(0, n, batch=1, heads=2))


@causality
@impls
def test_none_of_it_is_no_dropout(impl, is_causal):
    q, k, v = tokens(1, 5)
    options = {"impl": impl, "is_causal": is_causal}
    out = infsa.pure_attention(q, k, v, dropout_p=0.0, **options)
    assert torch.equal(out, infsa.pure_attention(q, k, v, **options))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@causality
@impls
def test_the_mean_is_the_attention(impl, is_causal, p):
    q, k, v = copies()
    torch.manual_seed(0)
    out = infsa.pure_attention(q, k, v, dropout_p=p, impl=impl, is_causal=is_causal)
    expected = infsa.pure_attention(q[:1], k[:1], v[:1], impl=impl, is_causal=is_causal)[0]
    standard_error = out.std(0) / COPIES**0.5
    assert ((out.mean(0) - expected).abs() <= 5 * standard_error + 1e-12).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@impls
def test_an_entry_is_dropped_or_rescaled(impl, p):
    """With the identity as values the output shows Â itself: 0 or Â / (1 − p), dropped with chance p."""
    q, k, _ = copies()
    v = torch.eye(4, dtype=torch.float64).expand(COPIES, 2, 4, 4)
    torch.manual_seed(1)
    out = infsa.pure_attention(q, k, v, gamma=0.5, dropout_p=p, impl=impl)
    full = infsa.pure_attention(q, k, v, gamma=0.5, impl=impl)
    kept = out != 0
    assert_close(out[kept], full[kept] / (1 - p), 1e-12)
    alive = full != 0
    share = kept[alive].double().mean().item()
    assert abs(share - (1 - p)) <= 5 * (p * (1 - p) / alive.sum().item()) ** 0.5


@impls
def test_the_seed_decides(impl):
    q, k, v = tokens(2, 16)

    def draw(seed):
        torch.manual_seed(seed)
        return infsa.pure_attention(q, k, v, dropout_p=0.5, impl=impl)

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


@impls
def test_entries_are_dropped_one_by_one(impl):
    """No two heads, batch items or rows share their mask."""
    ones = torch.ones(2, 2, 32, 1, dtype=torch.float64)
    v = torch.eye(32, dtype=torch.float64).expand(2, 2, 32, 32)
    torch.manual_seed(3)
    rows = (infsa.pure_attention(ones, ones, v, dropout_p=0.5, impl=impl) != 0).flatten(0, 2)
    assert len(torch.unique(rows, dim=0)) == len(rows)


@causality
@impls
def test_the_backward_pass_uses_the_mask_of_the_forward_pass(impl, is_causal):
    inputs = leaves(*tokens(3, 4, batch=1, heads=2, width=2))

    def attend(*qkv):
        torch.manual_seed(4)
        return infsa.pure_attention(*qkv, dropout_p=0.4, impl=impl, is_causal=is_causal)

    assert torch.autograd.gradcheck(attend, inputs)


def test_the_backward_pass_uses_the_mask_of_the_forward_pass_over_several_blocks(small_blocks):
    """The output is linear in v, so its gradient must be the transpose of the map that was applied."""
    q, k, v = tokens(5, 40)
    v.requires_grad_()
    torch.manual_seed(6)
    out = infsa.pure_attention(q, k, v, dropout_p=0.4, impl="chunked")
    w = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, v, w)
    assert_close((found * v).sum(), (out * w).sum(), 1e-12)
