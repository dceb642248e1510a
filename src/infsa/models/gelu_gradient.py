"""The way back through GELU, and the sum of what leaves it, in one launch, for blocks in eager code."""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.linear.plan import spans_of
from ..ops.triton.launch import Launch
from ..ops.triton.parts import COUNTS, INV_SQRT_2PI, SQRT_HALF, rounded, wide

PROGRAMS = 1584  # that share the tokens
BLOCK, TOKENS = 512, 2  # channels of a program, tokens per step
CURVE, CUBE = tl.constexpr(0.7978845608028654), tl.constexpr(0.044715)  # of the tanh form


@triton.jit(do_not_specialize=COUNTS)
def gelu_gradient_kernel(
    pull_ptr,
    x_ptr,
    sums_ptr,
    n,
    span,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    TANH: tl.constexpr,
):
    """The pull on GELU(x) becomes that on x, for one span of tokens and a block of channels; its sum over them."""
    first = tl.program_id(0) * span
    last = tl.minimum(first + span, n)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < DIM
    sums = tl.zeros([TOKENS, BLOCK], dtype=tl.float32)
    for start in tl.range(first, last, TOKENS):
        token = start + tl.arange(0, TOKENS)
        spot = wide(token)[:, None] * DIM + column[None, :]
        inside = (token < last)[:, None] & known[None, :]
        x = tl.load(x_ptr + spot, mask=inside, other=0.0).to(tl.float32)
        pull = tl.load(pull_ptr + spot, mask=inside, other=0.0).to(tl.float32)
        if TANH:
            z = 2 * CURVE * x * (1 + CUBE * x * x)
            below = 1 / (1 + tl.exp(-z))  # (1 + tanh) / 2
            slope = below + 2 * x * below * (1 - below) * CURVE * (1 + 3 * CUBE * x * x)
        else:
            slope = 0.5 + 0.5 * tl.math.erf(x * SQRT_HALF) + x * INV_SQRT_2PI * tl.exp(-0.5 * x * x)
        pull = rounded(pull * slope, pull_ptr.dtype.element_ty)
        tl.store(pull_ptr + spot, pull, mask=inside)
        sums += tl.where(inside, pull.to(tl.float32), 0.0)
    tl.store(sums_ptr + wide(tl.program_id(0)) * DIM + column, tl.sum(sums, 0), mask=known)


class GeluGradient:
    """The pull on x of GELU(x), for x of so many rows and channels."""

    def __init__(self, rows: int, dim: int, device: torch.device, approximate: str) -> None:
        block = min(BLOCK, triton.next_power_of_2(dim))
        blocks = triton.cdiv(dim, block)
        splits, span = spans_of(rows, PROGRAMS // blocks, TOKENS)
        sizes = {"DIM": dim, "BLOCK": block, "TOKENS": TOKENS, "TANH": approximate == "tanh", "num_warps": 4}
        self.sums = (splits, dim)
        self.launch = Launch(gelu_gradient_kernel, (splits, blocks), (rows, span), sizes, device)

    def __call__(self, pull: Tensor, x: Tensor) -> Tensor:
        """Write the pull on x over ``pull``; the sums of its spans of rows, in float32."""
        sums = pull.new_empty(self.sums, dtype=torch.float32)
        self.launch(pull, x, sums)
        return sums
