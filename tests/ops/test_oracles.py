"""The oracles against hand-worked numbers, and the loops against the dense PyTorch path."""

import math

import pytest
import torch

from . import oracles, plain
from .helpers import (
    ACTIVATIONS,
    PURE_MASKS,
    TOKEN_MASKS,
    assert_close,
    head_gammas,
    pure_masks,
    token_masks,
    tokens,
)


def head(rows):
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def test_pure_by_hand():
    q, k, v = head([[1.0], [2.0]]), head([[3.0], [-1.0]]), head([[1.0], [10.0]])
    # S = [[3, -1], [6, -2]], R = [[3, 0], [6, 0]], F = √45
    assert_close(oracles.pure_attention(q, k, v, gamma=0.5, eps=0.0), head([[1.5], [3.0]]) / math.sqrt(45))
    # |S|: F = √(9 + 1 + 36 + 4)
    expected = 0.5 * head([[13.0], [26.0]]) / math.sqrt(50)
    assert_close(oracles.pure_attention(q, k, v, gamma=0.5, eps=0.0, activation="abs"), expected)
    # causal |S|: rows [3] and [6, 2] over 3 and √(9 + 36 + 4)
    expected = 0.5 * head([[3 / 3], [26 / 7]])
    causal = oracles.pure_attention(q, k, v, gamma=0.5, eps=0.0, activation="abs", is_causal=True)
    assert_close(causal, expected)


def test_hops_by_hand():
    # Â = R = 1 for one token: 0.5 + 0.25 + 0.125, and 0.5 / (1 − 0.5) in the limit
    one = head([[1.0]])
    assert_close(oracles.pure_attention(one, one, one, gamma=0.5, eps=0.0, hops=3), head([[0.875]]))
    assert_close(oracles.pure_attention(one, one, one, gamma=0.5, eps=0.0, hops=math.inf), one)


def test_linear_by_hand():
    q, k, v = (
        head([[3.0, 4.0], [0.0, 5.0]]),
        head([[1.0, 0.0], [0.0, -1.0], [0.0, 2.0]]),
        head([[1.0], [2.0], [3.0]]),
    )
    # e = (5, 5), q̄ = (1.5, 4.5), S = (1.5, 0, 9)
    assert_close(oracles.linear_weights(q, k, eps=0.0), head([[1.5, 0.0, 9.0]]) / 10.5)
    assert_close(oracles.linear_attention(q, k, v, gamma=0.5, eps=0.0), head([[0.5 * 28.5 / 10.5]]))
    # two blocks of one token: S = (3, 0, 8) and (0, 0, 10)
    expected = head([[0.5 * 27 / 11], [1.5]])
    assert_close(oracles.linear_attention(q, k, v, gamma=0.5, eps=0.0, queries=2), expected)


def test_chunk_causal_by_hand():
    x, v = head([[1.0], [2.0], [3.0]]), head([[1.0], [10.0], [100.0]])
    # q̄ = 1 for the first token, 5/3 for two tokens: S = 1 and 10/3
    expected = 0.5 * head([[0.0], [1.0], [(1 + 100 / 3) / (1 + 10 / 3)]])
    out = oracles.linear_attention(x, x, v, gamma=0.5, eps=1e-300, causal="chunk", chunk_size=1)
    assert_close(out, expected)


@pytest.mark.parametrize("query_mask", [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_blocks_count_real_tokens(query_mask, m):
    found = [b for b in oracles.blocks(query_mask, m) if b is not None]
    n = sum(query_mask)
    assert found == [i * m // n for i in range(n)]


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@pytest.mark.parametrize("masks", PURE_MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_pure_loops_equal_the_dense_path(activation, is_causal, masks, hops):
    q, k, v = tokens(0, 6)
    options = {"activation": activation, "is_causal": is_causal, "hops": hops, "gamma": head_gammas()}
    options |= pure_masks(masks, 6, 6)
    assert_close(plain.pure_attention(q, k, v, **options), oracles.pure_attention(q, k, v, **options), 1e-12)


LINEAR = [
    {},
    {"iterations": 3},
    {"queries": 3},
    {"queries": 7, "iterations": 2},
    {"causal": "chunk", "chunk_size": 3},
    {"causal": "chunk", "chunk_size": 7},
]


@pytest.mark.parametrize("variant", LINEAR, ids=str)
@pytest.mark.parametrize("masks", TOKEN_MASKS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_loops_equal_the_dense_path(activation, masks, variant):
    q, k, v = tokens(0, 7)
    options = {"activation": activation, "gamma": head_gammas()} | token_masks(masks, 7, 7) | variant
    assert_close(plain.linear_attention(q, k, v, **options), oracles.linear_attention(q, k, v, **options), 1e-12)
