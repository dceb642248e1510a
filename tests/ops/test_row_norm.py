"""norm="row": each row of R over its own norm and the root of the number of keys it may see. Nothing is coupled."""

import math

import pytest
import torch

import infsa

from . import oracles, plain
from .helpers import (
    ACTIVATIONS,
    IMPLS,
    PURE_MASKS,
    assert_close,
    generator,
    gradients,
    head_gammas,
    leaves,
    pure_masks,
    random_mask,
    small_tiles,
    tokens,
)

impls = pytest.mark.parametrize("impl", IMPLS)
causality = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


@pytest.mark.parametrize("masks", PURE_MASKS)
@causality
@pytest.mark.parametrize("activation", ACTIVATIONS)
@impls
def test_values(impl, activation, is_causal, masks):
    q, k, v = tokens(0, 7, value_width=5)
    options = {"activation": activation, "is_causal": is_causal, "norm": "row", "gamma": head_gammas()}
    options |= pure_masks(masks, 7, 7)
    assert_close(infsa.pure_attention(q, k, v, impl=impl, **options), oracles.pure_attention(q, k, v, **options))
    del options["gamma"]
    assert_close(infsa.pure_weights(q, k, **options), oracles.pure_weights(q, k, **options))


@pytest.mark.parametrize("masks", PURE_MASKS)
@impls
def test_cross_attention(impl, masks):
    q, k, v = tokens(1, 5, n_k=9, value_width=3)
    options = {"norm": "row", **pure_masks(masks, 5, 9)}
    assert_close(infsa.pure_attention(q, k, v, impl=impl, **options), oracles.pure_attention(q, k, v, **options))


@pytest.mark.parametrize("hops", [2, math.inf])
@causality
@impls
def test_hops(impl, is_causal, hops):
    q, k, v = tokens(2, 7)
    options = {"norm": "row", "hops": hops, "is_causal": is_causal, "key_mask": random_mask((2, 7), 1)}
    assert_close(infsa.pure_attention(q, k, v, impl=impl, **options), oracles.pure_attention(q, k, v, **options), 1e-9)


@pytest.mark.parametrize("masks", ["none", "key_query", "everything"])
@causality
@impls
def test_gradients(impl, is_causal, masks):
    """Against autograd through plain PyTorch, over several tiles; the bias has its gradient too."""
    q, k, v = tokens(3, 19, n_k=19, width=3)
    options = {"is_causal": is_causal, "norm": "row", "activation": "gelu", **pure_masks(masks, 19, 19)}
    bias = options.pop("attn_mask", None)
    inputs = leaves(q, k, v, head_gammas(), *(() if bias is None else (bias,)))

    def ours(q, k, v, gamma, mask=None):
        return infsa.pure_attention(q, k, v, gamma=gamma, attn_mask=mask, impl=impl, **options)

    def theirs(q, k, v, gamma, mask=None):
        return plain.pure_attention(q, k, v, gamma=gamma, attn_mask=mask, **options)

    with small_tiles():
        found = gradients(ours, inputs)
    for x, y in zip(found, gradients(theirs, inputs), strict=True):
        assert_close(x, y, 1e-9)


@causality
def test_decoding_in_steps(is_causal):
    """A state equals the whole causal pass; without it, one query and the keys so far are enough."""
    q, k, v = tokens(4, 11)
    mask = random_mask((2, 11), 5)
    whole = infsa.pure_attention(q, k, v, is_causal=True, norm="row", key_mask=mask)
    if is_causal:
        state = infsa.PureDecodeState(norm="row")
        cuts = [slice(0, 4), slice(4, 5), slice(5, 11)]
        steps = [state.step(q[:, :, c], k[:, :, c], v[:, :, c], mask[:, c]) for c in cuts]
        assert_close(torch.cat(steps, 2), whole)
    else:
        for i in range(11):
            row = (slice(None), slice(None), slice(i, i + 1))
            upto = (slice(None), slice(None), slice(0, i + 1))
            step = infsa.pure_attention(
                q[row], k[upto], v[upto], norm="row", key_mask=mask[:, : i + 1], query_mask=mask[:, i : i + 1]
            )
            assert torch.allclose(step, whole[row], rtol=1e-12, atol=1e-14)


@impls
def test_no_row_knows_another(impl):
    """A query gives what it gives alone, whatever the mask and whatever the other queries are."""
    q, k, v = tokens(6, 6, n_k=8)
    mask = random_mask((6, 8), 7, keep=0.5)
    out = infsa.pure_attention(q, k, v, attn_mask=mask, norm="row", impl=impl)
    for i in range(6):
        alone = infsa.pure_attention(q[:, :, i : i + 1], k, v, attn_mask=mask[i : i + 1], norm="row", impl=impl)
        assert torch.allclose(alone, out[:, :, i : i + 1], rtol=1e-12, atol=1e-14)
    changed = q.clone()
    changed[:, :, 3] = math.nan
    others = [0, 1, 2, 4, 5]
    found = infsa.pure_attention(changed, k, v, attn_mask=mask, norm="row", impl=impl)
    assert torch.equal(found[:, :, others], out[:, :, others])
    assert found[:, :, 3].isnan().all()


def test_it_is_the_papers_norm_where_rows_are_alike_and_its_rows_sum_to_at_most_one():
    q, k, v = tokens(8, 6)
    q = q[:, :, :1].expand_as(q)
    both = [infsa.pure_attention(q, k, v, norm=norm, eps=0.0) for norm in ("frobenius", "row")]
    assert_close(*both)
    weights = infsa.pure_weights(*tokens(9, 12)[:2], norm="row", attn_mask=random_mask((12, 12), 1))
    assert (weights.sum(-1) <= 1).all()


@impls
def test_half_precision(impl):
    q, k, v = tokens(10, 33, dtype=torch.bfloat16)
    out = infsa.pure_attention(q, k, v, norm="row", is_causal=True, impl=impl)
    exact = plain.pure_attention(*(x.double() for x in (q, k, v)), norm="row", is_causal=True)
    assert out.dtype == torch.bfloat16
    assert (out.double() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * exact.abs().max()


def test_it_compiles_whole():
    q, k, v = tokens(11, 9)
    mask = torch.randn(9, 9, dtype=torch.float64, generator=generator(1))

    def attend(q, k, v):
        return infsa.pure_attention(q, k, v, norm="row", attn_mask=mask)

    torch.testing.assert_close(torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v), attend(q, k, v))


@pytest.mark.parametrize("use", [infsa.pure_attention, lambda q, k, v, norm: infsa.pure_weights(q, k, norm=norm)])
def test_another_norm_is_refused(use):
    with pytest.raises(ValueError, match=r"norm must be one of \['frobenius', 'row'\], got 'l1'"):
        use(*tokens(0), norm="l1")
    with pytest.raises(ValueError, match="got 'l1'"):
        infsa.PureDecodeState(norm="l1")
