"""linear_attention and linear_weights against the loops in float64, for every legal mix of options."""

import pytest
import torch

import infsa

from . import oracles
from .helpers import (
    ACTIVATIONS,
    BATCH,
    HEADS,
    IMPLS,
    TOKEN_MASKS,
    assert_close,
    head_gammas,
    lengths_mask,
    random_mask,
    token_masks,
    tokens,
)
from .layouts import every_second_token, expanded, qkv_views, transposed

N = 8
GAMMAS = {"float": 0.7, "per_head": head_gammas()}
VARIANTS = [
    {"iterations": 1},
    {"iterations": 2},
    {"iterations": 3},
    {"queries": 2},
    {"queries": 3},
    {"queries": N},
    {"queries": 3, "iterations": 2},
    {"causal": "chunk", "chunk_size": 1},
    {"causal": "chunk", "chunk_size": 3},
    {"causal": "chunk", "chunk_size": 4},
    {"causal": "chunk", "chunk_size": N},
    {"causal": "chunk", "chunk_size": N + 5},
]
impls = pytest.mark.parametrize("impl", [*IMPLS, "auto"])
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
variants = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def check(q, k, v, impl, **options):
    out = infsa.linear_attention(q, k, v, impl=impl, **options)
    assert out.dtype == q.dtype
    assert_close(out, oracles.linear_attention(q, k, v, **options))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("masks", TOKEN_MASKS)
@variants
@activations
@pytest.mark.parametrize("impl", IMPLS)
def test_every_combination(impl, activation, variant, masks, gamma):
    q, k, v = tokens(0, N, value_width=5)
    check(q, k, v, impl, activation=activation, gamma=GAMMAS[gamma], **variant, **token_masks(masks, N, N))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (1, 6), (6, 1)], ids=str)
@pytest.mark.parametrize("masks", TOKEN_MASKS)
@pytest.mark.parametrize("queries", [1, 2, 5])
@activations
@impls
def test_cross_attention(impl, activation, queries, masks, shape):
    n_q, n_k = shape
    q, k, v = tokens(1, n_q, n_k=n_k, value_width=3)
    options = {"activation": activation, "queries": min(queries, n_q)}
    check(q, k, v, impl, **options, **token_masks(masks, n_q, n_k))


def test_shapes():
    q, k, v = tokens(2, N, value_width=5)
    assert infsa.linear_attention(q, k, v).shape == (BATCH, HEADS, 1, 5)
    assert infsa.linear_attention(q, k, v, queries=2).shape == (BATCH, HEADS, N, 5)
    assert infsa.linear_attention(q, k, v, causal="chunk", chunk_size=3).shape == (BATCH, HEADS, N, 5)
    assert infsa.linear_weights(q, k).shape == (BATCH, HEADS, N)


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("masks", TOKEN_MASKS)
@activations
def test_weights(activation, masks, iterations):
    q, k, _ = tokens(3, N)
    options = {"activation": activation, "iterations": iterations} | token_masks(masks, N, N)
    assert_close(infsa.linear_weights(q, k, **options), oracles.linear_weights(q, k, **options)[:, :, 0])


@pytest.mark.parametrize("queries", [2, 3, N])
def test_weights_of_several_blocks(queries):
    q, k, _ = tokens(3, N)
    key_mask = random_mask((BATCH, N), 1)
    found = infsa.linear_weights(q, k, queries=queries, key_mask=key_mask)
    assert_close(found, oracles.linear_weights(q, k, queries=queries, key_mask=key_mask))


@pytest.mark.parametrize("options", [{}, {"iterations": 2}, {"causal": "chunk", "chunk_size": 2}], ids=str)
@impls
def test_one_token(impl, options):
    q, k, v = tokens(4, 1)
    check(q, k, v, impl, **options)


@pytest.mark.parametrize("gamma", [torch.tensor(0.3), torch.tensor([0.3])], ids=["scalar", "one"])
@impls
def test_gamma_broadcasts_to_the_heads(impl, gamma):
    q, k, v = tokens(5, 5)
    check(q, k, v, impl, gamma=gamma.double())


@variants
@impls
def test_eps(impl, variant):
    q, k, v = tokens(6, N)
    check(q, k, v, impl, eps=0.3, **variant)


@pytest.mark.parametrize("layout", [qkv_views, transposed, every_second_token, expanded])
@variants
@impls
def test_layouts(impl, variant, layout):
    q, k, v = layout(N, 4)
    assert not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous())
    check(q, k, v, impl, **variant)


@variants
@impls
def test_one_tensor_as_query_key_and_value(impl, variant):
    x, _, _ = tokens(9, N)
    check(x, x, x, impl, **variant)


@variants
@activations
@impls
def test_a_batch_item_without_real_tokens_is_zero(impl, activation, variant):
    q, k, v = tokens(10, N)
    mask = lengths_mask([0, 5], N)
    check(q, k, v, impl, activation=activation, key_mask=mask, **variant)
    out = infsa.linear_attention(q, k, v, impl=impl, activation=activation, key_mask=mask, **variant)
    assert not out[0].any()


@variants
@impls
def test_a_dead_head_is_zero(impl, variant):
    q, _, v = tokens(11, N)
    out = infsa.linear_attention(q.abs(), -q.abs(), v, impl=impl, **variant)
    assert torch.equal(out, torch.zeros_like(out))


@activations
@impls
def test_a_tied_head_cannot_die(impl, activation):
    q, _, _ = tokens(12, N)
    ones = torch.ones(BATCH, HEADS, N, 1, dtype=torch.float64)
    mass = infsa.linear_attention(q, q, ones, gamma=0.5, activation=activation, impl=impl)
    if activation != "gelu":  # the weights of GELU have both signs
        assert (mass > 0.49).all()
    assert (mass.abs() <= 0.5).all()


@impls
def test_inputs_are_left_alone(impl):
    inputs = tokens(13, N)
    masks = token_masks("key_query", N, N)
    before = [x.clone() for x in (*inputs, *masks.values())]
    infsa.linear_attention(*inputs, impl=impl, queries=2, iterations=2, **masks)
    assert all(torch.equal(x, y) for x, y in zip(before, (*inputs, *masks.values()), strict=True))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("options", [{"causal": "chunk", "chunk_size": 4}, {"queries": 3}], ids=str)
def test_padding_on_the_left_changes_nothing(impl, options):
    q, k, v = tokens(4, 9)
    mask = torch.ones(BATCH, 12, dtype=torch.bool)
    mask[:, :3] = False
    padded = (torch.nn.functional.pad(x, (0, 0, 3, 0)) for x in (q, k, v))
    out = infsa.linear_attention(*padded, key_mask=mask, impl=impl, **options)
    torch.testing.assert_close(out[:, :, 3:], infsa.linear_attention(q, k, v, impl=impl, **options))
