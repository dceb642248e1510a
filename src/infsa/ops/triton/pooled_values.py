"""Linear-InfSA from tokens to pooled values, forward, in seven launches; three are the vendor's matrix products.

In plain operations, what all tokens of an image share, a row per head, takes two dozen launches, which for short inputs
are longer than the arithmetic. Rows are added up in float32 and rounded once.
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .configs import padded_width
from .layout import mask_bytes, on_device
from .parts import COUNTS, NUMBERS, edges, real_tokens, rounded, wide
from .query_sums import SPANS_AT_ONCE, added, span_sums, spans_of
from .support import Projection

CHANNELS = 128  # of a token, per step
TOKENS = 64  # per step over the scores
PROGRAMS = 264  # that share the scores of a batch


@triton.jit(do_not_specialize=COUNTS)
def central_kernel(
    totals_ptr,
    vectors_ptr,
    w_ptr,
    b_ptr,
    u_ptr,
    offset_ptr,
    heads,
    splits,
    eps,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
):
    """u = W_Kᵀ q̄ for a block of channels, and o = q̄ · b_K, of one image and head; q̄ = Σ e q / (Σ e + ε)."""
    place = tl.program_id(0)
    batch, head = place // heads, place % heads
    total, vector = added(totals_ptr, vectors_ptr, batch, head, heads, splits, WIDTH, PADDED, BLOCK)
    central = vector / (total + eps)
    inside = tl.arange(0, PADDED)
    row = head * WIDTH + inside
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
    w = tl.load(w_ptr + row[:, None] * DIM + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    u = rounded(tl.sum(central[:, None] * w, 0), u_ptr.dtype.element_ty)
    tl.store(u_ptr + wide(place) * DIM + channel, u, mask=channel < DIM)
    if tl.program_id(1) == 0:
        offset = 0.0
        if BIASED:
            offset = tl.sum(central * tl.load(b_ptr + row, mask=inside < WIDTH, other=0.0).to(tl.float32), 0)
        tl.store(offset_ptr + place, offset)


@triton.jit(do_not_specialize=COUNTS)
def edge_kernel(
    scores_ptr,
    offset_ptr,
    mask_ptr,
    sums_ptr,
    heads,
    n,
    splits,
    span,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    MASKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """S = φ(raw + o) in the place of raw (B, N, H), for one span of tokens, and Σ S."""
    head_blocks = tl.cdiv(heads, BLOCK_H)
    head = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    place = tl.program_id(0) // head_blocks
    batch, first = place // splits, place % splits * span
    last = tl.minimum(first + span, n)
    offset = tl.load(offset_ptr + wide(batch) * heads + head, mask=head < heads, other=0.0)
    sums = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = real_tokens(mask_ptr, batch, token, n, MASKED) & (token < last)
        spot = scores_ptr + (wide(batch) * n + token)[:, None] * heads + head[None, :]
        exists = (token < last)[:, None] & (head < heads)[None, :]
        raw = tl.load(spot, mask=exists, other=0.0).to(tl.float32) + offset[None, :]
        s = rounded(tl.where(real[:, None], edges(raw, 1.0, ACTIVATION), 0.0), scores_ptr.dtype.element_ty)
        tl.store(spot, s, mask=exists)
        sums += tl.where(exists, s.to(tl.float32), 0.0)
    tl.store(sums_ptr + wide(place) * heads + head, tl.sum(sums, 0), mask=head < heads)


@triton.jit(do_not_specialize=COUNTS)
def value_kernel(
    pooled_ptr,
    sums_ptr,
    w_ptr,
    b_ptr,
    values_ptr,
    heads,
    splits,
    eps,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
):
    """(W_V Σ S x + b_V Σ S) / (Σ S + ε) of one image and head."""
    place = tl.program_id(0)
    batch, head = place // heads, place % heads
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.range(0, splits, BLOCK):
        split = start + tl.arange(0, BLOCK)
        spot = (wide(batch) * splits + split) * heads + head
        total += tl.load(sums_ptr + spot, mask=split < splits, other=0.0)
    mass = tl.sum(total, 0)
    inside = tl.arange(0, PADDED)
    row = head * WIDTH + inside
    values = tl.zeros([PADDED, BLOCK_D], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        mask = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
        w = tl.load(w_ptr + row[:, None] * DIM + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        pooled = tl.load(pooled_ptr + wide(place) * DIM + channel, mask=channel < DIM, other=0.0).to(tl.float32)
        values += w * pooled[None, :]
    found = tl.sum(values, 1)
    if BIASED:
        found += mass * tl.load(b_ptr + row, mask=inside < WIDTH, other=0.0).to(tl.float32)
    found = rounded(found / (mass + eps), values_ptr.dtype.element_ty)
    tl.store(values_ptr + wide(place) * WIDTH + inside, found, mask=inside < WIDTH)


def pooled_values(
    x: Tensor,
    heads: int,
    query: Projection,
    key: Projection,
    value: Projection,
    mask: Tensor | None,
    activation: str,
    eps: float,
) -> Tensor:
    """Σ a v (B, H, 1, d) for x (B, N, D) in bfloat16 and projections of its type, φ without negative values.

    ``mask`` (B, N) is True for real tokens; the others must be zero.

    Example:
        >>> pooled_values(x, 64, query, query, value, None, "relu", 1e-6).shape
        torch.Size([1, 64, 1, 16])
    """
    (batch, n, dim), columns = x.shape, value[0].shape[0]
    totals, vectors = span_sums(torch.nn.functional.linear(x, *query), mask, heads)
    u, offset = x.new_empty(batch, heads, dim), totals.new_empty(batch, heads)
    block_h = min(64, triton.next_power_of_2(heads))
    head_blocks = triton.cdiv(heads, block_h)
    splits, span = spans_of(n, PROGRAMS // (batch * head_blocks), TOKENS)
    sums, values = totals.new_empty(batch, splits, heads), x.new_empty(batch, heads, 1, columns // heads)
    with on_device(x):
        central_kernel[(batch * heads, triton.cdiv(dim, CHANNELS))](
            totals, vectors, *_read(key), u, offset, heads, totals.shape[1], eps, **_sizes(key, dim, heads)
        )
        scores = x @ u.mT
        edge_kernel[(batch * splits * head_blocks,)](
            scores,
            offset,
            mask_bytes(mask, x),
            sums,
            heads,
            n,
            splits,
            span,
            BLOCK_N=TOKENS,
            BLOCK_H=block_h,
            MASKED=mask is not None,
            ACTIVATION=NUMBERS[activation],
            num_warps=4,
        )
        value_kernel[(batch * heads,)](
            scores.mT @ x, sums, *_read(value), values, heads, splits, eps, **_sizes(value, dim, heads)
        )
    return values


def _read(projection: Projection) -> tuple[Tensor, Tensor]:
    weight, bias = projection
    return weight.contiguous(), weight if bias is None else bias.contiguous()


def _sizes(projection: Projection, dim: int, heads: int) -> dict[str, int | bool]:
    width = projection[0].shape[0] // heads
    sizes = {"DIM": dim, "WIDTH": width, "PADDED": padded_width(width), "BIASED": projection[1] is not None}
    return sizes | {"BLOCK": SPANS_AT_ONCE, "BLOCK_D": CHANNELS, "num_warps": 4}
