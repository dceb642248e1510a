"""pure_attention and pure_weights against the loops in float64, for every legal mix of options."""

import math

import pytest
import torch

import infsa

from . import oracles
from .helpers import (
    ACTIVATIONS,
    BATCH,
    HEADS,
    IMPLS,
    PURE_MASKS,
    assert_close,
    generator,
    head_gammas,
    lengths_mask,
    minus_infinity,
    pure_masks,
    random_mask,
    tokens,
)
from .layouts import every_second_token, expanded, qkv_views, transposed

GAMMAS = {"float": 0.7, "per_head": head_gammas()}
impls = pytest.mark.parametrize("impl", [*IMPLS, "auto"])
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
causality = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


def check(q, k, v, impl, **options):
    out = infsa.pure_attention(q, k, v, impl=impl, **options)
    assert out.dtype == q.dtype
    assert_close(out, oracles.pure_attention(q, k, v, **options))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("hops", [1, 3, math.inf])
@pytest.mark.parametrize("masks", PURE_MASKS)
@causality
@activations
@pytest.mark.parametrize("impl", IMPLS)
def test_every_combination(impl, activation, is_causal, masks, hops, gamma):
    q, k, v = tokens(0, 7, value_width=5)
    options = {"activation": activation, "is_causal": is_causal, "hops": hops, "gamma": GAMMAS[gamma]}
    check(q, k, v, impl, **options, **pure_masks(masks, 7, 7))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (1, 6), (6, 1)], ids=str)
@pytest.mark.parametrize("masks", PURE_MASKS)
@activations
@impls
def test_cross_attention(impl, activation, masks, shape):
    n_q, n_k = shape
    q, k, v = tokens(1, n_q, n_k=n_k, value_width=3)
    check(q, k, v, impl, activation=activation, **pure_masks(masks, n_q, n_k))


@causality
@activations
@pytest.mark.parametrize("impl", IMPLS)
def test_weights(impl, activation, is_causal):
    q, k, _ = tokens(2, 6)
    options = {"activation": activation, "is_causal": is_causal} | pure_masks("everything", 6, 6)
    assert_close(infsa.pure_weights(q, k, **options), oracles.pure_weights(q, k, **options))


@activations
def test_cross_weights(activation):
    q, k, _ = tokens(2, 4, n_k=6)
    options = {"activation": activation} | pure_masks("everything", 4, 6)
    assert_close(infsa.pure_weights(q, k, **options), oracles.pure_weights(q, k, **options))


@pytest.mark.parametrize("hops", [1, 2, math.inf])
@causality
@impls
def test_one_token(impl, is_causal, hops):
    q, k, v = tokens(3, 1)
    check(q, k, v, impl, is_causal=is_causal, hops=hops)


@pytest.mark.parametrize("n", [64, 65, 130])
@causality
@activations
def test_lengths_around_a_block(activation, is_causal, n):
    q, k, v = tokens(4, n, batch=1, heads=1)
    check(q, k, v, "chunked", activation=activation, is_causal=is_causal)


@pytest.mark.parametrize(
    "shape", [(1, 1), (BATCH, 1), (1, HEADS), (BATCH, HEADS)], ids=["shared", "batch", "head", "full"]
)
@pytest.mark.parametrize("kind", ["bool", "inf", "bias"])
@causality
@impls
def test_mask_shapes_broadcast(impl, is_causal, kind, shape):
    q, k, v = tokens(5, 6)
    mask = random_mask((*shape, 6, 6), 6)
    if kind == "inf":
        mask = minus_infinity(mask)
    elif kind == "bias":
        mask = torch.randn(*shape, 6, 6, generator=generator(6), dtype=torch.float64)
    check(q, k, v, impl, attn_mask=mask, is_causal=is_causal)


@pytest.mark.parametrize("kind", ["bool", "bias"])
@impls
def test_mask_of_two_dimensions(impl, kind):
    q, k, v = tokens(5, 4, n_k=6)
    mask = random_mask((4, 6), 7)
    check(q, k, v, impl, attn_mask=mask if kind == "bool" else minus_infinity(mask) + 0.3)


@pytest.mark.parametrize("mask_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@causality
@activations
@impls
def test_the_lowest_value_of_a_mask_is_minus_infinity(impl, activation, is_causal, mask_dtype):
    q, k, v = tokens(5, 6)
    mask = random_mask((6, 6), 8)
    lowest = torch.zeros(6, 6, dtype=mask_dtype).masked_fill(~mask, torch.finfo(mask_dtype).min)
    options = {"activation": activation, "is_causal": is_causal}
    out = infsa.pure_attention(q, k, v, attn_mask=lowest, impl=impl, **options)
    assert_close(out, oracles.pure_attention(q, k, v, attn_mask=mask, **options))


@pytest.mark.parametrize("gamma", [torch.tensor(0.3), torch.tensor([0.3])], ids=["scalar", "one"])
@impls
def test_gamma_broadcasts_to_the_heads(impl, gamma):
    q, k, v = tokens(6, 5)
    check(q, k, v, impl, gamma=gamma.double())


@pytest.mark.parametrize("eps", [1e-3, 0.5])
@causality
@impls
def test_eps_is_added_to_the_norm(impl, is_causal, eps):
    q, k, v = tokens(7, 5)
    check(q, k, v, impl, eps=eps, is_causal=is_causal)


def broadcast_tokens(n, width):
    return tuple(x[:, :, :1].expand(BATCH, HEADS, n, width) for x in tokens(8, n, width=width))


LAYOUTS = [qkv_views, transposed, every_second_token, expanded, broadcast_tokens]


@pytest.mark.parametrize("layout", LAYOUTS)
@causality
@impls
def test_layouts(impl, is_causal, layout):
    q, k, v = layout(6, 4)
    assert not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous())
    check(q, k, v, impl, is_causal=is_causal)


@impls
def test_strided_masks(impl):
    q, k, v = tokens(9, 6)
    mask = random_mask((BATCH, 12), 9)[:, ::2]
    pairs = random_mask((6, 6), 10).mT.expand(BATCH, HEADS, 6, 6)
    check(q, k, v, impl, key_mask=mask, attn_mask=pairs)


@causality
@activations
@impls
def test_one_tensor_as_query_key_and_value(impl, activation, is_causal):
    x, _, _ = tokens(10, 6)
    check(x, x, x, impl, activation=activation, is_causal=is_causal, hops=2)


@causality
@activations
@impls
def test_inputs_are_left_alone(impl, activation, is_causal):
    inputs = tokens(11, 6)
    masks = pure_masks("everything", 6, 6)
    before = [x.clone() for x in (*inputs, *masks.values())]
    infsa.pure_attention(*inputs, impl=impl, activation=activation, is_causal=is_causal, **masks)
    assert all(torch.equal(x, y) for x, y in zip(before, (*inputs, *masks.values()), strict=True))


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@causality
@activations
@impls
def test_a_batch_item_without_real_tokens_is_zero(impl, activation, is_causal, hops):
    q, k, v = tokens(12, 5)
    mask = lengths_mask([0, 4], 5)
    check(q, k, v, impl, activation=activation, is_causal=is_causal, hops=hops, key_mask=mask)
    out = infsa.pure_attention(q, k, v, impl=impl, is_causal=is_causal, hops=hops, key_mask=mask)
    assert not out[0].any()


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@causality
@impls
def test_negative_scores_give_zero(impl, is_causal, hops):
    q, _, v = tokens(13, 5)
    out = infsa.pure_attention(q.abs(), -q.abs(), v, impl=impl, is_causal=is_causal, hops=hops)
    assert torch.equal(out, torch.zeros_like(v))


@impls
def test_negative_rows_before_the_first_positive_causal_score(impl):
    q, k, v = tokens(14, 6)
    q, k = q.abs(), torch.cat([-k[:, :, :3].abs(), k[:, :, 3:].abs()], 2)
    check(q, k, v, impl, is_causal=True)
    out = infsa.pure_attention(q, k, v, impl=impl, is_causal=True)
    assert not out[:, :, :3].any()
    assert out[:, :, 3:].any()
