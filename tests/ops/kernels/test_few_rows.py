"""The product of a few rows with a weight by one kernel, and where it is left to PyTorch."""

import pytest
import torch
from torch import nn

from infsa.ops import rows
from infsa.ops.dispatch import few_rows_kernel_runs
from infsa.ops.triton.few_rows import few_rows

from ..helpers import generator
from .helpers import DEVICE, DTYPES, unit


def drawn(seed, *shape, dtype):
    return torch.randn(shape, generator=generator(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "out"), [(48, 21), (1100, 9), (16, 1)], ids=str)
@torch.no_grad()
def test_values(dim, out, dtype, biased):
    x, weight, bias = (drawn(i, *s, dtype=dtype) for i, s in enumerate(((2, 1, dim), (out, dim), (out,))))
    found = few_rows(x, weight, bias if biased else None)
    expected = x.double() @ weight.double().mT + (bias.double() if biased else 0)
    assert found.shape == (2, 1, out)
    assert found.dtype == dtype
    largest = expected.abs().max().item()
    allowed = unit(largest, dtype) + dim * unit(largest, torch.float32)
    assert (found.double() - expected).abs().max().item() <= allowed


def test_who_takes_it(monkeypatch):
    layer = nn.Linear(8, 4).to(DEVICE)
    x = torch.randn(4, 8, device=DEVICE)
    weight, bias = layer.weight, layer.bias
    assert not few_rows_kernel_runs(x, weight, bias)
    with torch.no_grad():
        assert few_rows_kernel_runs(x, weight, bias)
        assert few_rows_kernel_runs(x, weight, None)
        for other in (bias[:1], bias.double(), torch.arange(8.0, device=DEVICE)[::2], bias[None]):
            assert not few_rows_kernel_runs(x, weight, other)
        assert not few_rows_kernel_runs(x[:, :4].contiguous(), weight, bias)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            rows.linear(x[:, :4].contiguous(), layer)
        torch.testing.assert_close(rows.linear(x, layer), layer(x), rtol=1e-5, atol=1e-5)
        for other in (torch.randn(5, 8, device=DEVICE), x[:0], x.double(), x.bfloat16(), x.mT.contiguous().mT):
            assert not few_rows_kernel_runs(other, weight, bias)
        assert not few_rows_kernel_runs(x.to("meta"), weight.to("meta"), None)
        with torch.autocast(DEVICE, torch.bfloat16):
            assert not few_rows_kernel_runs(x, weight, bias)
            assert rows.linear(x, layer).dtype == torch.bfloat16
