"""The kernel of the stem, LayerNorm over channels and ReLU, against torch in float64."""

import pytest
import torch
from torch.nn import functional as F

from infsa.ops.triton import channel_norm

from .helpers import DEVICE


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 9, 7, 24), (1, 70, 40, 16), (3, 2, 2, 100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients(shape, dtype, monkeypatch):
    monkeypatch.setattr(channel_norm, "PROGRAMS", 2)  # several steps each, the last of them not full
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE).to(dtype)
    weight, bias = (torch.randn(shape[-1], device=DEVICE) for _ in range(2))
    dy = torch.randn(shape, device=DEVICE).to(dtype)
    given = [t.clone().requires_grad_() for t in (x, weight, bias)]
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    found = channel_norm.ChannelNorm.apply(*given, 1e-6)
    expected = F.relu(F.layer_norm(exact[0], shape[-1:], exact[1], exact[2], 1e-6))
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * eps, atol=8 * eps)
    found_gradients = torch.autograd.grad(found, given, dy)
    for a, b in zip(found_gradients, torch.autograd.grad(expected, exact, dy.double()), strict=True):
        scale = float(b.abs().max().clamp_min(1))
        torch.testing.assert_close(a.double(), b, rtol=2 * eps, atol=16 * torch.finfo(torch.float32).eps * scale + eps)


def test_what_is_not_a_number_stays_so():
    x = torch.randn(2, 3, 16, device=DEVICE)
    x[0, 1, 4] = torch.nan
    found = channel_norm.ChannelNorm.apply(x, torch.ones(16, device=DEVICE), torch.zeros(16, device=DEVICE), 1e-6)
    assert torch.equal(found.isnan().any(-1).cpu(), torch.tensor([[False, True, False], [False, False, False]]))


def test_second_derivatives_are_refused():
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    found = channel_norm.ChannelNorm.apply(x, torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE), 1e-6)
    (gradient,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
