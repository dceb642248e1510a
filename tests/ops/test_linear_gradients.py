"""Gradients of linear_attention: finite differences in float64, and against the dense PyTorch path."""

from functools import partial
from unittest import mock

import pytest
import torch

import infsa

from . import plain
from .helpers import (
    ACTIVATIONS,
    IMPLS,
    TOKEN_MASKS,
    assert_close,
    assert_same_function,
    gradients,
    head_gammas,
    leaves,
    lengths_mask,
    token_masks,
    tokens,
)

N = 5
SMALL = {"batch": 2, "heads": 2, "width": 2}
VARIANTS = [
    {"iterations": 1},
    {"iterations": 2},
    {"iterations": 3},
    {"queries": 2},
    {"queries": N},
    {"queries": 2, "iterations": 2},
    {"causal": "chunk", "chunk_size": 1},
    {"causal": "chunk", "chunk_size": 2},
    {"causal": "chunk", "chunk_size": 5},
]
impls = pytest.mark.parametrize("impl", IMPLS)
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
variants = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def smooth_tokens(n, options, **sizes):
    """The first seed whose scores all stay clear of the kink of relu, abs and |S| at 0."""
    for seed in range(1000):
        q, k, v = tokens(seed, n, **sizes)
        if smallest_score(q, k, v, options) > 1e-3:
            return q, k, v
    raise AssertionError("no smooth seed")


def smallest_score(q, k, v, options):
    """The smallest magnitude that φ is asked for, without the exact zeros of empty blocks: they stay zero."""
    seen = []
    name = options.get("activation", "relu")
    phi = plain.ACTIVATIONS[name]

    def record(scores):
        seen.append(scores[scores != 0].abs().min())
        return phi(scores)

    with mock.patch.dict(plain.ACTIVATIONS, {name: record}):
        plain.linear_attention(q, k, v, **options)
    return min(seen)


def check(q, k, v, gamma=None, **options):
    inputs = leaves(q, k, v, head_gammas(q.shape[1]) if gamma is None else gamma)

    def attend(q, k, v, gamma):
        return infsa.linear_attention(q, k, v, gamma=gamma, **options)

    assert torch.autograd.gradcheck(attend, inputs)


@pytest.mark.parametrize("masks", TOKEN_MASKS)
@variants
@activations
@impls
def test_every_combination(impl, activation, variant, masks):
    options = {"activation": activation} | variant | token_masks(masks, N, N)
    q, k, v = smooth_tokens(N, options, **SMALL)
    check(q, k, v, impl=impl, **options)


@pytest.mark.parametrize("masks", ["none", "key_query"])
@pytest.mark.parametrize("queries", [1, 2])
@activations
@impls
def test_cross_attention(impl, activation, queries, masks):
    options = {"activation": activation, "queries": queries} | token_masks(masks, 3, 5)
    q, k, v = smooth_tokens(3, options, n_k=5, value_width=3, **SMALL)
    check(q, k, v, impl=impl, **options)


@activations
def test_weights(activation):
    q, k, _ = smooth_tokens(N, {"activation": activation, "iterations": 2}, **SMALL)

    def weights(q, k):
        return infsa.linear_weights(q, k, activation=activation, iterations=2)

    assert torch.autograd.gradcheck(weights, leaves(q, k))


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@impls
def test_gradient_of_a_shared_gamma(impl, shape):
    q, k, v = smooth_tokens(3, {}, **SMALL)
    check(q, k, v, gamma=torch.full(shape, 0.6, dtype=torch.float64), impl=impl)


@variants
@impls
def test_gradient_of_one_tensor_in_three_roles(impl, variant):
    found = []
    for attend in (infsa.linear_attention, plain.linear_attention):
        x = leaves(tokens(1, N)[0])
        extra = {"impl": impl} if attend is infsa.linear_attention else {}
        found += gradients(lambda x, attend=attend, extra=extra: attend(x, x, x, **variant, **extra), x)
    assert_close(*found)


@pytest.mark.parametrize("masks", TOKEN_MASKS)
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"iterations": 3},
        {"queries": 7},
        {"queries": 7, "iterations": 2},
        {"causal": "chunk", "chunk_size": 8},
        {"causal": "chunk", "chunk_size": 16},
    ],
    ids=str,
)
@activations
def test_chunked_equals_dense_over_several_blocks(small_blocks, activation, variant, masks):
    n = 41
    inputs = leaves(*tokens(1, n, value_width=5), head_gammas())
    options = {"activation": activation} | variant | token_masks(masks, n, n)

    def attend(attention, *x, **chosen):
        return attention(*x[:3], gamma=x[3], **options, **chosen)

    chunked = partial(attend, infsa.linear_attention, impl="chunked")
    assert_same_function(chunked, partial(attend, plain.linear_attention), inputs)


@variants
@activations
@impls
def test_dead_heads_and_empty_items_have_finite_gradients(impl, activation, variant):
    q, k, v = tokens(2, N)
    inputs = leaves(q.abs(), -k.abs(), v)
    options = {"activation": activation, "key_mask": lengths_mask([0, N], N)} | variant
    found = gradients(lambda *x: infsa.linear_attention(*x, impl=impl, **options), inputs)
    assert all(g.isfinite().all() for g in found)
    assert not any(g[0].any() for g in found)
    if activation == "relu":
        assert not any(g.any() for g in found)


@variants
@impls
def test_zero_queries_have_finite_gradients(impl, variant):
    """The length of a query has no slope at zero."""
    q, k, v = tokens(3, N)
    inputs = leaves(torch.zeros_like(q), k, v)
    found = gradients(lambda *x: infsa.linear_attention(*x, impl=impl, **variant), inputs)
    assert all(g.isfinite().all() for g in found)
