"""Gradients of pure_attention: finite differences in float64, and one implementation against the other."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

import infsa

from . import oracles, plain
from .helpers import (
    ACTIVATIONS,
    IMPLS,
    PURE_MASKS,
    assert_close,
    assert_same_function,
    generator,
    gradients,
    head_gammas,
    leaves,
    lengths_mask,
    minus_infinity,
    pure_masks,
    random_mask,
    tokens,
)

SMALL = {"batch": 2, "heads": 2, "width": 2}
impls = pytest.mark.parametrize("impl", IMPLS)
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
causality = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


def smooth_tokens(n, attn_mask=None, **sizes):
    """The first seed whose scores all stay clear of the kink of relu and abs at 0."""
    for seed in range(1000):
        q, k, v = tokens(seed, n, **sizes)
        scores, allowed = oracles.pure_scores(q, k, attn_mask)
        if np.abs(scores[allowed]).min() > 1e-3:
            return q, k, v
    raise AssertionError("no smooth seed")


def check(q, k, v, gamma=None, attn_mask=None, **options):
    """gradcheck over q, k, v, gamma and a floating attn_mask."""
    gamma = head_gammas(q.shape[1]) if gamma is None else gamma
    inputs = leaves(q, k, v, gamma)
    if attn_mask is not None and attn_mask.is_floating_point():
        inputs += leaves(attn_mask)

    def attend(q, k, v, gamma, mask=attn_mask):
        return infsa.pure_attention(q, k, v, gamma=gamma, attn_mask=mask, **options)

    # The iterative solver costs many passes: random projections of its Jacobian instead of every entry.
    iterative = options["impl"] == "chunked" and options.get("hops") == math.inf
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=iterative)


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@pytest.mark.parametrize("masks", PURE_MASKS)
@causality
@activations
@impls
def test_every_combination(impl, activation, is_causal, masks, hops):
    options = pure_masks(masks, 4, 4, batch=2, heads=2)
    q, k, v = smooth_tokens(4, options.get("attn_mask"), **SMALL)
    check(q, k, v, impl=impl, activation=activation, is_causal=is_causal, hops=hops, **options)


@pytest.mark.parametrize("masks", ["none", "key_query", "everything"])
@activations
@impls
def test_cross_attention(impl, activation, masks):
    options = pure_masks(masks, 3, 5, batch=2, heads=2)
    q, k, v = smooth_tokens(3, options.get("attn_mask"), n_k=5, value_width=3, **SMALL)
    check(q, k, v, impl=impl, activation=activation, **options)


@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (2, 1, 4, 4), (1, 2, 4, 4), (4, 4)], ids=str)
@causality
@impls
def test_gradient_of_a_broadcast_bias(impl, is_causal, shape):
    bias = torch.randn(shape, generator=generator(1), dtype=torch.float64)
    q, k, v = smooth_tokens(4, bias, **SMALL)
    check(q, k, v, attn_mask=bias, impl=impl, is_causal=is_causal, hops=2)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@causality
@impls
def test_gradient_of_a_shared_gamma(impl, is_causal, shape):
    q, k, v = smooth_tokens(3, **SMALL)
    check(q, k, v, gamma=torch.full(shape, 0.6, dtype=torch.float64), impl=impl, is_causal=is_causal)


@causality
@impls
def test_gradient_with_a_large_eps(impl, is_causal):
    q, k, v = smooth_tokens(3, **SMALL)
    check(q, k, v, impl=impl, is_causal=is_causal, eps=0.3)


@pytest.mark.parametrize("hops", [1, 2, math.inf])
@causality
@impls
def test_gradient_of_one_tensor_in_three_roles(impl, is_causal, hops):
    x, _, _ = smooth_tokens(4, **SMALL)

    def attend(x):
        return infsa.pure_attention(x, x, x, impl=impl, is_causal=is_causal, hops=hops)

    assert torch.autograd.gradcheck(attend, leaves(x))


@pytest.mark.parametrize("leaf", [0, 1, 2])
@causality
@impls
def test_gradient_of_one_input_alone(impl, is_causal, leaf):
    """Frozen inputs get no gradient and change none of the others."""
    inputs = list(smooth_tokens(5, **SMALL))
    inputs[leaf] = inputs[leaf].requires_grad_()
    infsa.pure_attention(*inputs, impl=impl, is_causal=is_causal).square().sum().backward()
    expected = [x.detach().clone() for x in inputs]
    expected[leaf].requires_grad_()
    plain.pure_attention(*expected, is_causal=is_causal).square().sum().backward()
    assert [x.grad is not None for x in inputs] == [i == leaf for i in range(3)]
    assert_close(inputs[leaf].grad, expected[leaf].grad)


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@causality
@activations
@impls
def test_no_real_token_or_no_positive_score_gives_zero_gradients(impl, activation, is_causal, hops):
    """An empty batch item, and heads whose every score is negative, stay finite."""
    q, k, v = tokens(0, 5)
    if activation == "relu":
        q, k = q.abs(), -k.abs()
    inputs = leaves(q, k, v)
    mask = lengths_mask([0, 5], 5)
    options = {"activation": activation, "is_causal": is_causal, "hops": hops, "key_mask": mask}
    found = gradients(lambda *x: infsa.pure_attention(*x, impl=impl, **options), inputs)
    assert all(g.isfinite().all() for g in found)
    assert not any(g[0].any() for g in found)
    if activation == "relu":
        assert not any(g.any() for g in found)


@pytest.mark.parametrize("hops", [1, 3])
@impls
def test_dead_causal_rows_before_live_ones(impl, hops):
    """The rows with F_i = 0 drop out of the sums of the causal backward pass."""
    q, k, v = smooth_tokens(5, **SMALL)
    q, k = q.abs() + 0.1, torch.cat([-k[:, :, :2].abs() - 0.1, k[:, :, 2:].abs() + 0.1], 2)
    check(q, k, v, impl=impl, is_causal=True, hops=hops)


@pytest.mark.parametrize(("hops", "masks"), [*product([1, 2], PURE_MASKS), (math.inf, "everything")])
@causality
@activations
def test_chunked_equals_dense_over_several_blocks(small_blocks, activation, is_causal, hops, masks):
    n = 41
    inputs = leaves(*tokens(1, n, value_width=5), head_gammas())
    options = {"activation": activation, "is_causal": is_causal, "hops": hops} | pure_masks(masks, n, n)

    def attend(attention, *x, **chosen):
        return attention(*x[:3], gamma=x[3], **options, **chosen)

    chunked = partial(attend, infsa.pure_attention, impl="chunked")
    assert_same_function(chunked, partial(attend, plain.pure_attention), inputs)


@pytest.mark.parametrize("shape", [(23, 40), (40, 23), (1, 40)], ids=str)
@pytest.mark.parametrize("masks", ["none", "everything"])
def test_chunked_cross_attention_over_several_blocks(small_blocks, masks, shape):
    n_q, n_k = shape
    inputs = leaves(*tokens(2, n_q, n_k=n_k))
    options = pure_masks(masks, n_q, n_k)
    found = gradients(lambda *x: infsa.pure_attention(*x, impl="chunked", **options), inputs)
    expected = gradients(lambda *x: plain.pure_attention(*x, **options), inputs)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3)], ids=str)
@causality
def test_chunked_bias_gradient_over_several_blocks(small_blocks, is_causal, shape):
    n = 37
    bias = torch.randn(*shape, n, n, generator=generator(3), dtype=torch.float64)
    bias = bias + minus_infinity(random_mask((n, n), 4))
    inputs = leaves(*tokens(3, n), bias)

    def chunked(q, k, v, bias):
        return infsa.pure_attention(q, k, v, attn_mask=bias, is_causal=is_causal, impl="chunked")

    def dense(q, k, v, bias):
        return plain.pure_attention(q, k, v, attn_mask=bias, is_causal=is_causal)

    for x, y in zip(gradients(chunked, inputs), gradients(dense, inputs), strict=True):
        assert_close(x, y)


@impls
def test_second_derivatives_are_right_or_refused(impl):
    inputs = leaves(*smooth_tokens(3, batch=1, heads=1, width=2))
    try:
        assert torch.autograd.gradgradcheck(lambda *x: infsa.pure_attention(*x, impl=impl), inputs)
    except GradcheckError:
        raise
    except RuntimeError:
        assert impl == "chunked"


@causality
def test_the_limit_over_many_tokens(is_causal):
    """Long enough for impl="auto" to leave the dense solver."""
    inputs = leaves(*tokens(4, 700, batch=1, heads=1), head_gammas(1))

    def ours(q, k, v, gamma):
        return infsa.pure_attention(q, k, v, gamma=gamma, hops=math.inf, is_causal=is_causal)

    def dense(q, k, v, gamma):
        return plain.pure_attention(q, k, v, gamma=gamma, hops=math.inf, is_causal=is_causal)

    assert_close(ours(*inputs), dense(*inputs))
    for found, expected in zip(gradients(ours, inputs), gradients(dense, inputs), strict=True):
        assert_close(found, expected)
