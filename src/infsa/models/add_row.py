"""The tokens after the attention of Linear-InfSA and their LayerNorm in one launch, for blocks in eager code."""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.triton.launch import Launch
from ..ops.triton.parts import COUNTS, rounded, wide


@triton.jit(do_not_specialize=COUNTS)
def add_row_kernel(
    x_ptr,
    row_ptr,
    bias_ptr,
    gain_ptr,
    shift_ptr,
    out_ptr,
    normal_ptr,
    y_ptr,
    mean_ptr,
    scale_ptr,
    n,
    eps,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
    KEPT: tl.constexpr,
):
    """Of one token, with y = x + row: y + bias, LN(y), and what the way back reads: y, its mean and 1/σ."""
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    known = column < DIM
    spot = wide(token) * DIM + column
    y = tl.load(x_ptr + spot, mask=known, other=0.0).to(tl.float32)
    y += tl.load(row_ptr + wide(token // n) * DIM + column, mask=known, other=0.0).to(tl.float32)
    out = y
    if BIASED:
        out += tl.load(bias_ptr + column, mask=known, other=0.0).to(tl.float32)
    tl.store(out_ptr + spot, rounded(out, out_ptr.dtype.element_ty), mask=known)
    y = rounded(y, x_ptr.dtype.element_ty)
    if KEPT:
        tl.store(y_ptr + spot, y, mask=known)
    y = y.to(tl.float32)
    mean = tl.sum(y, 0) / DIM
    y = tl.where(known, y - mean, 0.0)
    scale = tl.rsqrt(tl.sum(y * y, 0) / DIM + eps)
    if KEPT:
        tl.store(mean_ptr + token, mean)
        tl.store(scale_ptr + token, scale)
    gain = tl.load(gain_ptr + column, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + column, mask=known, other=0.0).to(tl.float32)
    tl.store(normal_ptr + spot, rounded(y * scale * gain + shift, normal_ptr.dtype.element_ty), mask=known)


class AddRow:
    """x + row + bias and LN(x + row) of tokens x (B, N, D), whose row (B, D) belongs to all tokens of an image."""

    def __init__(self, shape: torch.Size, device: torch.device, eps: float, biased: bool) -> None:
        batch, n, dim = shape
        self.shape, self.size = shape, (batch * n, dim)
        warps = 4 if dim <= 2048 else 8
        sizes = {"DIM": dim, "BLOCK": triton.next_power_of_2(dim), "BIASED": biased, "num_warps": warps}
        sizes |= {"enable_fp_fusion": False}  # else what is kept would change how sums are rounded
        self.launches = [
            Launch(add_row_kernel, (batch * n,), (n, eps), sizes | {"KEPT": kept}, device) for kept in (False, True)
        ]

    def __call__(
        self, x: Tensor, row: Tensor, bias: Tensor | None, gain: Tensor, shift: Tensor, kept: bool
    ) -> tuple[Any, ...]:
        """(B, N, D) and (B · N, D); y = x + row, and mean and 1/σ of its rows, if they are to be kept."""
        out, normal = row.new_empty(*self.shape), row.new_empty(*self.size)
        y = mean = scale = x  # stand for what is not written
        if kept:
            y, mean = row.new_empty(*self.size), row.new_empty(self.size[0], dtype=torch.float32)
            scale = torch.empty_like(mean)
        self.launches[kept](x, row, x if bias is None else bias, gain, shift, out, normal, y, mean, scale)
        return (out, normal, y, mean, scale) if kept else (out, normal, None, None, None)
