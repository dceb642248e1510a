"""The mergeable sums of Linear-InfSA and step-by-step decoding of Pure InfSA: any split gives the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import infsa
from infsa.ops import energies, key_scores

from . import oracles
from .helpers import (
    ACTIVATIONS,
    BATCH,
    HEADS,
    assert_close,
    generator,
    head_gammas,
    lengths_mask,
    random_mask,
    tokens,
)

ROUNDING = 1e-12
seeds = st.integers(0, 2**31)


@st.composite
def partitions(draw, longest=20):
    """The numbers 0 .. n − 1 in random order, cut into parts."""
    n = draw(st.integers(1, longest))
    order = torch.randperm(n, generator=generator(draw(seeds)))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=5))) if n > 1 else []
    return order.tensor_split(cuts)


def zero(width, groups=1):
    return infsa.LinearState.zero(BATCH, HEADS, width, groups=groups, dtype=torch.float64)


def one_by_one(states):
    total = states[0]
    for state in states[1:]:
        total = total.merge(state)
    return total


def as_a_tree(states):
    while len(states) > 1:
        pairs = [states[i : i + 2] for i in range(0, len(states), 2)]
        states = [one_by_one(pair) for pair in reversed(pairs)]
    return states[0]


def in_place_of(start, parts, add):
    for part in parts:
        start = add(start, part)
    return start


WAYS = {
    "updates": in_place_of,
    "chain": lambda start, parts, add: one_by_one([add(start, p) for p in parts]),
    "tree": lambda start, parts, add: as_a_tree([add(start, p) for p in parts]),
}


def linear_in_parts(q, k, v, parts, way, activation="relu", mask=None):
    """Linear-InfSA from its two passes, each over the given parts of the tokens."""

    def some(part):
        return None if mask is None else mask[:, part]

    first = WAYS[way](zero(q.shape[-1]), parts, lambda s, p: s.update(energies(q[:, :, p], some(p)), q[:, :, p]))
    centre = first.finish()

    def add(state, p):
        return state.update(key_scores(centre, k[:, :, p], some(p), activation), v[:, :, p])

    return WAYS[way](zero(v.shape[-1]), parts, add)


@pytest.mark.parametrize("way", WAYS)
@given(partitions(), seeds, st.sampled_from(ACTIVATIONS), st.booleans())
def test_any_split_in_any_order_is_linear_attention(way, parts, seed, activation, masked):
    n = sum(map(len, parts))
    q, k, v = tokens(seed, n, value_width=3)
    mask = random_mask((BATCH, n), seed) if masked else None
    state = linear_in_parts(q, k, v, parts, way, activation, mask)
    whole = infsa.linear_attention(q, k, v, gamma=head_gammas(), activation=activation, key_mask=mask)
    # GELU's signed sum cancels: compare with the size of what was summed
    size = max(1.0, v.abs().max().item() / max(whole.abs().max().item(), 1e-30))
    assert_close(head_gammas()[:, None, None] * state.finish(), whole, ROUNDING * size)


@given(partitions(), seeds)
def test_the_mass_is_the_sum_of_the_weights(parts, seed):
    q, k, v = tokens(seed, sum(map(len, parts)))
    mass = linear_in_parts(q, k, v, parts, "tree").mass()
    assert mass.shape == (BATCH, HEADS, 1)
    assert_close(mass[..., 0], infsa.linear_weights(q, k).sum(-1), ROUNDING)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_finish_and_mass_use_eps(eps):
    w = torch.randn(BATCH, HEADS, 2, 6, generator=generator(0), dtype=torch.float64)
    _, _, v = tokens(1, 6)
    state = zero(4, groups=2).update(w, v)
    total = w.abs().sum(-1) + eps
    assert_close(state.finish(eps), (w @ v) / total[..., None], ROUNDING)
    assert_close(state.mass(eps), w.sum(-1) / total, ROUNDING)


def test_the_state_of_no_tokens_is_zero():
    state = zero(4, groups=3)
    assert torch.equal(state.finish(), torch.zeros(BATCH, HEADS, 3, 4, dtype=torch.float64))
    assert torch.equal(state.mass(), torch.zeros(BATCH, HEADS, 3, dtype=torch.float64))


def a_state(seed, groups=2):
    w = torch.randn(BATCH, HEADS, groups, 5, generator=generator(seed), dtype=torch.float64)
    return zero(4, groups).update(w, tokens(seed, 5)[2])


def assert_same(a, b, equal):
    for x, y in ((a.finish(), b.finish()), (a.mass(), b.mass())):
        if equal:
            assert torch.equal(x, y)
        else:
            assert_close(x, y, ROUNDING)


@given(seeds)
def test_a_commutative_monoid(seed):
    a, b, c = a_state(seed), a_state(seed + 1), a_state(seed + 2)
    nothing = zero(4, groups=2)
    assert_same(a.merge(nothing), a, equal=True)
    assert_same(nothing.merge(a), a, equal=True)
    assert_same(a.merge(b), b.merge(a), equal=True)
    big = max(1.0, 1 / a.merge(b).merge(c).finish().abs().max().item())
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    assert_close(left.finish(), right.finish(), ROUNDING * big)


def test_states_are_values():
    """update and merge leave their operands alone."""
    a, b = a_state(0), a_state(1)
    before = a.finish().clone(), b.finish().clone()
    a.merge(b)
    a.update(torch.ones(BATCH, HEADS, 2, 3, dtype=torch.float64), tokens(2, 3)[2])
    assert torch.equal(a.finish(), before[0])
    assert torch.equal(b.finish(), before[1])


def test_values_shared_by_the_heads():
    """Pool first: (B, 1, N, D) stands for the same values in every head."""
    w = torch.rand(BATCH, HEADS, 6, generator=generator(0), dtype=torch.float64)
    x = torch.randn(BATCH, 1, 6, 12, generator=generator(1), dtype=torch.float64)
    shared = zero(12).update(w, x).finish()
    assert_close(shared, zero(12).update(w, x.expand(-1, HEADS, -1, -1)).finish(), ROUNDING)


def test_weights_without_a_group_axis():
    w = torch.rand(BATCH, HEADS, 6, generator=generator(0), dtype=torch.float64)
    v = tokens(1, 6)[2]
    assert torch.equal(zero(4).update(w, v).finish(), zero(4).update(w[:, :, None], v).finish())


@given(partitions(), seeds)
def test_several_groups_are_several_queries(parts, seed):
    n = sum(map(len, parts))
    m = min(3, n)
    q, k, v = tokens(seed, n)
    block = torch.tensor(oracles.blocks([True] * n, m))
    member = (block == torch.arange(m)[:, None]).double()  # (m, N)
    first, second = zero(4, m), zero(4, m)
    for p in parts:
        first = first.update(energies(q[:, :, p])[:, :, None] * member[:, p], q[:, :, p])
    for p in parts:
        second = second.update(key_scores(first.finish(), k[:, :, p]), v[:, :, p])
    out = 0.7 * second.finish()[:, :, block]
    expected = infsa.linear_attention(q, k, v, queries=m).expand_as(out)
    assert_close(out, expected, ROUNDING)


def test_energies_and_scores():
    q, k, _ = tokens(3, 6)
    mask = random_mask((BATCH, 6), 4)
    assert_close(energies(q, mask), torch.linalg.vector_norm(q, dim=-1) * mask[:, None], ROUNDING)
    centre = tokens(4, 2)[0]
    for activation in ACTIVATIONS:
        scores = [
            oracles.key_scores(
                centre[b, h, r].numpy(),
                k[b, h].numpy(),
                mask[b].nonzero()[:, 0],
                oracles.ACTIVATIONS[activation],
            )
            for b in range(BATCH)
            for h in range(HEADS)
            for r in range(2)
        ]
        expected = torch.tensor(np.array(scores)).view(BATCH, HEADS, 2, 6)
        assert_close(key_scores(centre, k, mask, activation), expected, ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    """65,536 ones: a half-precision sum would stop growing long before."""
    state = infsa.LinearState.zero(1, 1, 1, dtype=dtype)
    ones = torch.ones(1, 1, 4096, 1, dtype=dtype)
    for _ in range(16):
        state = state.update(ones[..., 0], ones)
    assert torch.equal(state.finish().float(), torch.ones(1, 1, 1, 1))
    assert (state.absolute == 65536).all()


def test_a_split_is_differentiable():
    q, k, v = (x.requires_grad_() for x in tokens(5, 7))
    parts = torch.arange(7).tensor_split([2, 3])
    w = torch.randn(BATCH, HEADS, 1, 4, generator=generator(6), dtype=torch.float64)
    split = torch.autograd.grad(linear_in_parts(q, k, v, parts, "tree").finish(), (q, k, v), 0.7 * w)
    whole = torch.autograd.grad(infsa.linear_attention(q, k, v), (q, k, v), w)
    for x, y in zip(split, whole, strict=True):
        assert_close(x, y, ROUNDING)


@st.composite
def steps(draw, longest=12):
    """Sizes of consecutive steps that add up to a sequence."""
    return draw(st.lists(st.integers(1, 5), min_size=1, max_size=longest))


def decode(q, k, v, sizes, mask=None, **options):
    state = infsa.PureDecodeState(**options)
    outputs, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        some = {} if mask is None else {"key_mask": mask[:, part]}
        outputs.append(state.step(q[:, :, part], k[:, :, part], v[:, :, part], **some))
        start += size
        assert len(state) == start
    return torch.cat(outputs, 2)


@given(steps(), seeds, st.sampled_from(ACTIVATIONS), st.sampled_from([0.3, head_gammas()]))
def test_decoding_in_steps_is_causal_attention(sizes, seed, activation, gamma):
    q, k, v = tokens(seed, sum(sizes), value_width=3)
    options = {"activation": activation, "gamma": gamma, "eps": 1e-4}
    whole = infsa.pure_attention(q, k, v, is_causal=True, **options)
    assert_close(decode(q, k, v, sizes, **options), whole, ROUNDING)


@pytest.mark.parametrize("side", ["left", "right", "scattered"])
@given(steps(), seeds)
def test_decoding_a_padded_batch(side, sizes, seed):
    n = sum(sizes)
    q, k, v = (100 * x for x in tokens(seed, n))
    mask = lengths_mask([(n + 1) // 2, n], n)
    if side == "left":
        mask = mask.flip(1)
    elif side == "scattered":
        mask = random_mask((BATCH, n), seed)
    out = decode(q, k, v, sizes, mask)
    assert_close(out, infsa.pure_attention(q, k, v, is_causal=True, key_mask=mask), ROUNDING)
    assert not out.mT[(~mask)[:, None, None].expand_as(out.mT)].any()
    for b, real in enumerate(mask):
        alone = infsa.pure_attention(*(x[b : b + 1, :, real] for x in (q, k, v)), is_causal=True)
        assert_close(out[b : b + 1, :, real], alone, ROUNDING)


def test_a_long_prompt_then_single_tokens():
    n = 300
    q, k, v = tokens(7, n, batch=1, heads=2)
    out = decode(q, k, v, [290] + [1] * 10)
    assert_close(out, infsa.pure_attention(q, k, v, is_causal=True), ROUNDING)


def test_a_mask_that_begins_late():
    """Steps with and without key_mask may follow each other; no mask means all real."""
    q, k, v = tokens(8, 6)
    state = infsa.PureDecodeState()
    first = state.step(q[:, :, :3], k[:, :, :3], v[:, :, :3])
    late = random_mask((BATCH, 2), 9)
    second = state.step(q[:, :, 3:5], k[:, :, 3:5], v[:, :, 3:5], key_mask=late)
    third = state.step(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:])
    mask = torch.cat([torch.ones(BATCH, 3, dtype=torch.bool), late, torch.ones(BATCH, 1, dtype=torch.bool)], 1)
    whole = infsa.pure_attention(q, k, v, is_causal=True, key_mask=mask)
    assert_close(torch.cat([first, second, third], 2), whole, ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_decoding_keeps_the_type(dtype):
    q, k, v = tokens(9, 5, dtype=dtype)
    assert decode(q, k, v, [2, 1, 2]).dtype == dtype


WRONG_STEPS = {
    "batch": lambda x: x[:1],
    "heads": lambda x: x[:, :2],
    "width": lambda x: x[..., :3],
    "dtype": lambda x: x.float(),
}


@pytest.mark.parametrize("case", WRONG_STEPS)
def test_a_step_must_fit_the_past(case):
    q, k, v = tokens(10, 3)
    state = infsa.PureDecodeState()
    state.step(q, k, v)
    wrong = [WRONG_STEPS[case](x) for x in (q, k, v)]
    with pytest.raises((ValueError, TypeError)) as caught:
        state.step(*wrong)
    assert "\n" not in str(caught.value)
    assert len(state) == 3


@pytest.mark.parametrize("options", [{"gamma": 1.5}, {"activation": "softmax"}, {"eps": -1.0}], ids=str)
def test_a_wrong_decode_state(options):
    (value,) = options.values()
    with pytest.raises((ValueError, TypeError), match=str(value)):
        infsa.PureDecodeState(**options).step(*tokens(11, 2))
