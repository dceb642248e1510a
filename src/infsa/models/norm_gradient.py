"""The way back through a LayerNorm and the residual around it in two launches, for blocks in eager code."""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.linear.plan import spans_of
from ..ops.triton.launch import Launch
from ..ops.triton.parts import COUNTS, rounded, wide

PROCESSORS, WARPS, REGISTERS = 132, 24, 80  # of a GPU; what each holds at once, with so many registers a thread
NARROW = 4096  # numbers of a token for which those registers are enough
LEAST = 4  # tokens of a program
NUMBERS = 2048  # of tokens, per step
COLUMNS, SPANS = 64, 64  # of a step over the sums of spans


@triton.jit(do_not_specialize=COUNTS)
def token_kernel(
    pull_ptr,
    x_ptr,
    added_ptr,
    mean_ptr,
    scale_ptr,
    gain_ptr,
    out_ptr,
    sums_ptr,
    n,
    splits,
    span,
    SUMS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """The pull on the x of LN(x) plus what is added to it, for one span of tokens, and the span's sums (SUMS, D).

    Those are the pulls on gain and shift, the sum of the result, and perhaps of what is added.
    """
    place = tl.program_id(0)
    image, first = place // splits, place % splits * span
    last = tl.minimum(first + span, n)
    column = tl.arange(0, BLOCK)
    known = column < DIM
    gain = tl.load(gain_ptr + column, mask=known, other=0.0).to(tl.float32)
    on_gain = tl.zeros([TOKENS, BLOCK], dtype=tl.float32)
    on_shift = tl.zeros([TOKENS, BLOCK], dtype=tl.float32)
    total = tl.zeros([TOKENS, BLOCK], dtype=tl.float32)
    on_added = tl.zeros([TOKENS, BLOCK], dtype=tl.float32)
    for start in tl.range(first, last, TOKENS):
        token = start + tl.arange(0, TOKENS)
        of_token = wide(image) * n + token
        inside = (token < last)[:, None] & known[None, :]
        spot = of_token[:, None] * DIM + column[None, :]
        mean = tl.load(mean_ptr + of_token, mask=token < last, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + of_token, mask=token < last, other=0.0).to(tl.float32)
        pull = tl.load(pull_ptr + spot, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + spot, mask=inside, other=0.0).to(tl.float32)
        out = tl.load(added_ptr + spot, mask=inside, other=0.0).to(tl.float32)
        if SUMS == 4:
            on_added += out
        normal = tl.where(inside, (x - mean[:, None]) * scale[:, None], 0.0)
        on_gain += pull * normal
        on_shift += pull
        pull *= gain[None, :]
        shared, along = tl.sum(pull, 1) / DIM, tl.sum(pull * normal, 1) / DIM
        out += scale[:, None] * (pull - shared[:, None] - normal * along[:, None])
        tl.store(out_ptr + spot, rounded(out, out_ptr.dtype.element_ty), mask=inside)
        total += tl.where(inside, out, 0.0)
    spot = sums_ptr + wide(place) * (SUMS * DIM) + column
    tl.store(spot, tl.sum(on_gain, 0), mask=known)
    tl.store(spot + DIM, tl.sum(on_shift, 0), mask=known)
    tl.store(spot + 2 * DIM, tl.sum(total, 0), mask=known)
    if SUMS == 4:
        tl.store(spot + 3 * DIM, tl.sum(on_added, 0), mask=known)


@triton.jit
def add_up(
    sums_ptr,
    first,
    last,
    out_ptr,
    column,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPANS: tl.constexpr,
):
    """Write the sum over some spans, always in the same order."""
    found = tl.zeros([SPANS, COLUMNS], dtype=tl.float32)
    for start in tl.range(first, last, SPANS):
        span = start + tl.arange(0, SPANS)
        mask = (span < last)[:, None] & (column < LENGTH)[None, :]
        found += tl.load(sums_ptr + wide(span)[:, None] * STRIDE + column[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + column, rounded(tl.sum(found, 0), out_ptr.dtype.element_ty), mask=column < LENGTH)


@triton.jit(do_not_specialize=COUNTS)
def sum_kernel(
    sums_ptr,
    on_gain_ptr,
    on_shift_ptr,
    on_all_ptr,
    on_added_ptr,
    on_row_ptr,
    hidden_ptr,
    on_hidden_ptr,
    items,
    splits,
    spans,
    SUMS: tl.constexpr,
    DIM: tl.constexpr,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPANS: tl.constexpr,
):
    """The third sum of each image, each sum over all spans, and that of other spans, all by programs of their own."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    image, all_ = tl.program_id(0), items * splits
    if image < items:
        first, row_ptr = image * splits, on_row_ptr + wide(image) * DIM
        add_up(sums_ptr + 2 * DIM, first, first + splits, row_ptr, column, DIM, SUMS * DIM, COLUMNS, SPANS)
    elif image == items:
        add_up(sums_ptr, 0, all_, on_gain_ptr, column, DIM, SUMS * DIM, COLUMNS, SPANS)
    elif image == items + 1:
        add_up(sums_ptr + DIM, 0, all_, on_shift_ptr, column, DIM, SUMS * DIM, COLUMNS, SPANS)
    elif image == items + 2:
        add_up(sums_ptr + 2 * DIM, 0, all_, on_all_ptr, column, DIM, SUMS * DIM, COLUMNS, SPANS)
    elif image < items + SUMS:
        add_up(sums_ptr + 3 * DIM, 0, all_, on_added_ptr, column, DIM, SUMS * DIM, COLUMNS, SPANS)
    else:
        column += (image - items - SUMS) * tl.num_programs(1) * COLUMNS
        add_up(hidden_ptr, 0, spans, on_hidden_ptr, column, HIDDEN, HIDDEN, COLUMNS, SPANS)


def warps_for(numbers: int) -> int:
    """The warps of a program that holds so many numbers of several tensors at once."""
    return min(16, max(4, numbers // 256))


class NormGradient:
    """The pulls on x, gain and shift of LN(x), for tokens x of one shape (B, N, D)."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        (batch, n, dim), self.shape, self.device = shape, shape, device
        block = triton.next_power_of_2(dim)
        tokens = min(LEAST, max(1, NUMBERS // block))
        warps = warps_for(tokens * block)
        self.splits, span = spans_of(n, PROCESSORS * (WARPS // warps) // batch, LEAST)  # all programs run at once
        self.spans, numbers = batch * self.splits, (n, self.splits, span)
        sizes = {"DIM": dim, "BLOCK": block, "TOKENS": tokens, "num_warps": warps}
        sizes |= {"maxnreg": REGISTERS} if block <= NARROW else {}
        self.tokens = {
            sums: Launch(token_kernel, (self.spans,), numbers, {"SUMS": sums} | sizes, device) for sums in (3, 4)
        }
        self.rows: dict[Any, Launch] = {}

    def __call__(
        self,
        pull: Tensor,
        x: Tensor,
        added: Tensor,
        mean: Tensor,
        scale: Tensor,
        gain: Tensor,
        summed: bool = False,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor | None, ...]:
        """The pull on x plus ``added``, its sums over each image (B, D) and over all, and those on gain and shift.

        Then, if ``summed``, the sum of ``added`` over all, and that of the rows of ``hidden`` (n, E).
        """
        (batch, _, dim), count = self.shape, 4 if summed else 3
        out, sums = torch.empty_like(pull), mean.new_empty(self.spans, count, dim, dtype=torch.float32)
        self.tokens[count](pull, x, added, mean, scale, gain, out, sums)
        on_gain, on_shift, on_all = torch.empty_like(gain), torch.empty_like(gain), torch.empty_like(gain)
        on_added, on_row = torch.empty_like(gain) if summed else None, gain.new_empty(batch, dim)
        on_hidden, kind = None if hidden is None else gain.new_empty(hidden.shape[1]), (count, hidden is not None)
        launch = self.rows.get(kind)
        if launch is None:
            launch = self.rows[kind] = self._rows(count, None if hidden is None else hidden.shape)
        further = [on_gain if on_added is None else on_added, on_row]
        further += [sums, on_row] if hidden is None or on_hidden is None else [hidden, on_hidden]
        launch(sums, on_gain, on_shift, on_all, *further)
        return out, on_row, on_all, on_gain, on_shift, on_added, on_hidden

    def _rows(self, count: int, hidden: torch.Size | None) -> Launch:
        (batch, _, dim), (spans, width) = self.shape, (0, 0) if hidden is None else hidden
        blocks = triton.cdiv(dim, COLUMNS)
        lines = batch + count + triton.cdiv(triton.cdiv(width, COLUMNS), blocks)
        sizes = {"SUMS": count, "DIM": dim, "HIDDEN": width, "COLUMNS": COLUMNS, "SPANS": SPANS, "num_warps": 4}
        return Launch(sum_kernel, (lines, blocks), (batch, self.splits, spans), sizes, self.device)
