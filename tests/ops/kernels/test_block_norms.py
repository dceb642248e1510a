"""LayerNorm of a block with the residual beside it, both ways, against float64."""

import pytest
import torch
from torch.nn import functional as F

from infsa.models.add_row import AddRow
from infsa.models.gelu_gradient import GeluGradient
from infsa.models.norm_gradient import NormGradient

from ..helpers import generator
from .helpers import DEVICE, DTYPES, unit

EPS = 1e-6
SHAPES = [(3, 21, 48), (1, 300, 20), (2, 5, 1100)]


def drawn(seed, *shape, dtype):
    return torch.randn(shape, generator=generator(seed)).to(DEVICE, dtype)


def assert_near(found, expected, rounded_in, terms=1):
    """Within the rounding of what is summed in float32 and rounded once, for numbers of the size of the expected."""
    assert found.isfinite().all()
    largest = expected.abs().max().item()
    allowed = unit(largest, rounded_in) + terms * unit(largest, torch.float32)
    assert (found.double() - expected).abs().max().item() <= allowed


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES[::2], ids=str)
def test_row_and_norm(shape, dtype, biased):
    batch, _, dim = shape
    x, row = drawn(1, *shape, dtype=dtype), drawn(2, batch, dim, dtype=dtype)
    bias, gain, shift = (drawn(seed, dim, dtype=dtype) for seed in (3, 4, 5))
    add_row = AddRow(torch.Size(shape), x.device, EPS, biased)
    found = add_row(x, row, bias if biased else None, gain, shift, True)
    out, normal, y, mean, scale = found
    exact = x.double() + row.double()[:, None]
    assert_near(y.view(shape), exact, dtype)
    assert_near(out, exact + (bias.double() if biased else 0), dtype)
    y = y.double()
    assert_near(normal, F.layer_norm(y, (dim,), gain.double(), shift.double(), EPS), dtype, dim)
    assert_near(mean, y.mean(1), torch.float32, dim)
    assert_near(scale, (y.var(1, correction=0) + EPS).rsqrt(), torch.float32, dim)
    alone = add_row(x, row, bias if biased else None, gain, shift, False)
    assert torch.equal(alone[0], out)
    assert torch.equal(alone[1], normal)
    assert alone[2:] == (None, None, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape, dtype):
    dim = shape[2]
    x, pull, added = (drawn(seed, *shape, dtype=dtype) for seed in (1, 2, 3))
    gain, shift = drawn(4, dim, dtype=dtype), drawn(5, dim, dtype=dtype)
    leaves = [y.double().requires_grad_() for y in (x, gain, shift)]
    normal = F.layer_norm(leaves[0], (dim,), *leaves[1:], EPS)
    on_x, on_gain, on_shift = torch.autograd.grad(normal, leaves, pull.double())
    mean = x.float().mean(2).flatten()
    scale = (x.float().var(2, correction=0) + EPS).rsqrt().flatten()
    gradient = NormGradient(torch.Size(shape), x.device)
    on_x = on_x + added.double()
    expected = on_x, on_x.sum(1), on_x.sum((0, 1)), on_gain, on_shift, added.double().sum((0, 1))
    for summed in (False, True):
        found = gradient(pull, x, added, mean, scale, gain, summed)
        again = gradient(pull, x, added, mean, scale, gain, summed)
        assert (found[5] is None) is not summed
        for y, other, exact in zip(found[: 5 + summed], again, expected, strict=False):
            assert y.dtype == dtype
            assert_near(y, exact, dtype, 4 * shape[1] * dim)
            assert torch.equal(y, other)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(19, 48), (3, 600), (70, 5)], ids=str)
def test_gelu(shape, dtype, approximate):
    """No further from float64 than the type rounds, beside the sums that the next launch adds up."""
    x, pull = 2 * drawn(1, *shape, dtype=dtype), drawn(2, *shape, dtype=dtype)
    exact = torch.ops.aten.gelu_backward(pull.double(), x.double(), approximate=approximate)
    gradient = GeluGradient(*shape, x.device, approximate)
    found = pull.clone()
    sums = gradient(found, x)
    assert_near(found, exact, dtype, 16)
    assert_near(sums.sum(0), found.double().sum(0), torch.float32, shape[0])
    again = pull.clone()
    assert torch.equal(gradient(again, x), sums)
    assert torch.equal(again, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_other_spans(dtype):
    """Wider than the tokens, as wide, and narrower."""
    tokens, mean = drawn(1, 2, 9, 48, dtype=dtype), torch.zeros(18, device=DEVICE)
    for width in (300, 48, 5):
        hidden = drawn(2, 70, width, dtype=torch.float32)
        gradient = NormGradient(tokens.shape, tokens.device)
        pulls = gradient(tokens, tokens, tokens, mean, mean, tokens[0, 0].contiguous(), True, hidden)
        assert pulls[6].shape == (width,)
        assert_near(pulls[6], hidden.double().sum(0), dtype, 70)
