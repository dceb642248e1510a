"""Device code of a fast model, and its launches: what happens to tokens one by one, for any number of them.

Nothing here is compiled for a number of tokens or a size of images, only for widths, types and alignment; a launch
calls what was compiled, without Triton's handling of arguments.
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops.triton.launch import INTERPRETED, by_triton
from ..ops.triton.parts import INTERPRETED as SIMULATED
from ..ops.triton.parts import rounded, wide

LARGEST = tl.constexpr(448.0)  # of e4m3
SMALLEST = tl.constexpr(1e-12)  # row maximum that a scale is made for
CURVE = tl.constexpr(-2 * 0.7978845608028654 * 1.4426950408889634)  # −2 √(2/π) / ln 2
CUBE = tl.constexpr(0.044715)
STEEP = tl.constexpr(-0.75)  # the free coefficient of the cubic kernel, as in torch.nn.functional.interpolate
COUNTS = ["rows", "first", "tokens", "steps", "height", "width", "length"]

ROWS, STEPS = 2, 4  # tokens of one image that one program normalises at a time, and how often
MANY = 4224  # tokens from which on programs take more than one step
PATCHES = 8  # that one program unfolds
PIXELS = 1024  # of a patch, at most, per program
COLUMNS, CHANNELS = 64, 128  # patches and channels of one program that adds positions


@triton.jit
def in_eight_bits(y, dtype: tl.constexpr):
    """float32 y in e4m3, to the nearest; NaN stays NaN."""
    if SIMULATED:  # the interpreter loses the carry of a rounded number
        bits = y.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        y = tl.where(tl.abs(y) < 2.0**-6, (y + 24576.0) - 24576.0, tl.where(y == y, normal, y))
    return y.to(dtype)


@triton.jit
def store_eight(out_ptr, scale_ptr, spot, row, rows, y, inside):
    """Write rows y in 8 bits, with the scale that takes the largest to 448."""
    scale = tl.maximum(tl.max(tl.abs(y), 1), SMALLEST) / LARGEST
    tl.store(scale_ptr + row, scale, mask=row < rows)
    y = y * (1.0 / scale)[:, None]
    tl.store(out_ptr + spot, in_eight_bits(y, out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def load_rows(pointer, start, rows, known, column, DIM: tl.constexpr, ROWS: tl.constexpr):
    """ROWS rows from ``start`` on; zeros beyond the last."""
    row = start + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known[None, :]
    return tl.load(pointer + wide(row)[:, None] * DIM + column[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=COUNTS)
def norm_kernel(
    x_ptr,
    added_ptr,
    offset_ptr,
    row_ptr,
    bias_ptr,
    next_ptr,
    gain_ptr,
    shift_ptr,
    out_ptr,
    eight_ptr,
    scale_ptr,
    rows,
    first,
    tokens,
    steps,
    eps,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADDED: tl.constexpr,
    OFFSET: tl.constexpr,
    ROW: tl.constexpr,
    BIASED: tl.constexpr,
    NEXT: tl.constexpr,
    WIDE: tl.constexpr,
    EIGHT: tl.constexpr,
):
    """LN(x + added + offset + row) of tokens first, first + 1, ..., as it is, in 8 bits, or both; x becomes x + added.

    All tokens of an image share an offset and a row. Its first token writes the next offset, offset + row + bias. The
    tokens of a program belong to one image: it takes ROWS at a time, and of a batch of several images just one.
    """
    start = tl.program_id(0) * ROWS * steps
    column = tl.arange(0, BLOCK)
    known = column < DIM
    image = wide((first + start) // tokens) * DIM + column
    gain = tl.load(gain_ptr + column, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + column, mask=known, other=0.0).to(tl.float32)
    shared = tl.zeros([BLOCK], dtype=tl.float32)
    if OFFSET:
        shared += tl.load(offset_ptr + image, mask=known, other=0.0)
    if ROW:
        shared += tl.load(row_ptr + image, mask=known, other=0.0).to(tl.float32)
    if NEXT:
        following = shared
        if BIASED:
            following += tl.load(bias_ptr + column, mask=known, other=0.0).to(tl.float32)
        tl.store(next_ptr + image, following, mask=column < tl.where((first + start) % tokens == 0, DIM, 0))
    ahead = load_rows(x_ptr, start, rows, known, column, DIM, ROWS)
    added_ahead = load_rows(added_ptr, start, rows, known, column, DIM, ROWS) if ADDED else ahead
    for step in tl.range(0, steps):
        row = start + step * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        spot = wide(row)[:, None] * DIM + column[None, :]
        x, added = ahead.to(tl.float32), added_ahead.to(tl.float32)
        last = tl.where(step + 1 < steps, rows, 0)  # the next rows are on their way while these are worked on
        ahead = load_rows(x_ptr, start + (step + 1) * ROWS, last, known, column, DIM, ROWS)
        if ADDED:
            added_ahead = load_rows(added_ptr, start + (step + 1) * ROWS, last, known, column, DIM, ROWS)
            x += added
            tl.store(x_ptr + spot, rounded(x, x_ptr.dtype.element_ty), mask=inside)
        x += shared[None, :]
        centred = tl.where(inside, x - (tl.sum(x, 1) / DIM)[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 1) / DIM + eps)
        y = centred * scale[:, None] * gain[None, :] + shift[None, :]
        if WIDE:
            tl.store(out_ptr + spot, rounded(y, out_ptr.dtype.element_ty), mask=inside)
        if EIGHT:
            store_eight(eight_ptr, scale_ptr, spot, row, rows, y, inside)


@triton.jit(do_not_specialize=COUNTS)
def round_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    rows,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
):
    """A row of x, or of GELU(x) in its tanh form, in 8 bits with its scale."""
    row = tl.program_id(0) + tl.arange(0, 1)
    column = tl.arange(0, BLOCK)
    inside = (column < DIM)[None, :]
    spot = wide(row)[:, None] * DIM + column[None, :]
    y = tl.load(x_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        y = y / (1.0 + tl.exp2(y * CURVE * (y * y * CUBE + 1.0)))
    store_eight(out_ptr, scale_ptr, spot, row, rows, y, inside)


@triton.jit(do_not_specialize=COUNTS)
def unfold_kernel(
    images_ptr,
    out_ptr,
    rows,
    first,
    height,
    width,
    CHANS: tl.constexpr,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    PATCHES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The pixels of patches first, first + 1, ... of images (B, C, height · DOWN, width · ACROSS), a row for each."""
    row = tl.program_id(0) * PATCHES + tl.arange(0, PATCHES)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    patch = first + row
    line, j = patch // width, patch % width
    image, i = line // height, line % height
    channel, r, s = pixel // (DOWN * ACROSS), pixel // ACROSS % DOWN, pixel % ACROSS
    inside = (row < rows)[:, None] & (pixel < CHANS * DOWN * ACROSS)[None, :]
    plane = wide(image * CHANS)[:, None] + channel[None, :]
    y = (plane * height + i[:, None]) * DOWN + r[None, :]
    x = (y * width + j[:, None]) * ACROSS + s[None, :]
    values = tl.load(images_ptr + x, mask=inside, other=0.0)
    tl.store(out_ptr + wide(row)[:, None] * (CHANS * DOWN * ACROSS) + pixel[None, :], values, mask=inside)


@triton.jit
def cubic(distance):
    """The cubic kernel at a distance of at most 2."""
    t = tl.abs(distance)
    near = (t * (STEEP + 2) - (STEEP + 3)) * t * t + 1
    far = ((t * STEEP - 5 * STEEP) * t + 8 * STEEP) * t - 4 * STEEP
    return tl.where(t <= 1, near, far)


@triton.jit(do_not_specialize=COUNTS)
def position_kernel(
    patches_ptr,
    table_ptr,
    out_ptr,
    height,
    width,
    length,
    first,
    down,
    across,
    DIM: tl.constexpr,
    PREFIX: tl.constexpr,
    BASE_H: tl.constexpr,
    BASE_W: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Patches of lines first, first + 1, ... plus positions, bicubic in a table (PREFIX + BASE_H · BASE_W, DIM)."""
    line = first + tl.program_id(0)
    image, i = line // height, line % height
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    cell = tl.arange(0, CELLS)
    at = (i.to(tl.float32) + 0.5) * down - 0.5
    before = tl.floor(at)
    known = (cell < BASE_W)[:, None] & (channel < DIM)[None, :]
    cells = tl.zeros([CELLS, CHANNELS], dtype=tl.float32)  # the base grid's cells, resized to this line
    for tap in tl.static_range(-1, 3):
        source = tl.minimum(tl.maximum(before.to(tl.int32) + tap, 0), BASE_H - 1)
        place = (PREFIX + source * BASE_W + cell)[:, None] * DIM + channel[None, :]
        cells += cubic(at - before - tap) * tl.load(table_ptr + place, mask=known, other=0.0).to(tl.float32)
    read = patches_ptr + wide(tl.program_id(0)) * width * DIM
    write = out_ptr + (wide(image) * length + PREFIX + i * width) * DIM
    for start in tl.range(0, width, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        inside = (j < width)[:, None] & (channel < DIM)[None, :]
        spot = j[:, None] * DIM + channel[None, :]
        x = tl.load(read + spot, mask=inside, other=0.0).to(tl.float32)
        at_j = (j.to(tl.float32) + 0.5) * across - 0.5
        before_j = tl.floor(at_j)
        weights = tl.zeros([COLUMNS, CELLS], dtype=tl.float32)
        for tap in tl.static_range(-1, 3):
            source_j = tl.minimum(tl.maximum(before_j.to(tl.int32) + tap, 0), BASE_W - 1)
            hit = source_j[:, None] == cell[None, :]
            weights += tl.where(hit, cubic(at_j - before_j - tap)[:, None], 0.0)
        x = tl.dot(weights, cells, x, input_precision=PRECISION)
        tl.store(write + spot, rounded(x, out_ptr.dtype.element_ty), mask=inside)


class Launcher:
    """A kernel with its constants, for tensors of fixed types on one device; addresses and numbers are new each time.

    Kernels take pointers first, then numbers, then constants. The device must be the current one.
    """

    def __init__(self, kernel: Any, index: Any, fixed: dict[str, Any]) -> None:
        self.kernel, self.index, self.fixed = kernel, index, fixed
        self.constants = [fixed[name] for name in kernel.arg_names if name in fixed]
        self.compiled: dict[int, Any] = {}  # by which addresses are no multiples of 16

    def __call__(self, grid: tuple[int, int, int], tensors: Sequence[Tensor], *numbers: float) -> None:
        """Run on the current stream."""
        hook = triton.knobs.runtime.launch_enter_hook
        if INTERPRETED or getattr(hook, "calls", hook):  # somebody measures launches: as Triton does it
            by_triton(self.kernel[grid], *tensors, *numbers, **self.fixed)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        kind = 0
        for address in addresses:
            kind = 2 * kind + (address & 15 != 0)
        compiled = self.compiled.get(kind)
        if compiled is None:
            self.compiled[kind] = by_triton(self.kernel[grid], *tensors, *numbers, **self.fixed)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        handle = (stream, compiled.function, compiled.packed_metadata, None, None, None)  # no metadata, no hooks
        compiled.run(*grid, *handle, *addresses, *numbers, *self.constants)


@functools.lru_cache(256)
def _launcher(kernel: Any, device: torch.device, types: Any, fixed: tuple[tuple[str, Any], ...]) -> Launcher:
    return Launcher(kernel, device.index, dict(fixed))


def launcher(kernel: Any, like: Tensor, *types: torch.dtype, **fixed: Any) -> Launcher:
    """The launcher of a kernel for tensors of these types on the device of ``like``."""
    return _launcher(kernel, like.device, (like.dtype, *types), tuple(fixed.items()))


def padded(width: int) -> int:
    """The power of two that holds a row."""
    return 1 << (width - 1).bit_length()
