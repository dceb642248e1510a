"""Linear-InfSA from tokens to pooled values: the kernels around three matrix products, seven launches in all.

    x -> q, (Σ e, Σ e q), (q̄, u), x u, (S, Σ S), Sᵀ x, values

``numbers`` (5, B, H) holds what each head of an image has one of: Σ e + ε, o = q̄ · b_K, Σ S, Σ|S| + ε, and a power of
two t close to ‖q̄‖. q̄, u, o and S are kept divided by t, and ε with them: a score is then as large as its key, so that
float16 holds one where it holds the other. Sums over tokens are kept in float32, in one order; rows are rounded once.
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from ..triton.parts import (
    COUNTS,
    GELU,
    edges,
    head_start,
    power_of_two_below,
    product,
    real_tokens,
    rounded,
    wide,
)


@triton.jit
def columns(first_head, heads, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK_H: tl.constexpr):
    """Where the channels of a block of heads lie in a row of queries, and which of them exist."""
    column = tl.arange(0, BLOCK_H * PADDED)
    offset = first_head * WIDTH + column
    exists = offset < heads * WIDTH
    if WIDTH != PADDED:
        head, inside = first_head + column // PADDED, column % PADDED
        offset, exists = head * WIDTH + inside, (head < heads) & (inside < WIDTH)
    return offset, exists


@triton.jit
def span_of(heads, n, splits, span, BLOCK_H: tl.constexpr):
    """The program's first head, its place in (B, splits), the image, and the first and last token of its span."""
    head_blocks = tl.cdiv(heads, BLOCK_H)
    first_head = tl.program_id(0) % head_blocks * BLOCK_H
    place = tl.program_id(0) // head_blocks
    batch, first = place // splits, place % splits * span
    return first_head, place, batch, first, tl.minimum(first + span, n)


@triton.jit
def head_weight(w_ptr, head, channel, DIM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A head's rows of a weight (H · WIDTH, DIM), in float32, for some channels: (PADDED, channels)."""
    inside = tl.arange(0, PADDED)
    row = head * WIDTH + inside
    mask = (inside < WIDTH)[:, None] & (channel < DIM)[None, :]
    return tl.load(w_ptr + row[:, None] * DIM + channel[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def head_bias(b_ptr, head, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A head's part of a bias (H · WIDTH,), in float32: (PADDED,)."""
    inside = tl.arange(0, PADDED)
    return tl.load(b_ptr + head * WIDTH + inside, mask=inside < WIDTH, other=0.0).to(tl.float32)


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
    first_head, place, batch, first, last = span_of(heads, n, splits, span, BLOCK_H)
    offset, exists = columns(first_head, heads, WIDTH, PADDED, BLOCK_H)
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
def times(rows, w):
    """rows (images, PADDED) times w (PADDED, channels), both float32; the matrix units want sixteen images."""
    if rows.shape[0] == 1:
        return tl.sum(tl.trans(rows) * w, 0)[None, :]
    else:
        return product(rows, w, None)


@triton.jit(do_not_specialize=COUNTS)
def central_kernel(
    totals_ptr,
    vectors_ptr,
    w_ptr,
    b_ptr,
    central_ptr,
    numbers_ptr,
    u_ptr,
    heads,
    items,
    splits,
    eps,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    IMAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
):
    """u = W_Kᵀ q̄ for a block of channels, q̄ = Σ e q / (Σ e + ε), o = q̄ · b_K and t, of a few images and one head."""
    head = tl.program_id(0) % heads
    image = tl.program_id(0) // heads * IMAGES + tl.arange(0, IMAGES)
    exists = image < items // heads
    inside = tl.arange(0, PADDED)
    total = tl.zeros([IMAGES, BLOCK], dtype=tl.float32)
    vector = tl.zeros([IMAGES, BLOCK, PADDED], dtype=tl.float32)
    for start in tl.range(0, splits, BLOCK):
        split = start + tl.arange(0, BLOCK)
        spot = (wide(image)[:, None] * splits + split[None, :]) * heads + head
        mask = exists[:, None] & (split < splits)[None, :]
        total += tl.load(totals_ptr + spot, mask=mask, other=0.0)
        mask = mask[:, :, None] & (inside < WIDTH)[None, None, :]
        vector += tl.load(vectors_ptr + spot[:, :, None] * WIDTH + inside[None, None, :], mask=mask, other=0.0)
    total = tl.sum(total, 1) + eps
    central = tl.sum(vector, 1) / total[:, None]  # (IMAGES, PADDED)
    unit = power_of_two_below(tl.sqrt(tl.sum(central * central, 1)))
    central /= unit[:, None]
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    u = rounded(times(central, head_weight(w_ptr, head, channel, DIM, WIDTH, PADDED)), u_ptr.dtype.element_ty)
    place = wide(image) * heads + head
    tl.store(u_ptr + place[:, None] * DIM + channel[None, :], u, mask=exists[:, None] & (channel < DIM)[None, :])
    if tl.program_id(1) == 0:
        offset = tl.zeros([IMAGES], dtype=tl.float32)
        if BIASED:
            offset = tl.sum(central * head_bias(b_ptr, head, WIDTH, PADDED)[None, :], 1)
        tl.store(numbers_ptr + place, total, mask=exists)
        tl.store(numbers_ptr + items + place, offset, mask=exists)
        tl.store(numbers_ptr + 4 * items + place, unit, mask=exists)
        known = exists[:, None] & (inside < WIDTH)[None, :]
        tl.store(central_ptr + place[:, None] * WIDTH + inside[None, :], central, mask=known)


@triton.jit(do_not_specialize=COUNTS)
def edge_kernel(
    raw_ptr,
    numbers_ptr,
    mask_ptr,
    scores_ptr,
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
    """S = φ(raw + o), raw and S (B, N, H), for one span of tokens; Σ S and, where S may be negative, Σ|S|."""
    first_head, place, batch, first, last = span_of(heads, n, splits, span, BLOCK_H)
    head = first_head + tl.arange(0, BLOCK_H)
    of_head = wide(batch) * heads + head
    offset = tl.load(numbers_ptr + items + of_head, mask=head < heads, other=0.0)
    unit = tl.load(numbers_ptr + 4 * items + of_head, mask=head < heads, other=1.0)
    sums = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    absolute = tl.zeros([BLOCK_N, BLOCK_H], dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = real_tokens(mask_ptr, batch, token, n, MASKED) & (token < last)
        spot = (wide(batch) * n + token)[:, None] * heads + head[None, :]
        exists = (token < last)[:, None] & (head < heads)[None, :]
        raw = tl.load(raw_ptr + spot, mask=exists, other=0.0).to(tl.float32) + offset[None, :]
        s = rounded(tl.where(real[:, None], edges(raw, unit[None, :], ACTIVATION), 0.0), scores_ptr.dtype.element_ty)
        tl.store(scores_ptr + spot, s, mask=exists)
        s = tl.where(exists, s.to(tl.float32), 0.0)
        sums += s
        if ACTIVATION == GELU:
            absolute += tl.abs(s)
    spot = sums_ptr + wide(place) * heads + head
    tl.store(spot, tl.sum(sums, 0), mask=head < heads)
    if ACTIVATION == GELU:
        tl.store(spot + wide(items) * splits, tl.sum(absolute, 0), mask=head < heads)


@triton.jit
def head_sum(sums_ptr, batch, head, heads, splits, BLOCK: tl.constexpr):
    """The sum of the spans of one image and head: (B, splits, H) -> a number."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.range(0, splits, BLOCK):
        split = start + tl.arange(0, BLOCK)
        spot = (wide(batch) * splits + split) * heads + head
        total += tl.load(sums_ptr + spot, mask=split < splits, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def weight_times(
    w_ptr, head, row_ptr, place, DIM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK_D: tl.constexpr
):
    """A head's rows of a weight times a row in float32 (DIM,), the one at a place: (PADDED,)."""
    products = tl.zeros([PADDED, BLOCK_D], dtype=tl.float32)
    for start in tl.range(0, DIM, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        w = head_weight(w_ptr, head, channel, DIM, WIDTH, PADDED)
        products += w * tl.load(row_ptr + wide(place) * DIM + channel, mask=channel < DIM, other=0.0)[None, :]
    return tl.sum(products, 1)


@triton.jit(do_not_specialize=COUNTS)
def value_kernel(
    pooled_ptr,
    sums_ptr,
    w_ptr,
    b_ptr,
    gamma_ptr,
    numbers_ptr,
    values_ptr,
    heads,
    items,
    splits,
    eps,
    gamma,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIASED: tl.constexpr,
    LEARNED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """γ (W_V Σ S x + b_V Σ S) / (Σ|S| + ε) of one image and head."""
    place = tl.program_id(0)
    batch, head = place // heads, place % heads
    mass = head_sum(sums_ptr, batch, head, heads, splits, BLOCK)
    small = eps / tl.load(numbers_ptr + 4 * items + place)
    scale = mass + small
    if ACTIVATION == GELU:
        scale = head_sum(sums_ptr + wide(items) * splits, batch, head, heads, splits, BLOCK) + small
    tl.store(numbers_ptr + 2 * items + place, mass)
    tl.store(numbers_ptr + 3 * items + place, scale)
    inside = tl.arange(0, PADDED)
    found = weight_times(w_ptr, head, pooled_ptr, place, DIM, WIDTH, PADDED, BLOCK_D)
    if BIASED:
        found += mass * head_bias(b_ptr, head, WIDTH, PADDED)
    if LEARNED:
        gamma = tl.load(gamma_ptr + head)
    found = rounded(gamma * found / scale, values_ptr.dtype.element_ty)
    tl.store(values_ptr + wide(place) * WIDTH + inside, found, mask=inside < WIDTH)
