"""Σ e and Σ e q, e = ‖q‖, over queries that a matrix product has written: one pass at the speed of memory, and back.

Each program adds up a span of tokens for a few heads, in registers; a second kernel adds the spans in one order.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton.configs import LinearConfig, linear_config, padded_width
from ..triton.layout import mask_bytes, on_device, readable
from ..triton.parts import COUNTS, head_start, query_gradient, real_tokens, rounded, wide

SPANS_AT_ONCE = 64


@triton.jit
def _columns(first_head, heads, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK_H: tl.constexpr):
    """Where the channels of a block of heads lie in a row of queries, and which of them exist."""
    column = tl.arange(0, BLOCK_H * PADDED)
    offset = first_head * WIDTH + column
    exists = offset < heads * WIDTH
    if WIDTH != PADDED:
        head, inside = first_head + column // PADDED, column % PADDED
        offset, exists = head * WIDTH + inside, (head < heads) & (inside < WIDTH)
    return offset, exists


@triton.jit(do_not_specialize=COUNTS)
def span_kernel(
    q_ptr,
    mask_ptr,
    total_ptr,
    vectors_ptr,
    stride_b,
    stride_n,
    heads,
    n,
    splits,
    span,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Σ e and Σ e q of one span of tokens, for a block of heads."""
    head_blocks = tl.cdiv(heads, BLOCK_H)
    first_head = tl.program_id(0) % head_blocks * BLOCK_H
    place = tl.program_id(0) // head_blocks
    batch, first = place // splits, place % splits * span
    last = tl.minimum(first + span, n)
    offset, exists = _columns(first_head, heads, WIDTH, PADDED, BLOCK_H)
    base = head_start(q_ptr, batch, 0, stride_b, 0)
    row = tl.arange(0, BLOCK_N)
    tile = row[:, None] * stride_n + offset[None, :]
    totals = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    vectors = tl.zeros([BLOCK_N, BLOCK_H, PADDED], dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_N):
        real = real_tokens(mask_ptr, batch, start + row, n, MASKED) & (start + row < last)
        q = tl.load(base + wide(start) * stride_n + tile, mask=real[:, None] & exists[None, :], other=0.0)
        q = tl.reshape(q.to(tl.float32), (BLOCK_N, BLOCK_H, PADDED))
        energy = tl.sqrt(tl.sum(q * q, 2))
        totals += energy
        vectors += q * energy[:, :, None]
    head, inside = first_head + tl.arange(0, BLOCK_H), tl.arange(0, PADDED)
    spot = wide(place) * heads + head
    tl.store(total_ptr + spot, tl.sum(totals, 0), mask=head < heads)
    mask = (head < heads)[:, None] & (inside < WIDTH)[None, :]
    tl.store(vectors_ptr + spot[:, None] * WIDTH + inside[None, :], tl.sum(vectors, 0), mask=mask)


@triton.jit
def added(
    totals_ptr, vectors_ptr, batch, head, heads, splits, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    """The sums of the spans of one batch item and head: a number and a vector."""
    inside = tl.arange(0, PADDED)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    vector = tl.zeros([BLOCK, PADDED], dtype=tl.float32)
    for start in tl.range(0, splits, BLOCK):
        split = start + tl.arange(0, BLOCK)
        spot = (wide(batch) * splits + split) * heads + head
        total += tl.load(totals_ptr + spot, mask=split < splits, other=0.0)
        mask = (split < splits)[:, None] & (inside < WIDTH)[None, :]
        vector += tl.load(vectors_ptr + spot[:, None] * WIDTH + inside[None, :], mask=mask, other=0.0)
    return tl.sum(total, 0), tl.sum(vector, 0)


@triton.jit(do_not_specialize=COUNTS)
def add_kernel(
    totals_ptr,
    vectors_ptr,
    total_ptr,
    vector_ptr,
    heads,
    splits,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same, written."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    total, vector = added(totals_ptr, vectors_ptr, batch, head, heads, splits, WIDTH, PADDED, BLOCK)
    tl.store(total_ptr + tl.program_id(0), total)
    inside = tl.arange(0, PADDED)
    tl.store(vector_ptr + wide(tl.program_id(0)) * WIDTH + inside, vector, mask=inside < WIDTH)


@triton.jit(do_not_specialize=COUNTS)
def gradient_kernel(
    q_ptr,
    mask_ptr,
    grad_total_ptr,
    grad_vectors_ptr,
    dq_ptr,
    stride_b,
    stride_n,
    heads,
    n,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    MASKED: tl.constexpr,
):
    """dq of a block of tokens and heads; dq (B, N, H · WIDTH) has no gaps."""
    head_blocks, blocks = tl.cdiv(heads, BLOCK_H), tl.cdiv(n, BLOCK_N)
    first_head = tl.program_id(0) % head_blocks * BLOCK_H
    place = tl.program_id(0) // head_blocks
    batch, token = place // blocks, place % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    offset, exists = _columns(first_head, heads, WIDTH, PADDED, BLOCK_H)
    base = head_start(q_ptr, batch, 0, stride_b, 0)
    real = real_tokens(mask_ptr, batch, token, n, MASKED)
    q = tl.load(
        base + wide(token)[:, None] * stride_n + offset[None, :], mask=real[:, None] & exists[None, :], other=0.0
    )
    q = tl.reshape(q.to(tl.float32), (BLOCK_N, BLOCK_H, PADDED))
    head, inside = first_head + tl.arange(0, BLOCK_H), tl.arange(0, PADDED)
    spot = wide(batch) * heads + head
    on_total = tl.load(grad_total_ptr + spot, mask=head < heads, other=0.0)
    mask = (head < heads)[:, None] & (inside < WIDTH)[None, :]
    on_vectors = tl.load(grad_vectors_ptr + spot[:, None] * WIDTH + inside[None, :], mask=mask, other=0.0)
    dq = tl.reshape(query_gradient(q, on_total, on_vectors), (BLOCK_N, BLOCK_H * PADDED))
    row = dq_ptr + (wide(batch) * n + token)[:, None] * (heads * WIDTH)
    dq = rounded(dq, dq_ptr.dtype.element_ty)
    tl.store(row + offset[None, :], dq, mask=(token < n)[:, None] & exists[None, :])


def query_sizes(
    width: int, heads: int, masked: bool, dtype: torch.dtype, index: int | None
) -> tuple[LinearConfig, dict[str, int | bool]]:
    """The config of both passes over queries of a head width, and what is fixed in their kernels."""
    config = linear_config("queries", heads, dtype, index)
    padded = padded_width(width)
    sizes = {"WIDTH": width, "PADDED": padded, "BLOCK_N": config.block_n, "MASKED": masked}
    return config, sizes | {"BLOCK_H": max(1, config.columns // padded)} | config.launch


def spans_of(n: int, programs: int, block: int) -> tuple[int, int]:
    """How many spans n tokens are cut into, and how long each is, in whole blocks."""
    span = triton.cdiv(triton.cdiv(n, max(1, programs)), block) * block
    return triton.cdiv(n, span), span


def span_sums(q: Tensor, mask: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Σ e (B, spans, H) and Σ e q (B, spans, H, d) in float32, of at least one image."""
    q = readable(q)
    batch, n, _ = q.shape
    config, sizes = query_sizes(q.shape[2] // heads, heads, mask is not None, q.dtype, q.device.index)
    head_blocks = triton.cdiv(heads, sizes["BLOCK_H"])
    splits, span = spans_of(n, config.programs // (batch * head_blocks), config.block_n)
    totals = q.new_empty(batch, splits, heads, dtype=torch.float32)
    vectors = totals.new_empty(batch, splits, heads, sizes["WIDTH"])
    with on_device(q):
        span_kernel[(batch * splits * head_blocks,)](
            q, mask_bytes(mask, q), totals, vectors, *q.stride()[:2], heads, n, splits, span, **sizes
        )
    return totals, vectors


def query_sums(q: Tensor, mask: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Σ e (B, H) and Σ e q (B, H, d) in float32 of queries (B, N, H · d); ``mask`` (B, N) is True for real tokens."""
    batch, width = q.shape[0], q.shape[2] // heads
    total = q.new_empty(batch, heads, dtype=torch.float32)
    vector = total.new_empty(batch, heads, width)
    if batch:
        totals, vectors = span_sums(q, mask, heads)
        sizes = {"WIDTH": width, "PADDED": padded_width(width), "BLOCK": SPANS_AT_ONCE, "num_warps": 4}
        with on_device(q):
            add_kernel[(batch * heads,)](totals, vectors, total, vector, heads, totals.shape[1], **sizes)
    return total, vector


def query_gradients(grad_total: Tensor, grad_vectors: Tensor, q: Tensor, mask: Tensor | None, heads: int) -> Tensor:
    """dq in the type of q, from the gradients (B, H) and (B, H, d) of its sums."""
    q = readable(q)
    batch, n, _ = q.shape
    config, sizes = query_sizes(q.shape[2] // heads, heads, mask is not None, q.dtype, q.device.index)
    dq = q.new_empty(q.shape)
    if batch:
        blocks = batch * triton.cdiv(n, config.block_n) * triton.cdiv(heads, sizes["BLOCK_H"])
        grads = grad_total.contiguous(), grad_vectors.contiguous()
        with on_device(q):
            gradient_kernel[(blocks,)](q, mask_bytes(mask, q), *grads, dq, *q.stride()[:2], heads, n, **sizes)
    return dq
