"""Linear-InfSA, pool first: the sums of both passes straight from the tokens x, before any projection is written.

First pass: q = x Wᵀ + b stays in registers; a program adds up e = ‖q_i‖ and e q_i over its block of tokens, for a few
heads. Second pass: the scores φ(u_h · x_j + o_h) of all heads, u = W_Kᵀ q̄ and o = q̄ · b_K, are written once, N × H
numbers; a second kernel adds up S_jh x_j. Each program writes its own partial sums, which are added in one order.

Scores are kept divided by ``unit`` per head, so that they fit float16; ``unit`` is a power of two.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from ..triton.parts import (
    COUNTS,
    edges,
    edges_and_pulled,
    head_start,
    product,
    query_gradient,
    real_tokens,
    rounded,
    wide,
)


@triton.jit
def _token_tile(x_base, stride_n, token, channel, n, DIM: tl.constexpr):
    """x at (tokens, channels), zeros outside."""
    mask = (token < n)[:, None] & (channel < DIM)[None, :]
    return tl.load(x_base + token[:, None] * wide(stride_n) + channel[None, :], mask=mask, other=0.0)


@triton.jit
def _queries(
    x_ptr,
    w_ptr,
    b_ptr,
    mask_ptr,
    stride_b,
    stride_n,
    heads,
    n,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The queries (BLOCK_N, BLOCK_H, PADDED) of this program's tokens and heads, zero where there are none.

    With them the place of the block among all blocks of tokens, the batch item, the tokens and the first head.
    """
    head_blocks = tl.cdiv(heads, BLOCK_H)
    blocks = tl.cdiv(n, BLOCK_N)
    first_head = tl.program_id(0) % head_blocks * BLOCK_H  # neighbours share the tokens
    place = tl.program_id(0) // head_blocks
    batch, block = place // blocks, place % blocks
    token = block * BLOCK_N + tl.arange(0, BLOCK_N)
    x_base = head_start(x_ptr, batch, 0, stride_b, 0)
    column = tl.arange(0, BLOCK_H * PADDED)
    head, inside = first_head + column // PADDED, column % PADDED
    exists = (head < heads) & (inside < WIDTH)
    row = head * WIDTH + inside  # of the weight (H · WIDTH, DIM)
    sums = tl.zeros([BLOCK_N, BLOCK_H * PADDED], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        x = _token_tile(x_base, stride_n, token, channel, n, DIM)
        mask = exists[None, :] & (channel < DIM)[:, None]
        w = tl.load(w_ptr + row[None, :] * DIM + channel[:, None], mask=mask, other=0.0)
        sums = product(x, w, sums)
    if BIASED:
        sums += tl.load(b_ptr + row, mask=exists, other=0.0).to(tl.float32)[None, :]
    q = tl.reshape(sums, (BLOCK_N, BLOCK_H, PADDED))
    q = tl.where(real_tokens(mask_ptr, batch, token, n, MASKED)[:, None, None], q, 0.0)
    return q, place, batch, token, first_head


@triton.jit(do_not_specialize=COUNTS)
def energy_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    mask_ptr,
    total_ptr,
    vectors_ptr,
    stride_xb,
    stride_xn,
    heads,
    n,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Σ e and Σ e q of a block of tokens, for a block of heads."""
    q, place, _, _, first_head = _queries(
        x_ptr,
        w_ptr,
        b_ptr,
        mask_ptr,
        stride_xb,
        stride_xn,
        heads,
        n,
        DIM,
        WIDTH,
        PADDED,
        BLOCK_N,
        BLOCK_H,
        BLOCK_D,
        BIASED,
        MASKED,
    )
    energy = tl.sqrt(tl.sum(q * q, 2))  # (BLOCK_N, BLOCK_H)
    head, inside = first_head + tl.arange(0, BLOCK_H), tl.arange(0, PADDED)
    place = wide(place) * heads + head
    tl.store(total_ptr + place, tl.sum(energy, 0), mask=head < heads)
    mask = (head < heads)[:, None] & (inside < WIDTH)[None, :]
    vectors = tl.sum(q * energy[:, :, None], 0)
    tl.store(vectors_ptr + place[:, None] * WIDTH + inside[None, :], vectors, mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def energy_backward_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    mask_ptr,
    grad_total_ptr,
    grad_vectors_ptr,
    dq_ptr,
    stride_xb,
    stride_xn,
    heads,
    n,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """dq_i = (g_e + g_q · q_i) q_i / e_i + e_i g_q, with q computed again: (B, N, H · WIDTH)."""
    q, _, batch, token, first_head = _queries(
        x_ptr,
        w_ptr,
        b_ptr,
        mask_ptr,
        stride_xb,
        stride_xn,
        heads,
        n,
        DIM,
        WIDTH,
        PADDED,
        BLOCK_N,
        BLOCK_H,
        BLOCK_D,
        BIASED,
        MASKED,
    )
    head, inside = first_head + tl.arange(0, BLOCK_H), tl.arange(0, PADDED)
    mask = (head < heads)[:, None] & (inside < WIDTH)[None, :]
    of_head = wide(batch) * heads + head
    on_total = tl.load(grad_total_ptr + of_head, mask=head < heads, other=0.0)
    on_vectors = tl.load(grad_vectors_ptr + of_head[:, None] * WIDTH + inside[None, :], mask=mask, other=0.0)
    dq = tl.reshape(query_gradient(q, on_total, on_vectors), (BLOCK_N, BLOCK_H * PADDED))
    dq = rounded(dq, dq_ptr.dtype.element_ty)
    column = tl.arange(0, BLOCK_H * PADDED)
    head, inside = first_head + column // PADDED, column % PADDED
    base = dq_ptr + wide(batch) * n * heads * WIDTH
    mask = (token < n)[:, None] & ((head < heads) & (inside < WIDTH))[None, :]
    tl.store(base + token[:, None] * wide(heads * WIDTH) + (head * WIDTH + inside)[None, :], dq, mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def score_kernel(
    x_ptr,
    u_ptr,
    g_ptr,
    offset_ptr,
    unit_ptr,
    on_absolute_ptr,
    on_signed_ptr,
    mask_ptr,
    scores_ptr,
    pulls_ptr,
    first_ptr,
    second_ptr,
    stride_xb,
    stride_xn,
    heads,
    n,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Scores S / unit of a block of tokens and heads with Σ|S| and ΣS; backward also ∂L/∂raw with its sum."""
    head_blocks = tl.cdiv(heads, BLOCK_H)
    blocks = tl.cdiv(n, BLOCK_N)
    head = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    place = tl.program_id(0) // head_blocks
    batch, block = place // blocks, place % blocks
    token = block * BLOCK_N + tl.arange(0, BLOCK_N)
    x_base = head_start(x_ptr, batch, 0, stride_xb, 0)
    of_head = wide(batch) * heads + head
    raw = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    pull = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        x = _token_tile(x_base, stride_xn, token, channel, n, DIM)
        mask = (head < heads)[None, :] & (channel < DIM)[:, None]
        u = tl.load(u_ptr + of_head[None, :] * DIM + channel[:, None], mask=mask, other=0.0)
        raw = product(x, u, raw)
        if BACKWARD:
            g = tl.load(g_ptr + of_head[None, :] * DIM + channel[:, None], mask=mask, other=0.0)
            pull = product(x, g, pull)
    raw += tl.load(offset_ptr + of_head, mask=head < heads, other=0.0)[None, :]  # already divided by unit
    unit = tl.load(unit_ptr + of_head, mask=head < heads, other=0.0)[None, :]
    real = real_tokens(mask_ptr, batch, token, n, MASKED)[:, None] & (head < heads)[None, :]
    raw = tl.where(real, raw, 0.0)
    place = wide(place) * heads + head
    spot = (wide(batch) * n + token)[:, None] * heads + head[None, :]
    written = (token < n)[:, None] & (head < heads)[None, :]
    if BACKWARD:
        pull += tl.load(on_signed_ptr + of_head, mask=head < heads, other=0.0)[None, :]
        on_absolute = tl.load(on_absolute_ptr + of_head, mask=head < heads, other=0.0)[None, :]
        pull += tl.where(raw > 0, on_absolute, tl.where(raw < 0, -on_absolute, 0.0))  # φ keeps the sign, |x| aside
        if ACTIVATION == 2:
            pull = tl.where(raw < 0, pull + 2.0 * on_absolute, pull)
        s, pulled = edges_and_pulled(raw, unit, tl.where(real, pull, 0.0), 0.0, ACTIVATION)
        tl.store(pulls_ptr + spot, rounded(pulled, pulls_ptr.dtype.element_ty), mask=written)
        tl.store(first_ptr + place, tl.sum(pulled, 0), mask=head < heads)
    else:
        s = rounded(edges(raw, unit, ACTIVATION), scores_ptr.dtype.element_ty).to(tl.float32)  # as the pooling sees it
        tl.store(first_ptr + place, tl.sum(tl.abs(s), 0), mask=head < heads)
        tl.store(second_ptr + place, tl.sum(s, 0), mask=head < heads)
    tl.store(scores_ptr + spot, rounded(s, scores_ptr.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=COUNTS)
def token_sum_kernel(
    weights_ptr,
    x_ptr,
    sums_ptr,
    stride_xb,
    stride_xn,
    heads,
    n,
    splits,
    span,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Σ_j weights_jh x_j over one span of tokens, for a block of heads and channels."""
    head_blocks = tl.cdiv(heads, BLOCK_H)
    channel_blocks = tl.cdiv(DIM, BLOCK_D)
    head = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    rest = tl.program_id(0) // head_blocks
    channel = rest % channel_blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    place = rest // channel_blocks
    batch, first = place // splits, place % splits * span
    x_base = head_start(x_ptr, batch, 0, stride_xb, 0)
    sums = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
    last = tl.minimum(first + span, n)
    for start in tl.range(first, last, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        spot = (wide(batch) * n + token)[:, None] * heads + head[None, :]
        mask = (token < last)[:, None] & (head < heads)[None, :]
        weights = tl.load(weights_ptr + spot, mask=mask, other=0.0)
        x = _token_tile(x_base, stride_xn, token, channel, last, DIM)
        sums = product(tl.trans(weights), x, sums)
    mask = (head < heads)[:, None] & (channel < DIM)[None, :]
    place = wide(place) * heads + head
    tl.store(sums_ptr + place[:, None] * DIM + channel[None, :], sums, mask=mask)
