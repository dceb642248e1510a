"""x Wᵀ + b for a few rows x: every processor reads its part of the weight, which a matrix product leaves to a few."""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch
from .layout import on_device
from .parts import rounded, wide

OUTPUTS, NUMBERS = 8, 8192  # of one program: outputs, and numbers of the weight that it reads at once


@triton.jit
def few_rows_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    out_ptr,
    DIM: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Some outputs of one row, summed in float32."""
    row = tl.program_id(1)
    output = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    products = tl.zeros([BLOCK_E, BLOCK_D], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        mask = (output < OUT)[:, None] & (channel < DIM)[None, :]
        w = tl.load(w_ptr + wide(output)[:, None] * DIM + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        products += w * tl.load(x_ptr + row * DIM + channel, mask=channel < DIM, other=0.0).to(tl.float32)[None, :]
    found = tl.sum(products, 1)
    if BIASED:
        found += tl.load(b_ptr + output, mask=output < OUT, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * OUT + output, rounded(found, out_ptr.dtype.element_ty), mask=output < OUT)


@functools.lru_cache(512)
def _launch(rows: int, shape: torch.Size, dtype: torch.dtype, device: torch.device, biased: bool) -> Launch:
    out, dim = shape
    block = min(NUMBERS // OUTPUTS, triton.next_power_of_2(dim))
    sizes = {"DIM": dim, "OUT": out, "BLOCK_D": block, "BLOCK_E": OUTPUTS, "BIASED": biased}
    return Launch(few_rows_kernel, (triton.cdiv(out, OUTPUTS), rows), (), sizes | {"num_warps": 4}, device)


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., D) -> (..., E) for contiguous tensors of one type."""
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    launch = _launch(x.numel() // x.shape[-1], weight.shape, x.dtype, x.device, bias is not None)
    with on_device(x):
        launch(x, weight, x if bias is None else bias, out)
    return out
