"""Few rows by sums: the values of a linear layer, and the ordinary layer wherever it matters."""

import pytest
import torch
from torch import nn

from infsa.ops import rows
from infsa.ops.dispatch import sums_pay

from .helpers import generator


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_sums_are_the_layer(bias, dtype):
    layer = nn.Linear(24, 7, bias=bias, dtype=dtype)
    x = torch.randn(3, 24, generator=generator(0)).to(dtype)
    torch.testing.assert_close(rows.linear_by_sums(x, layer.weight, layer.bias), layer(x))
    weight = torch.randn(3, 5, 24, generator=generator(1)).to(dtype)  # one per row
    torch.testing.assert_close(rows.linear_by_sums(x, weight, None), (weight @ x.unsqueeze(-1)).squeeze(-1))


def test_only_few_rows_compiled_on_a_gpu_and_without_gradients(monkeypatch):
    x, weight = torch.randn(2, 8).as_subclass(OnGpu), torch.randn(4, 8)
    assert not sums_pay(x, weight)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad():
        assert sums_pay(x, weight)
        assert not sums_pay(x, weight.bfloat16())
        assert not sums_pay(torch.randn(2, 8), weight)
        assert not sums_pay(torch.randn(5, 8).as_subclass(OnGpu), weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert not sums_pay(x, weight)
    assert not sums_pay(x, weight)


@torch.no_grad()
def test_a_layer_that_is_not_plain_or_has_hooks_is_called(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    heard = []
    layer = nn.Linear(8, 4)
    x = torch.randn(2, 8).as_subclass(OnGpu)
    torch.testing.assert_close(rows.linear(x, layer).as_subclass(torch.Tensor), layer(x.as_subclass(torch.Tensor)))
    layer.register_forward_hook(lambda *_: heard.append(1))
    rows.linear(x, layer)
    assert heard
    assert rows.linear(x, nn.Identity()) is x
