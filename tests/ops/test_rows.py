"""Few rows by sums: the values of a linear layer, and the ordinary layer wherever it matters."""

import pytest
import torch
from torch import nn

import infsa
from infsa.ops import rows

from .helpers import generator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_sums_are_the_layer(bias, dtype):
    layer = nn.Linear(24, 7, bias=bias, dtype=dtype)
    x = torch.randn(3, 24, generator=generator(0)).to(dtype)
    torch.testing.assert_close(rows.linear_by_sums(x, layer.weight, layer.bias), layer(x))
    weight = torch.randn(3, 5, 24, generator=generator(1)).to(dtype)  # one per row
    torch.testing.assert_close(rows.linear_by_sums(x, weight, None), (weight @ x.unsqueeze(-1)).squeeze(-1))


def test_only_few_rows_compiled_on_a_gpu_and_without_gradients(monkeypatch):
    class OnGpu(torch.Tensor):
        is_cuda = True

    x, weight = torch.randn(2, 8).as_subclass(OnGpu), torch.randn(4, 8)
    assert not rows.by_sums(x, weight)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad():
        assert rows.by_sums(x, weight)
        assert not rows.by_sums(x, weight.bfloat16())
        assert not rows.by_sums(torch.randn(2, 8), weight)
        assert not rows.by_sums(torch.randn(5, 8).as_subclass(OnGpu), weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert not rows.by_sums(x, weight)
    assert not rows.by_sums(x, weight)


def test_a_layer_that_is_not_plain_or_listened_to_is_called(monkeypatch):
    monkeypatch.setattr(rows, "by_sums", lambda x, weight: True)
    heard = []
    layer = nn.Linear(8, 4)
    x = torch.randn(2, 8)
    torch.testing.assert_close(rows.linear(x, layer), layer(x))
    layer.register_forward_hook(lambda *_: heard.append(1))
    rows.linear(x, layer)
    assert heard
    assert rows.linear(x, nn.Identity()) is x


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"tied": False, "extra_proj": True}])
def test_a_layer_of_linear_infsa_by_sums(options, monkeypatch):
    torch.manual_seed(0)
    layer = infsa.nn.LinearInfSA(32, 4, **options)
    x = torch.randn(2, 50, 32)
    expected = layer(x)
    for module in (infsa.ops.linear.projected, rows):
        monkeypatch.setattr(module, "by_sums", lambda x, weight: True)
    torch.testing.assert_close(layer(x), expected)
    monkeypatch.setattr(infsa.ops.linear.projected, "_products_pay", lambda x: True)
    x, layer = x.bfloat16(), layer.bfloat16()
    key = None if layer.k is None else (layer.k.weight, layer.k.bias)
    pooled = infsa.ops.projected_pool(x, 4, (layer.q.weight, layer.q.bias), key).mean
    monkeypatch.setattr(infsa.ops.linear.projected, "by_sums", lambda x, weight: False)
    plain = infsa.ops.projected_pool(x, 4, (layer.q.weight, layer.q.bias), key).mean
    assert (pooled - plain).norm() <= 2**-7 * plain.norm()
