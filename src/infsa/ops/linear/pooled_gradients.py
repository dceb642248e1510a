"""The way back from pooled values to tokens and projections: what each launch of ``pooled_values`` pulls on its inputs.

With g = ∂L/∂(γ Σ a v), g' = γ g / (Σ|S| + ε), r = W_Vᵀ g' (a row per head) and m = b_V · g':

    dS_j = x_j · r + m − sign(S_j) (P · r + m Σ S) / (Σ|S| + ε)        P = Σ S x
    draw = dS φ'        du = Σ draw x        do = Σ draw        dq̄ = W_K du + b_K do
    dx = draw u + S r + dq W_Q        dW_V = g' Pᵀ        dW_K = q̄ duᵀ

The two terms of dS nearly cancel, so both are computed with r as it was rounded.
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from ..triton.parts import COUNTS, GELU, RELU, edges_and_pulled, product, real_tokens, rounded, wide
from .pooled_values import head_sum, times


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
    """For a few images and one head: u and r in ``rows`` (B, 2H, D), g' in ``scaled``; in ``pulls`` (3, B, H) what dS
    adds to x · r, as it is and by the sign of S, and the pull on γ."""
    head = tl.program_id(0) % heads
    image = tl.program_id(0) // heads * IMAGES + tl.arange(0, IMAGES)
    exists = image < items // heads
    place = wide(image) * heads + head
    mass = tl.load(numbers_ptr + 2 * items + place, mask=exists, other=0.0)
    scale = tl.load(numbers_ptr + 3 * items + place, mask=exists, other=1.0)
    if LEARNED:
        gamma = tl.load(gamma_ptr + head)
    inside = tl.arange(0, PADDED)
    row = head * WIDTH + inside
    known = exists[:, None] & (inside < WIDTH)[None, :]
    of_row = place[:, None] * WIDTH + inside[None, :]
    grad = tl.load(grad_ptr + of_row, mask=known, other=0.0).to(tl.float32) / scale[:, None]  # (IMAGES, PADDED)
    tl.store(scaled_ptr + of_row, gamma * grad, mask=known)
    on_mass = tl.zeros([IMAGES], dtype=tl.float32)
    if BIASED:
        b = tl.load(b_ptr + row, mask=inside < WIDTH, other=0.0).to(tl.float32)
        on_mass = tl.sum(grad * b[None, :], 1)
    kept = rows_ptr + (wide(image) * 2 * heads + head)[:, None] * DIM
    exact = tl.zeros([IMAGES, BLOCK_D], dtype=tl.float32)
    nearly = tl.zeros([IMAGES, BLOCK_D], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        inner = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
        w = tl.load(w_ptr + row[:, None] * DIM + channel[None, :], mask=inner, other=0.0).to(tl.float32)
        mask = exists[:, None] & (channel < DIM)[None, :]
        spot = place[:, None] * DIM + channel[None, :]
        pooled = tl.load(pooled_ptr + spot, mask=mask, other=0.0)
        pull = times(grad, w)
        near = rounded(gamma * pull, rows_ptr.dtype.element_ty)
        tl.store(kept + channel[None, :], tl.load(u_ptr + spot, mask=mask, other=0.0), mask=mask)
        tl.store(kept + wide(heads) * DIM + channel[None, :], near, mask=mask)
        exact += pull * pooled
        nearly += near.to(tl.float32) * pooled
    tl.store(pulls_ptr + 2 * items + place, tl.sum(exact, 1) + mass * on_mass, mask=exists)
    on_mass *= gamma
    if ACTIVATION == GELU:
        tl.store(pulls_ptr + place, on_mass, mask=exists)
        tl.store(pulls_ptr + items + place, -(tl.sum(nearly, 1) + mass * on_mass) / scale, mask=exists)
    else:
        tl.store(pulls_ptr + place, (eps * on_mass - tl.sum(nearly, 1)) / scale, mask=exists)


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
    head_blocks = tl.cdiv(heads, BLOCK_H)
    head = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    place = tl.program_id(0) // head_blocks
    batch, first = place // splits, place % splits * span
    last = tl.minimum(first + span, n)
    of_head = wide(batch) * heads + head
    on_mass = tl.load(pulls_ptr + of_head, mask=head < heads, other=0.0)
    if ACTIVATION != RELU:
        offset = tl.load(numbers_ptr + items + of_head, mask=head < heads, other=0.0)
    if ACTIVATION == GELU:
        on_absolute = tl.load(pulls_ptr + items + of_head, mask=head < heads, other=0.0)
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
        _, draw = edges_and_pulled(raw, 1.0, pull, 0.0, ACTIVATION)
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
    w_ptr,
    b_ptr,
    on_vectors_ptr,
    on_totals_ptr,
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
    """The pulls on Σ e q and on Σ e of one image and head; in ``on_totals`` (2, B, H) the latter, and do."""
    place = tl.program_id(0)
    batch, head = place // heads, place % heads
    on_offset = head_sum(sums_ptr, batch, head, heads, splits, BLOCK)
    inside = tl.arange(0, PADDED)
    row = head * WIDTH + inside
    products = tl.zeros([PADDED, BLOCK_D], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        mask = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
        w = tl.load(w_ptr + row[:, None] * DIM + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        products += w * tl.load(du_ptr + wide(place) * DIM + channel, mask=channel < DIM, other=0.0)[None, :]
    on_central = tl.sum(products, 1)
    if BIASED:
        on_central += on_offset * tl.load(b_ptr + row, mask=inside < WIDTH, other=0.0).to(tl.float32)
    on_central /= tl.load(numbers_ptr + place)
    central = tl.load(central_ptr + wide(place) * WIDTH + inside, mask=inside < WIDTH, other=0.0)
    tl.store(on_vectors_ptr + wide(place) * WIDTH + inside, on_central, mask=inside < WIDTH)
    tl.store(on_totals_ptr + place, -tl.sum(on_central * central, 0))
    tl.store(on_totals_ptr + items + place, on_offset)


@triton.jit(do_not_specialize=COUNTS)
def weight_kernel(
    rows_ptr,
    columns_ptr,
    numbers_ptr,
    weight_ptr,
    bias_ptr,
    dw_ptr,
    db_ptr,
    heads,
    items,
    skip,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    IMAGES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ADDED: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Σ over images of a cᵀ, rows a (B, H, WIDTH), columns c (B, H, DIM), and of a s, for a head and block of channels.

    s are the numbers after the first ``skip``; ``ADDED`` to a weight's and a bias's gradient in float32.
    """
    head = tl.program_id(0)
    inside = tl.arange(0, PADDED)
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = head * WIDTH + inside
    batch = items // heads
    dw = tl.zeros([PADDED, BLOCK_D], dtype=tl.float32)
    db = tl.zeros([PADDED], dtype=tl.float32)
    for start in tl.range(0, batch, IMAGES):
        image = start + tl.arange(0, IMAGES)
        place = wide(image) * heads + head
        mask = (inside < WIDTH)[:, None] & (image < batch)[None, :]
        a = tl.load(rows_ptr + place[None, :] * WIDTH + inside[:, None], mask=mask, other=0.0)
        if WEIGHT:
            mask = (image < batch)[:, None] & (channel < DIM)[None, :]
            c = tl.load(columns_ptr + place[:, None] * DIM + channel[None, :], mask=mask, other=0.0)
            dw = product(a, c, dw)
        if BIAS:
            db += tl.sum(a * tl.load(numbers_ptr + skip + place, mask=image < batch, other=0.0)[None, :], 1)
    if WEIGHT:
        spot = row[:, None] * DIM + channel[None, :]
        mask = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
        if ADDED:
            dw += tl.load(weight_ptr + spot, mask=mask, other=0.0)
        tl.store(dw_ptr + spot, rounded(dw, dw_ptr.dtype.element_ty), mask=mask)
    if BIAS:
        mask = (inside < WIDTH) & (inside + tl.program_id(1) * PADDED < PADDED)  # one block of channels writes it
        if ADDED:
            db += tl.load(bias_ptr + row, mask=mask, other=0.0)
        tl.store(db_ptr + row, rounded(db, db_ptr.dtype.element_ty), mask=mask)
