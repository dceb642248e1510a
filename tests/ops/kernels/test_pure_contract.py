"""What must hold to the bit, and at the edges of the number types."""

import pytest
import torch

import infsa

from ..helpers import leaves, lengths_mask
from .helpers import DEVICE, DTYPES, attend, problem, value_and_gradients

causality = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


@pytest.fixture
def poisoned():
    """Memory that nothing has written yet holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@causality
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_two_runs_are_equal_to_the_bit_and_every_element_is_written(poisoned, dtype, is_causal):
    assert torch.empty(3).isnan().all()
    inputs = problem(0, 41, width=20, dtype=dtype, heads=1)
    first, second = (value_and_gradients(attend(is_causal=is_causal), inputs) for _ in range(2))
    for x, y in zip(first, second, strict=True):
        assert x.isfinite().all()
        assert torch.equal(x, y)


def test_the_future_changes_no_bit_of_the_past():
    q, k, v, gamma = problem(1, 50, heads=1)
    whole = attend(is_causal=True)(q, k, v, gamma)
    for x in (q, k, v):
        x[:, :, 33:] = 100.0
    changed = attend(is_causal=True)(q, k, v, gamma)
    assert torch.equal(whole[:, :, :33], changed[:, :, :33])
    assert not torch.equal(whole[:, :, 33:], changed[:, :, 33:])


@causality
def test_padding_is_free(is_causal):
    """The real tokens of a padded batch get what they get alone, and NaN in padding reaches nothing."""
    q, k, v, gamma = problem(2, 40, heads=1)
    alone = value_and_gradients(attend(is_causal=is_causal), (q[:, :, :23], k[:, :, :23], v[:, :, :23], gamma))[0]
    for x in (q, k, v):
        x[:, :, 23:] = float("nan")
    inputs = leaves(q, k, v)
    mask = lengths_mask([23], 40).to(DEVICE)
    out = infsa.pure_attention(*inputs, gamma=gamma, key_mask=mask, is_causal=is_causal, impl="triton")
    torch.testing.assert_close(out[:, :, :23], alone, rtol=1e-5, atol=1e-6)
    assert not out[:, :, 23:].any()
    out.square().sum().backward()
    for x in inputs:
        assert x.grad.isfinite().all()
        assert not x.grad[:, :, 23:].any()


@causality
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_dead_heads(dtype, is_causal):
    """No positive score: output and gradients are zero."""
    q, k, v, gamma = problem(3, 20, dtype=dtype, heads=1)
    found = value_and_gradients(attend(is_causal=is_causal), (q.abs(), -k.abs(), v, gamma))
    assert not any(x.any() for x in found)


@causality
@pytest.mark.parametrize(
    ("dtype", "activation"), [(torch.float16, "relu"), (torch.float16, "gelu"), (torch.bfloat16, "abs")], ids=str
)
def test_the_largest_half_precision_tokens(dtype, activation, is_causal):
    g = torch.Generator().manual_seed(4)
    q, k, v = ((6e4 * torch.randn(1, 1, 20, 16, generator=g).sign()).to(dtype).to(DEVICE) for _ in range(3))
    gamma = torch.tensor(0.7, device=DEVICE)
    found = value_and_gradients(attend(activation=activation, is_causal=is_causal), (q, k, v, gamma))
    assert all(x.isfinite().all() for x in found)


@causality
def test_large_gradients_in_float16(is_causal):
    """A loss scale of 1024 leaves no trace but the scale."""
    inputs = problem(5, 40, dtype=torch.float16, heads=1)
    out = attend(is_causal=is_causal)(*leaves(*inputs))
    w = torch.randn(out.shape, generator=torch.Generator().manual_seed(6)).to(out)
    small, large = (
        torch.autograd.grad(attend(is_causal=is_causal)(*x), x, s * w)
        for s, x in ((1, leaves(*inputs)), (1024, leaves(*inputs)))
    )
    for x, y in zip(small, large, strict=True):
        assert y.isfinite().all()
        torch.testing.assert_close(1024 * x.float(), y.float(), rtol=2e-3, atol=1024 * 2**-14 * x.abs().max().item())


@causality
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_scale_of_the_queries_does_not_matter(dtype, is_causal):
    """Z does not change with the size of q but for ε, even where squared scores leave float32."""
    q, k, v, gamma = problem(7, 20, dtype=dtype)
    scale = 2.0**66 if dtype == torch.float32 else 2.0**12
    function = attend(is_causal=is_causal, eps=0.0)
    assert torch.equal(function(q * scale, k, v, gamma), function(q, k, v, gamma))


def test_scores_beyond_bfloat16s_squares_are_not_silent():
    q, k, v, gamma = problem(8, 20, dtype=torch.bfloat16)
    assert attend()(q * 2.0**40, k * 2.0**40, v, gamma).isnan().any()


def test_float16_saturates():
    """Â of a dominant row has rows of norm 1 but sums up to √N."""
    q = torch.ones(1, 1, 1, 16, dtype=torch.float16, device=DEVICE)
    k = torch.ones(1, 1, 64, 16, dtype=torch.float16, device=DEVICE)
    v = torch.full((1, 1, 64, 16), 6e4, dtype=torch.float16, device=DEVICE)
    assert (infsa.pure_attention(q, k, v, gamma=0.9, impl="triton") == 65504).all()


@causality
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [0, 1, 2], ids="qkv")
def test_a_number_that_is_none_is_not_hidden(place, dtype, is_causal):
    """The output is NaN where the reference is, and a gradient is not finite throughout if the reference's is not."""
    inputs = problem(9, 33, dtype=dtype, heads=1)
    inputs[place][0, 0, 10, 3] = float("nan")
    found, expected = (value_and_gradients(attend(i, is_causal=is_causal), inputs) for i in ("triton", "reference"))
    assert torch.equal(found[0].isnan(), expected[0].isnan())
    for x, y in zip(found[1:], expected[1:], strict=True):
        assert x.isnan().any() or not y.isnan().any()
