"""Properties of the mathematics that hold for every input: padding, causality, permutation, scale, rank."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import infsa

from . import oracles
from .helpers import (
    ACTIVATIONS,
    BATCH,
    IMPLS,
    assert_close,
    generator,
    head_gammas,
    lengths_mask,
    pure_masks,
    small_tiles,
    tokens,
)

ROUNDING = 1e-12  # of the largest output, in float64: the same sums in another order
seeds = st.integers(0, 2**31)
gammas = st.sampled_from([0.1, 0.7, 0.99, head_gammas()])
pure_options = st.fixed_dictionaries(
    {
        "activation": st.sampled_from(ACTIVATIONS),
        "is_causal": st.booleans(),
        "hops": st.sampled_from([1, 2, 3, math.inf]),
        "gamma": gammas,
        "impl": st.sampled_from(IMPLS),
    }
)
linear_options = st.fixed_dictionaries(
    {
        "activation": st.sampled_from(ACTIVATIONS),
        "iterations": st.integers(1, 3),
        "queries": st.integers(1, 5),
        "gamma": gammas,
        "impl": st.sampled_from(IMPLS),
    }
)


@dataclass(frozen=True)
class Padded:
    """A batch of sequences of several lengths, with padding on the right or scattered."""

    lengths: tuple[int, ...]
    n: int
    scattered: bool
    garbage: float
    seed: int

    def tokens_and_mask(self):
        mask = lengths_mask(self.lengths, self.n)
        if self.scattered:
            mask = torch.stack([row[torch.randperm(self.n, generator=generator(self.seed))] for row in mask])
        qkv = tokens(self.seed, self.n, value_width=3)
        return tuple(x.where(mask[:, None, :, None], self.garbage * (x + 1)) for x in qkv), mask


@st.composite
def padded_batches(draw, scattered=True, shortest=1):
    n = draw(st.integers(shortest, 9))
    lengths = tuple(draw(st.integers(shortest, n)) for _ in range(BATCH))
    garbage = draw(st.sampled_from([0.0, 1.0, 1e3]))
    return Padded(lengths, n, scattered and draw(st.booleans()), garbage, draw(seeds))


def assert_rows_alone(attend, qkv, mask, shared=False):
    """Each item of the padded batch equals its real tokens alone; its padding rows are zero."""
    together = attend(*qkv, mask)
    for b, real in enumerate(mask):
        alone = attend(*(x[b : b + 1, :, real] for x in qkv), None)
        if shared:
            assert_close(together[b : b + 1], alone, ROUNDING)
        else:
            assert_close(together[b : b + 1, :, real], alone, ROUNDING)
            assert not together[b, :, ~real].any()


@given(padded_batches(), pure_options)
def test_padded_pure_equals_unpadded(batch, options):
    qkv, mask = batch.tokens_and_mask()
    assert_rows_alone(lambda q, k, v, m: infsa.pure_attention(q, k, v, key_mask=m, **options), qkv, mask)


@given(padded_batches(shortest=5), linear_options)
def test_padded_linear_equals_unpadded(batch, options):
    qkv, mask = batch.tokens_and_mask()
    shared = options["queries"] == 1
    attend = infsa.linear_attention
    assert_rows_alone(lambda q, k, v, m: attend(q, k, v, key_mask=m, **options), qkv, mask, shared)


@given(padded_batches(scattered=False), st.integers(1, 5), st.sampled_from(ACTIVATIONS), st.sampled_from(IMPLS))
def test_right_padded_chunk_causal_equals_unpadded(batch, chunk_size, activation, impl):
    qkv, mask = batch.tokens_and_mask()
    options = {"causal": "chunk", "chunk_size": chunk_size, "activation": activation, "impl": impl}
    assert_rows_alone(lambda q, k, v, m: infsa.linear_attention(q, k, v, key_mask=m, **options), qkv, mask)


@given(padded_batches(), st.sampled_from(ACTIVATIONS), st.sampled_from(IMPLS), st.integers(1, 6))
def test_padded_cross_attention_equals_unpadded(batch, activation, impl, n_q):
    """Keys padded, queries all real."""
    (_, k, v), mask = batch.tokens_and_mask()
    q, _, _ = tokens(0, n_q)
    for attend in (infsa.pure_attention, infsa.linear_attention):
        options = {"activation": activation, "impl": impl}
        every_query = torch.ones(BATCH, n_q, dtype=torch.bool)
        together = attend(q, k, v, key_mask=mask, query_mask=every_query, **options)
        for b, real in enumerate(mask):
            alone = attend(q[b : b + 1], k[b : b + 1, :, real], v[b : b + 1, :, real], **options)
            assert_close(together[b : b + 1], alone, ROUNDING)


@given(seeds, pure_options, st.integers(1, 3))
def test_batch_items_do_not_see_each_other(seed, options, hops):
    options = options | {"hops": hops}
    one, two = tokens(seed, 5), tokens(seed + 1, 5)
    mixed = tuple(torch.cat([x[:1], y[1:]]) for x, y in zip(one, two, strict=True))
    for attend in (infsa.pure_attention, lambda *x, impl, **_: infsa.linear_attention(*x, impl=impl)):
        assert torch.equal(attend(*one, **options)[:1], attend(*mixed, **options)[:1])


@dataclass(frozen=True)
class Future:
    """n tokens, and the same with everything from `place` on replaced by tokens of another size."""

    n: int
    place: int
    size: float
    seed: int

    def both(self):
        now, other = tokens(self.seed, self.n), tokens(self.seed + 1, self.n)
        start, size = self.place, self.size
        later = (torch.cat([x[:, :, :start], size * y[:, :, start:]], 2) for x, y in zip(now, other, strict=True))
        return now, tuple(later)


@st.composite
def futures(draw, longest=14):
    n = draw(st.integers(2, longest))
    return Future(n, draw(st.integers(1, n - 1)), draw(st.sampled_from([0.0, 1.0, 1e6])), draw(seeds))


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@given(futures(), pure_options, st.sampled_from(["none", "key", "pairs", "bias"]))
def test_the_future_changes_no_earlier_pure_row(hops, case, options, masks):
    options = options | {"is_causal": True, "hops": hops} | pure_masks(masks, case.n, case.n)
    first, second = (infsa.pure_attention(*x, **options)[:, :, : case.place] for x in case.both())
    assert torch.equal(first, second)


@given(futures(longest=60), st.sampled_from([1, 2]))
def test_the_future_changes_no_earlier_row_of_another_tile(case, hops):
    options = {"is_causal": True, "hops": hops, "impl": "chunked"}
    with small_tiles():
        first, second = (infsa.pure_attention(*x, **options)[:, :, : case.place] for x in case.both())
    assert torch.equal(first, second)


@given(futures(), st.integers(1, 6), st.sampled_from(ACTIVATIONS), st.sampled_from(IMPLS))
def test_the_future_changes_no_earlier_chunk(case, chunk_size, activation, impl):
    """A token of chunk c hears chunks before c only: the chunk that changes keeps its rows, too."""
    options = {"causal": "chunk", "chunk_size": chunk_size, "activation": activation, "impl": impl}
    end = (case.place // chunk_size + 1) * chunk_size
    first, second = (infsa.linear_attention(*x, **options)[:, :, :end] for x in case.both())
    assert torch.equal(first, second)


@given(seeds, st.integers(1, 9), pure_options)
def test_pure_is_equivariant_under_permutations(seed, n, options):
    qkv = tokens(seed, n)
    order = torch.randperm(n, generator=generator(seed))
    options = options | {"is_causal": False}
    permuted = infsa.pure_attention(*(x[:, :, order] for x in qkv), **options)
    assert_close(permuted, infsa.pure_attention(*qkv, **options)[:, :, order], ROUNDING)


@given(seeds, st.integers(1, 9), linear_options)
def test_linear_is_invariant_under_permutations(seed, n, options):
    qkv = tokens(seed, n)
    order = torch.randperm(n, generator=generator(seed))
    options = options | {"queries": 1}
    permuted = infsa.linear_attention(*(x[:, :, order] for x in qkv), **options)
    assert_close(permuted, infsa.linear_attention(*qkv, **options), 1e-10)


@given(
    seeds,
    st.floats(1e-2, 1e4),
    st.floats(1e-2, 1e4),
    st.sampled_from(["relu", "abs"]),
    st.sampled_from(IMPLS),
)
def test_pure_ignores_the_scale_of_queries_and_keys(seed, a, b, activation, impl):
    """Z is R v / (F + ε) with R and F of degree one: only the share of ε moves, by at most ε/F."""
    q, k, v = tokens(seed, 6)
    eps = 1e-6
    scores, _ = oracles.pure_scores(q, k)
    positive = scores if activation == "abs" else scores.clip(min=0)
    norm = math.sqrt((positive**2).sum((2, 3)).min())
    options = {"activation": activation, "impl": impl, "eps": eps}
    tolerance = eps / norm + eps / (a * b * norm) + ROUNDING
    found, expected = (
        infsa.pure_attention(a * q, b * k, v, **options),
        infsa.pure_attention(q, k, v, **options),
    )
    assert_close(found, expected, tolerance)


@given(seeds, pure_options)
def test_pure_is_linear_in_the_values(seed, options):
    q, k, v = tokens(seed, 5)
    w = tokens(seed + 1, 5)[2]
    found = infsa.pure_attention(q, k, 2 * v - w, **options)
    expected = 2 * infsa.pure_attention(q, k, v, **options) - infsa.pure_attention(q, k, w, **options)
    assert_close(found, expected, 1e-11)


@given(seeds, pure_options, st.sampled_from(["none", "key_query", "everything"]))
def test_pure_weights_times_values_is_pure_attention(seed, options, masks):
    q, k, v = tokens(seed, 5)
    options = options | pure_masks(masks, 5, 5)
    gamma, impl, _ = options.pop("gamma"), options.pop("impl"), options.pop("hops")
    column = gamma[:, None, None] if torch.is_tensor(gamma) else gamma
    attention = infsa.pure_attention(q, k, v, gamma=gamma, impl=impl, **options)
    assert_close(attention, column * (infsa.pure_weights(q, k, **options) @ v), ROUNDING)


@given(padded_batches(shortest=5), linear_options)
def test_linear_weights_times_values_is_linear_attention(batch, options):
    (q, k, v), mask = batch.tokens_and_mask()
    options = options | {"queries": 1, "key_mask": mask}
    gamma, impl = options.pop("gamma"), options.pop("impl")
    column = gamma[:, None, None] if torch.is_tensor(gamma) else gamma
    attention = infsa.linear_attention(q, k, v, gamma=gamma, impl=impl, **options)
    weights = infsa.linear_weights(q, k, **options)
    assert not weights[~mask[:, None].expand_as(weights)].any()
    assert_close(attention, column * (weights[:, :, None] @ v), ROUNDING)


@given(seeds, st.integers(2, 12), st.integers(1, 12), st.sampled_from(IMPLS))
def test_the_rank_of_linear_is_at_most_the_number_of_blocks(seed, n, queries, impl):
    q, k, v = tokens(seed, n, width=12)
    queries = min(queries, n)
    out = infsa.linear_attention(q, k, v, queries=queries, impl=impl).expand(-1, -1, n, -1)
    assert (torch.linalg.matrix_rank(out) <= queries).all()
    assert len(torch.unique(out[0, 0], dim=0)) <= queries


@given(seeds, st.integers(2, 9), st.sampled_from(IMPLS))
def test_one_block_for_each_token_is_row_normalised_relu_attention(seed, n, impl):
    q, k, v = tokens(seed, n)
    scores = (q @ k.mT).relu()
    expected = 0.7 * torch.nn.functional.normalize(scores, p=1, dim=-1, eps=1e-200) @ v
    found = infsa.linear_attention(q, k, v, queries=n, eps=1e-200, impl=impl)
    assert_close(found, expected, 1e-11)


@given(seeds, st.sampled_from(ACTIVATIONS), st.sampled_from(IMPLS), st.floats(0.1, 0.9), st.integers(1, 60))
def test_hops_converge_geometrically(seed, activation, impl, gamma, hops):
    """‖Â‖ ≤ 1, so what is missing after K hops is at most γ^{K+1} / (1 − γ) of ‖v‖."""
    q, k, v = tokens(seed, 6)
    options = {"gamma": gamma, "activation": activation, "impl": impl}
    missing = infsa.pure_attention(q, k, v, hops=math.inf, **options)
    missing = missing - infsa.pure_attention(q, k, v, hops=hops, **options)
    bound = gamma ** (hops + 1) / (1 - gamma) * v.norm(dim=(2, 3))
    assert (missing.norm(dim=(2, 3)) <= bound + ROUNDING * v.norm()).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_many_causal_hops_reach_the_limit(impl):
    q, k, v = tokens(0, 8)
    limit = infsa.pure_attention(q, k, v, gamma=0.5, is_causal=True, hops=math.inf, impl=impl)
    assert_close(infsa.pure_attention(q, k, v, gamma=0.5, is_causal=True, hops=100, impl=impl), limit)


@pytest.mark.parametrize("gamma", [0.999, 1.5, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("impl", IMPLS)
def test_the_limit_solves_its_equation_or_raises(impl, dtype, gamma):
    """A tensor γ may pass 1, where the series diverges: what it ran into is never returned."""
    n, eps = 5, 1e-6
    ones = torch.ones(1, 1, n, 2, dtype=dtype)
    decay = torch.tensor(gamma, dtype=dtype)
    norm = n * math.sqrt(2)
    row = decay.item() * norm / (norm + eps)  # every row of γÂ sums to this; every other eigenvalue is 0
    try:
        z = infsa.pure_attention(ones, ones, ones, gamma=decay, hops=math.inf, eps=eps, impl=impl)
    except RuntimeError:
        assert gamma > 1
    else:
        low, high = sorted([1, abs(1 - row)])  # the eigenvalues of I − γÂ
        assert_close(z, ones.double() * row / (1 - row), 10 * torch.finfo(dtype).eps * high / low)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), seeds)
def test_shapes_and_types(dtype, batch, heads, n, width, value_width, seed):
    q, k, v = tokens(seed, n, width=width, value_width=value_width, batch=batch, heads=heads, dtype=dtype)
    for impl in (*IMPLS, "auto"):
        pure = infsa.pure_attention(q, k, v, impl=impl)
        one = infsa.linear_attention(q, k, v, impl=impl)
        every = infsa.linear_attention(q, k, v, causal="chunk", chunk_size=2, impl=impl)
        assert {pure.dtype, one.dtype, every.dtype} == {dtype}
        assert pure.shape == every.shape == (batch, heads, n, value_width)
        assert one.shape == (batch, heads, 1, value_width)
    assert infsa.pure_weights(q, k).shape == (batch, heads, n, n)
    assert infsa.linear_weights(q, k).shape == (batch, heads, n)
