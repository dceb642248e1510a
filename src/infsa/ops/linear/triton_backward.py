"""The way back from pooled values to tokens and projections: what the kernels of ``triton_forward`` pull back.

With g = ∂L/∂(γ Σ a v), g' = γ g / (Σ|S| + ε), r = W_Vᵀ g' (a row per head) and m = b_V · g':

    dS_j = x_j · r + m − sign(S_j) (P · r + m Σ S) / (Σ|S| + ε)        P = Σ S x
    draw = dS φ'        du = Σ draw x        do = Σ draw        dq̄ = W_K du + b_K do
    dx = draw u + S r + dq W_Q        dW_V = g' Pᵀ        dW_K = q̄ duᵀ

The two terms of dS nearly cancel, so both are computed with r as it was rounded. r, m and all that follows from them
(draw, du, do) are kept divided by ρ, a power of two close to ‖g'‖; only what is added to dx is not.
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from ..triton.parts import (
    COUNTS,
    GELU,
    RELU,
    edges_and_pulled,
    head_start,
    power_of_two_below,
    product,
    query_gradient,
    real_tokens,
    rounded,
    wide,
)
from .triton_forward import columns, head_bias, head_sum, head_weight, span_of, times, weight_times


@triton.jit(do_not_specialize=COUNTS)
def row_kernel(
    grad_ptr,
    pooled_ptr,
    numbers_ptr,
    w_ptr,
    b_ptr,
    gamma_ptr,
    u_ptr,
    rows_ptr,
    scaled_ptr,
    pulls_ptr,
    heads,
    items,
    eps,
    gamma,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    IMAGES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
    LEARNED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """For a few images and one head: r, ρ u and ρ r in ``rows`` (B, 3H, D), g' in ``scaled``; in ``pulls`` (4, B, H)
    what dS adds to x · r, as it is and by the sign of S, the pull on γ, and ρ."""
    head = tl.program_id(0) % heads
    image = tl.program_id(0) // heads * IMAGES + tl.arange(0, IMAGES)
    exists = image < items // heads
    place = wide(image) * heads + head
    mass = tl.load(numbers_ptr + 2 * items + place, mask=exists, other=0.0)
    scale = tl.load(numbers_ptr + 3 * items + place, mask=exists, other=1.0)
    small = eps / tl.load(numbers_ptr + 4 * items + place, mask=exists, other=1.0)
    if LEARNED:
        gamma = tl.load(gamma_ptr + head)
    inside = tl.arange(0, PADDED)
    known = exists[:, None] & (inside < WIDTH)[None, :]
    of_row = place[:, None] * WIDTH + inside[None, :]
    grad = tl.load(grad_ptr + of_row, mask=known, other=0.0).to(tl.float32) / scale[:, None]  # (IMAGES, PADDED)
    if ACTIVATION != GELU:
        grad = tl.where((mass == 0)[:, None], 0.0, grad)  # a dead head gives nothing back: ε alone would overflow
    tl.store(scaled_ptr + of_row, gamma * grad, mask=known)
    unit = power_of_two_below(tl.sqrt(tl.sum(gamma * grad * gamma * grad, 1)))
    factor = gamma / unit
    on_mass = tl.zeros([IMAGES], dtype=tl.float32)
    if BIASED:
        on_mass = tl.sum(grad * head_bias(b_ptr, head, WIDTH, PADDED)[None, :], 1)
    kept = rows_ptr + (wide(image) * 3 * heads + head)[:, None] * DIM
    further = wide(heads) * DIM
    exact = tl.zeros([IMAGES, BLOCK_D], dtype=tl.float32)
    nearly = tl.zeros([IMAGES, BLOCK_D], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        w = head_weight(w_ptr, head, channel, DIM, WIDTH, PADDED)
        mask = exists[:, None] & (channel < DIM)[None, :]
        spot = place[:, None] * DIM + channel[None, :]
        pooled = tl.load(pooled_ptr + spot, mask=mask, other=0.0)
        pull = times(grad, w)
        near = rounded(factor[:, None] * pull, rows_ptr.dtype.element_ty)
        tl.store(kept + channel[None, :], near, mask=mask)
        near = near.to(tl.float32)
        u = unit[:, None] * tl.load(u_ptr + spot, mask=mask, other=0.0).to(tl.float32)
        tl.store(kept + further + channel[None, :], rounded(u, rows_ptr.dtype.element_ty), mask=mask)
        r = rounded(unit[:, None] * near, rows_ptr.dtype.element_ty)
        tl.store(kept + 2 * further + channel[None, :], r, mask=mask)
        exact += pull * pooled
        nearly += near * pooled
    tl.store(pulls_ptr + 2 * items + place, tl.sum(exact, 1) + mass * on_mass, mask=exists)
    tl.store(pulls_ptr + 3 * items + place, unit, mask=exists)
    on_mass *= factor
    if ACTIVATION == GELU:
        tl.store(pulls_ptr + place, on_mass, mask=exists)
        tl.store(pulls_ptr + items + place, -(tl.sum(nearly, 1) + mass * on_mass) / scale, mask=exists)
    else:
        tl.store(pulls_ptr + place, (small * on_mass - tl.sum(nearly, 1)) / scale, mask=exists)


@triton.jit(do_not_specialize=COUNTS)
def edge_gradient_kernel(
    on_scores_ptr,
    raw_ptr,
    scores_ptr,
    numbers_ptr,
    pulls_ptr,
    mask_ptr,
    both_ptr,
    sums_ptr,
    heads,
    items,
    n,
    splits,
    span,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    MASKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """draw and S side by side, (B, N, 2H), from x · r (B, N, H), for one span of tokens; Σ draw."""
    first_head, place, batch, first, last = span_of(heads, n, splits, span, BLOCK_H)
    head = first_head + tl.arange(0, BLOCK_H)
    of_head = wide(batch) * heads + head
    on_mass = tl.load(pulls_ptr + of_head, mask=head < heads, other=0.0)
    if ACTIVATION != RELU:
        offset = tl.load(numbers_ptr + items + of_head, mask=head < heads, other=0.0)
    if ACTIVATION == GELU:
        unit = tl.load(numbers_ptr + 4 * items + of_head, mask=head < heads, other=1.0)
        on_absolute = tl.load(pulls_ptr + items + of_head, mask=head < heads, other=0.0)
    else:
        unit = 1.0 + tl.zeros([BLOCK_H], dtype=tl.float32)
    sums = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = real_tokens(mask_ptr, batch, token, n, MASKED) & (token < last)
        exists = (token < last)[:, None] & (head < heads)[None, :]
        of_token = wide(batch) * n + token
        spot = of_token[:, None] * heads + head[None, :]
        pull = tl.load(on_scores_ptr + spot, mask=exists, other=0.0) + on_mass[None, :]
        s = tl.load(scores_ptr + spot, mask=exists, other=0.0)
        raw = s.to(tl.float32)  # ReLU: both have the same sign
        if ACTIVATION != RELU:
            raw = tl.load(raw_ptr + spot, mask=exists, other=0.0).to(tl.float32) + offset[None, :]
        if ACTIVATION == GELU:
            pull += tl.where(raw < 0, -on_absolute[None, :], on_absolute[None, :])
        _, draw = edges_and_pulled(raw, unit[None, :], pull, 0.0, ACTIVATION)
        draw = rounded(tl.where(real[:, None], draw, 0.0), both_ptr.dtype.element_ty)
        spot = both_ptr + of_token[:, None] * (2 * heads) + head[None, :]
        tl.store(spot, draw, mask=exists)
        tl.store(spot + heads, s, mask=exists)
        sums += tl.where(exists, draw.to(tl.float32), 0.0)
    tl.store(sums_ptr + wide(place) * heads + head, tl.sum(sums, 0), mask=head < heads)


@triton.jit(do_not_specialize=COUNTS)
def central_gradient_kernel(
    du_ptr,
    sums_ptr,
    central_ptr,
    numbers_ptr,
    pulls_ptr,
    w_ptr,
    b_ptr,
    on_vectors_ptr,
    on_totals_ptr,
    scaled_ptr,
    heads,
    items,
    splits,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
):
    """The pulls on Σ e q and on Σ e of one image and head; in ``on_totals`` (2, B, H) the latter, and do; ρ q̄."""
    place = tl.program_id(0)
    batch, head = place // heads, place % heads
    on_offset = head_sum(sums_ptr, batch, head, heads, splits, BLOCK)
    inside = tl.arange(0, PADDED)
    on_central = weight_times(w_ptr, head, du_ptr, place, DIM, WIDTH, PADDED, BLOCK_D)
    if BIASED:
        on_central += on_offset * head_bias(b_ptr, head, WIDTH, PADDED)
    unit, scale = tl.load(numbers_ptr + 4 * items + place), tl.load(pulls_ptr + 3 * items + place)
    on_central *= scale / unit / tl.load(numbers_ptr + place)
    of_row = wide(place) * WIDTH + inside
    central = tl.load(central_ptr + of_row, mask=inside < WIDTH, other=0.0)
    tl.store(on_vectors_ptr + of_row, on_central, mask=inside < WIDTH)
    tl.store(scaled_ptr + of_row, scale * central, mask=inside < WIDTH)
    tl.store(on_totals_ptr + place, -tl.sum(on_central * central, 0) * unit)
    tl.store(on_totals_ptr + items + place, on_offset)


@triton.jit
def head_weight_gradient(
    rows_ptr,
    columns_ptr,
    numbers_ptr,
    added_ptr,
    spans_ptr,
    dw_ptr,
    db_ptr,
    heads,
    batch,
    splits,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    IMAGES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ADDED: tl.constexpr,
    SPANS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    OUT: tl.constexpr,
):
    """Σ over images of a cᵀ, rows a (B, H, WIDTH), columns c (B, H, DIM), and of a s, for a head and block of channels.

    s are the numbers (B, H). ``ADDED`` is a weight's gradient in float32, ``SPANS`` the terms of a bias's, (B, splits,
    H · WIDTH). For the projection after the heads, ``OUT``, c is (B, DIM), and the weight (DIM, H · WIDTH).
    """
    head = tl.program_id(0)
    inside = tl.arange(0, PADDED)
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = head * WIDTH + inside
    dw = tl.zeros([PADDED, BLOCK_D], dtype=tl.float32)
    db = tl.zeros([PADDED], dtype=tl.float32)
    for start in tl.range(0, batch, IMAGES):
        image = start + tl.arange(0, IMAGES)
        place = wide(image) * heads + head
        mask = (inside < WIDTH)[:, None] & (image < batch)[None, :]
        a = tl.load(rows_ptr + place[None, :] * WIDTH + inside[:, None], mask=mask, other=0.0)
        if WEIGHT:
            mask = (image < batch)[:, None] & (channel < DIM)[None, :]
            of_column = wide(image) if OUT else place
            c = tl.load(columns_ptr + of_column[:, None] * DIM + channel[None, :], mask=mask, other=0.0)
            dw = product(a, c, dw)
        if BIAS:
            db += tl.sum(a * tl.load(numbers_ptr + place, mask=image < batch, other=0.0)[None, :], 1)
    if WEIGHT:
        spot = row[:, None] * DIM + channel[None, :]
        mask = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
        if ADDED:
            dw += tl.load(added_ptr + spot, mask=mask, other=0.0)
        if OUT:
            spot = channel[:, None] * (heads * WIDTH) + row[None, :]
            tl.store(dw_ptr + spot, rounded(tl.trans(dw), dw_ptr.dtype.element_ty), mask=tl.trans(mask))
        else:
            tl.store(dw_ptr + spot, rounded(dw, dw_ptr.dtype.element_ty), mask=mask)
    if BIAS:
        mine = (inside < WIDTH) & (inside + tl.program_id(1) * PADDED < PADDED)  # one block of channels writes it
        if SPANS:
            terms = tl.zeros([PADDED, IMAGES], dtype=tl.float32)
            for start in tl.range(0, batch * splits, IMAGES):
                span = start + tl.arange(0, IMAGES)
                known = mine[:, None] & (span < batch * splits)[None, :]
                term = wide(span)[None, :] * (heads * WIDTH) + row[:, None]
                terms += tl.load(spans_ptr + term, mask=known, other=0.0)
            db += tl.sum(terms, 1)
        tl.store(db_ptr + row, rounded(db, db_ptr.dtype.element_ty), mask=mine)


@triton.jit(do_not_specialize=COUNTS)
def weight_kernel(
    rows_v_ptr,
    columns_v_ptr,
    numbers_v_ptr,
    dw_v_ptr,
    db_v_ptr,
    rows_ptr,
    columns_ptr,
    numbers_ptr,
    added_ptr,
    spans_ptr,
    dw_ptr,
    db_ptr,
    values_ptr,
    on_row_ptr,
    dw_out_ptr,
    heads,
    items,
    splits,
    DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    IMAGES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OF_VALUES: tl.constexpr,
    OF_KEYS: tl.constexpr,
    OUT: tl.constexpr,
    ADDED: tl.constexpr,
    SPANS: tl.constexpr,
    VALUE_WEIGHT: tl.constexpr,
    VALUE_BIAS: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
):
    """The gradients of the projections for values, for keys and after the heads, or of some of them."""
    batch = items // heads
    if OF_VALUES:  # noqa: SIM102
        if tl.program_id(2) == 0:
            head_weight_gradient(
                rows_v_ptr,
                columns_v_ptr,
                numbers_v_ptr + 2 * items,  # Σ S
                added_ptr,
                spans_ptr,
                dw_v_ptr,
                db_v_ptr,
                heads,
                batch,
                splits,
                DIM,
                VALUE_WIDTH,
                VALUE_PADDED,
                IMAGES,
                BLOCK_D,
                False,
                False,
                VALUE_WEIGHT,
                VALUE_BIAS,
                False,
            )
    if OF_KEYS:  # noqa: SIM102
        if tl.program_id(2) == OF_VALUES:
            head_weight_gradient(
                rows_ptr,
                columns_ptr,
                numbers_ptr + items,  # do
                added_ptr,
                spans_ptr,
                dw_ptr,
                db_ptr,
                heads,
                batch,
                splits,
                DIM,
                WIDTH,
                PADDED,
                IMAGES,
                BLOCK_D,
                ADDED,
                SPANS,
                WEIGHT,
                BIAS,
                False,
            )
    if OUT:  # noqa: SIM102
        if tl.program_id(2) == OF_VALUES + OF_KEYS:
            head_weight_gradient(
                values_ptr,
                on_row_ptr,
                numbers_ptr,
                added_ptr,
                spans_ptr,
                dw_out_ptr,
                db_ptr,
                heads,
                batch,
                splits,
                DIM,
                VALUE_WIDTH,
                VALUE_PADDED,
                IMAGES,
                BLOCK_D,
                False,
                False,
                True,
                False,
                True,
            )


@triton.jit(do_not_specialize=COUNTS)
def query_gradient_kernel(
    q_ptr,
    mask_ptr,
    grad_total_ptr,
    grad_vectors_ptr,
    dq_ptr,
    sums_ptr,
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
    """dq of a span of tokens, for a block of heads, and its sum over them; dq (B, N, H · WIDTH) has no gaps."""
    first_head, place, batch, first, last = span_of(heads, n, splits, span, BLOCK_H)
    offset, exists = columns(first_head, heads, WIDTH, PADDED, BLOCK_H)
    base = head_start(q_ptr, batch, 0, stride_b, 0)
    head, inside = first_head + tl.arange(0, BLOCK_H), tl.arange(0, PADDED)
    spot = wide(batch) * heads + head
    on_total = tl.load(grad_total_ptr + spot, mask=head < heads, other=0.0)
    mask = (head < heads)[:, None] & (inside < WIDTH)[None, :]
    on_vectors = tl.load(grad_vectors_ptr + spot[:, None] * WIDTH + inside[None, :], mask=mask, other=0.0)
    sums = tl.zeros([BLOCK_N, BLOCK_H * PADDED], dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = real_tokens(mask_ptr, batch, token, n, MASKED) & (token < last)
        row = wide(token)[:, None] * stride_n + offset[None, :]
        q = tl.load(base + row, mask=real[:, None] & exists[None, :], other=0.0)
        q = tl.reshape(q.to(tl.float32), (BLOCK_N, BLOCK_H, PADDED))
        dq = tl.reshape(query_gradient(q, on_total, on_vectors), (BLOCK_N, BLOCK_H * PADDED))
        sums += dq
        row = dq_ptr + (wide(batch) * n + token)[:, None] * (heads * WIDTH)
        dq = rounded(dq, dq_ptr.dtype.element_ty)
        tl.store(row + offset[None, :], dq, mask=(token < last)[:, None] & exists[None, :])
    tl.store(sums_ptr + wide(place) * (heads * WIDTH) + offset, tl.sum(sums, 0), mask=exists)
