"""LayerNorm over few channels followed by ReLU, for very many positions: many rows to a program, one pass each way."""

# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .layout import on_device
from .parts import rounded

NUMBERS = 4096  # that a program holds at a time
PROGRAMS = 1024  # of the backward pass, each with sums of its own


@triton.jit
def _forward(x_ptr, weight_ptr, bias_ptr, y_ptr, rows, eps, C: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, WIDE)[None]
    inside = (row < rows) & (channel < C)
    x = tl.load(x_ptr + row * C + channel, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, 1)[:, None] / C, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / C + eps)[:, None]
    weight = tl.load(weight_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)
    y = centred * scale * weight + bias
    y = tl.where(y <= 0, 0.0, y)  # NaN stays, as in torch's ReLU
    tl.store(y_ptr + row * C + channel, rounded(y, y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    x_ptr, weight_ptr, bias_ptr, dy_ptr, dx_ptr, sums_ptr, rows, eps,
    C: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, WIDE)[None]
    weight = tl.load(weight_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)
    dweight, dbias = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (channel < C)
        x = tl.load(x_ptr + row * C + channel, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, x - tl.sum(x, 1)[:, None] / C, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 1) / C + eps)[:, None]
        unit = centred * scale
        dy = tl.load(dy_ptr + row * C + channel, mask=inside, other=0.0).to(tl.float32)
        dy = tl.where(unit * weight + bias <= 0, 0.0, dy)
        dweight += tl.sum(dy * unit, 0)
        dbias += tl.sum(dy, 0)
        dunit = dy * weight
        dx = scale * (dunit - tl.sum(dunit, 1)[:, None] / C - unit * (tl.sum(dunit * unit, 1)[:, None] / C))
        tl.store(dx_ptr + row * C + channel, rounded(dx, dx_ptr.dtype.element_ty), mask=inside)
    place = sums_ptr + program * 2 * C + tl.arange(0, WIDE)
    tl.store(place, dweight, mask=tl.arange(0, WIDE) < C)
    tl.store(place + C, dbias, mask=tl.arange(0, WIDE) < C)


class ChannelNorm(torch.autograd.Function):
    """relu(LayerNorm(x)) over the last axis of contiguous x (..., C); weight and bias (C,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalise, scale, clip."""
        y, channels = torch.empty_like(x), x.shape[-1]
        rows, wide = x.numel() // channels, triton.next_power_of_2(channels)
        at_once = max(1, NUMBERS // wide)
        with on_device(x):
            _forward[(triton.cdiv(rows, at_once),)](x, weight, bias, y, rows, eps, C=channels, ROWS=at_once, WIDE=wide)
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradients of x and, summed over all positions, of the scale and the offset."""
        x, weight, bias = ctx.saved_tensors
        dx, channels = torch.empty_like(x), x.shape[-1]
        rows, wide = x.numel() // channels, triton.next_power_of_2(channels)
        at_once = max(1, NUMBERS // wide)
        steps = triton.next_power_of_2(max(1, triton.cdiv(rows, at_once * PROGRAMS)))
        programs = triton.cdiv(rows, at_once * steps)
        sums = torch.empty(programs, 2, channels, device=x.device, dtype=torch.float32)
        shape = {"C": channels, "ROWS": at_once, "WIDE": wide, "STEPS": steps}
        with on_device(x):
            _backward[(programs,)](x, weight, bias, dy.contiguous(), dx, sums, rows, ctx.eps, **shape)
        dweight, dbias = sums.sum(0).to(weight.dtype)
        return dx, dweight, dbias, None
