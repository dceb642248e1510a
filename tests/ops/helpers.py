"""Inputs, masks and comparisons shared by the tests of the operators."""

import math
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

from infsa.ops.linear import chunked as chunked_linear
from infsa.ops.pure import chunked as chunked_pure

from . import oracles

IMPLS = ("reference", "chunked")
ACTIVATIONS = ("relu", "gelu", "abs")
BATCH, HEADS = 2, 3


def generator(seed):
    return torch.Generator().manual_seed(seed)


def tokens(seed, n=7, *, n_k=None, width=4, value_width=None, batch=BATCH, heads=HEADS, dtype=torch.float64):
    """Normal q (B, H, n, d), k (B, H, n_k, d) and v (B, H, n_k, dv)."""
    n_k, value_width = n_k or n, value_width or width
    g = generator(seed)
    shapes = ((n, width), (n_k, width), (n_k, value_width))
    return tuple(torch.randn(batch, heads, *s, generator=g, dtype=torch.float64).to(dtype) for s in shapes)


def head_gammas(heads=HEADS, dtype=torch.float64):
    """A different decay for every head."""
    return torch.linspace(0.4, 0.8, heads, dtype=dtype)


def lengths_mask(lengths, n):
    """(B, n): True for the first lengths[b] tokens."""
    return torch.arange(n) < torch.tensor(lengths)[:, None]


def random_mask(shape, seed, keep=0.7):
    """Boolean, about `keep` of it True, and at least one True in every row."""
    mask = torch.rand(shape, generator=generator(seed)) < keep
    mask[..., 0] |= ~mask.any(-1)
    return mask


def minus_infinity(mask, dtype=torch.float64):
    """The boolean mask as SDPA's additive mask: 0 where True, −inf where False."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)


def pure_masks(kind, n_q, n_k, batch=BATCH, heads=HEADS, dtype=torch.float64):
    """The mask arguments of pure_attention for one kind of masking."""
    full = (batch, heads, n_q, n_k)
    key = random_mask((batch, n_k), 1)
    bias = torch.randn(full, generator=generator(2), dtype=torch.float64).to(dtype)
    pairs = random_mask(full, 3)
    return {
        "none": {},
        "key": {"key_mask": key},
        "key_query": {"key_mask": key, "query_mask": random_mask((batch, n_q), 4)},
        "query": {"query_mask": random_mask((batch, n_q), 4)},
        "pairs": {"attn_mask": pairs},
        "pairs_inf": {"attn_mask": minus_infinity(pairs, dtype)},
        "bias": {"attn_mask": bias},
        "everything": {
            "attn_mask": bias + minus_infinity(pairs, dtype),
            "key_mask": key,
            "query_mask": random_mask((batch, n_q), 4),
        },
    }[kind]


PURE_MASKS = ("none", "key", "key_query", "query", "pairs", "pairs_inf", "bias", "everything")


def token_masks(kind, n_q, n_k, batch=BATCH):
    """The mask arguments of linear_attention."""
    pure = pure_masks(kind, n_q, n_k, batch)
    assert "attn_mask" not in pure
    return pure


TOKEN_MASKS = ("none", "key", "key_query", "query")


@contextmanager
def small_tiles():
    """Tiles of the chunked implementation so small that a few dozen tokens need several."""
    elements = dict.fromkeys(chunked_pure.TILE_ELEMENTS, 64)
    with (
        mock.patch.object(chunked_pure, "TILE_ELEMENTS", elements),
        mock.patch.object(chunked_pure, "TILE_ROWS", 8),
        mock.patch.object(chunked_linear, "CHUNK_ELEMENTS", elements),
    ):
        yield


def scale(x):
    """The largest magnitude of x."""
    return float(np.abs(x).max()) if x.size else 0.0


def assert_close(actual, expected, tolerance=1e-10):
    """Same shape, and the largest error at most `tolerance` times the largest expected magnitude."""
    actual, expected = oracles.array(actual), oracles.array(expected)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    error, allowed = scale(actual - expected), tolerance * max(scale(expected), 1e-300)
    assert error <= allowed, f"largest error {error:.3e}, allowed {allowed:.3e}"


def leaves(*tensors):
    """Detached copies that require gradients."""
    return tuple(t.detach().clone().requires_grad_() for t in tensors)


def gradients(function, inputs, seed=11):
    """The gradients of ⟨w, function(*inputs)⟩ for a fixed random w."""
    out = function(*inputs)
    w = torch.randn(out.shape, generator=generator(seed), dtype=torch.float64).to(out.dtype)
    return torch.autograd.grad(out, inputs, w)


def assert_same_function(function, expected, inputs):
    """Equal values, and equal gradients of every input."""
    assert_close(function(*inputs), expected(*inputs))
    for found, wanted in zip(gradients(function, inputs), gradients(expected, inputs), strict=True):
        assert_close(found, wanted)
