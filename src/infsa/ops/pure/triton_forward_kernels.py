"""Pure InfSA forward: one program per block of queries, one loop over the keys, then one scaling pass.

The norm of R is known only when every block is done. Until then a row is kept divided by its own norm:

    u_i = Σ_j R_ij v_j / (r_i n)        r_i = ‖R_i‖        n ≥ √Nk, a power of two        |u_i| ≤ max |v|

which no type can overflow and which is about as large as the result, so u is written in the type of the output.
The second kernel adds the partial sums of r_i² (float64, always in the same order) and turns u into
Z_i = γ u_i r_i n / (F_i + ε) in place; F_i is the norm of all rows, of the rows up to i, or ‖R_i‖ √n_i.

Queries are multiplied by a power of two on loading, so that q_i · k_j fits float16 for every pair, and its square
float32; r_i takes that power back. bfloat16 has the range of float32 and goes without: its queries reach the tensor
cores straight from memory, and scores beyond 9e18 give NaN. Nothing is scaled inside the loop: 1/√d too goes into r_i.
"""

# ruff: noqa: ANN001, ANN201, ANN202, SIM108
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from ..triton.parts import (
    COUNTS,
    add_products,
    block_of,
    decay_of,
    dots,
    edges,
    halves,
    head_start,
    load_tile,
    load_tiles,
    no_sums,
    power_of_two_below,
    rounded,
    store_sums,
    store_tile,
    sum_of,
    sums_behind,
    tokens_of,
    wide,
)

TINY = tl.constexpr(1.1754943508222875e-38)  # float32's smallest normal number: the inverse of less is infinite
FLOAT16_MAX = tl.constexpr(65504.0)


@triton.jit
def squares_of(q):
    """Σ q² of each token, in float32."""
    exact = q[0].to(tl.float32)
    found = tl.sum(exact * exact, 1)
    if len(q) == 2:
        rest = q[1].to(tl.float32)
        found += tl.sum(rest * rest, 1)
    return found


@triton.jit
def scaled(q, factor):
    """q times a factor per token, a power of two."""
    if len(q) == 1:
        return ((q[0].to(tl.float32) * factor).to(q[0].dtype),)
    else:
        return ((q[0].to(tl.float32) * factor).to(q[0].dtype), (q[1].to(tl.float32) * factor).to(q[1].dtype))


@triton.jit
def _visit(
    sums,
    squares,
    q,
    unit,
    keys,
    values,
    stride_kn,
    stride_vn,
    first,
    last,
    row_start,
    n_k,
    WIDTHS: tl.constexpr,
    VALUE_WIDTHS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    DIAGONAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TMA: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Add the keys first .. last to Σ R v and Σ R²."""
    for start in tl.range(first, last, BLOCK_K, warp_specialize=SPECIALIZE):
        k = load_tiles(keys, stride_kn, start, n_k, WIDTHS, BLOCK_K, EVEN, TMA)
        r = edges(dots(q, k), unit, ACTIVATION)
        if DIAGONAL:
            row = row_start + tl.arange(0, BLOCK_Q)
            column = start + tl.arange(0, BLOCK_K)
            r = tl.where(column[None, :] <= row[:, None], r, 0.0)
        if LANES:
            left, right = halves(r, BLOCK_Q, BLOCK_K)
            a, b = halves(left, BLOCK_Q, BLOCK_K // 2)
            squares += a * a
            squares += b * b
            a, b = halves(right, BLOCK_Q, BLOCK_K // 2)
            squares += a * a
            squares += b * b
        else:
            squares += tl.sum(r * r, 1)
        v = load_tiles(values, stride_vn, start, n_k, VALUE_WIDTHS, BLOCK_K, EVEN, TMA)
        sums = add_products(r, v, sums)
    return sums, squares


@triton.jit(do_not_specialize=COUNTS)
def pure_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    z_ptr,
    row_norm_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_zb,
    stride_zh,
    stride_zn,
    heads,
    group,
    n_q,
    n_k,
    inverse_root_width,
    inverse_root_keys,
    HEADROOM: tl.constexpr,
    SCALED: tl.constexpr,
    WIDTHS: tl.constexpr,
    VALUE_WIDTHS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    CAUSAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TMA: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    LANES: tl.constexpr,
):
    """u, r and the block's Σ r² for one block of queries of one head."""
    block, blocks, item, batch, head = block_of(n_q, heads, group, BLOCK_Q, CAUSAL)  # the longest rows first
    start = block * BLOCK_Q
    queries = head_start(q_ptr, batch, head, stride_qb, stride_qh)
    queries = tokens_of(queries, stride_qn, n_q, WIDTHS, BLOCK_Q, False)
    q = load_tiles(queries, stride_qn, start, n_q, WIDTHS, BLOCK_Q, False, False)
    if SCALED:
        size = power_of_two_below(tl.sqrt(squares_of(q))) * HEADROOM
        q = scaled(q, (1.0 / size)[:, None])
        unit = size * inverse_root_width  # S = unit · raw
    else:
        unit = tl.zeros([BLOCK_Q], dtype=tl.float32) + inverse_root_width

    keys = head_start(k_ptr, batch, head, stride_kb, stride_kh)
    values = head_start(v_ptr, batch, head, stride_vb, stride_vh)
    keys = tokens_of(keys, stride_kn, n_k, WIDTHS, BLOCK_K, TMA)
    values = tokens_of(values, stride_vn, n_k, VALUE_WIDTHS, BLOCK_K, TMA)
    sums = no_sums(BLOCK_Q, VALUE_WIDTHS)
    if LANES:
        squares = tl.zeros([BLOCK_Q, BLOCK_K // 4], dtype=tl.float32)
    else:
        squares = tl.zeros([BLOCK_Q], dtype=tl.float32)

    whole = n_k
    if CAUSAL:
        whole = start // BLOCK_K * BLOCK_K  # the columns that every row of the block sees
    for part in tl.static_range(1 + CAUSAL):  # the diagonal comes second
        sums, squares = _visit(
            sums,
            squares,
            q,
            unit[:, None],
            keys,
            values,
            stride_kn,
            stride_vn,
            whole if part else 0,
            tl.minimum(start + BLOCK_Q, n_k) if part else whole,
            start,
            n_k,
            WIDTHS,
            VALUE_WIDTHS,
            BLOCK_Q,
            BLOCK_K,
            EVEN,
            part == 1,
            ACTIVATION,
            TMA,
            SPECIALIZE and part == 0,
            LANES,
        )

    if LANES:
        squares = tl.sum(squares, 1)
    norm = tl.sqrt(tl.where(squares == float("inf"), float("nan"), squares))  # overflow must not look like zeros
    inverse = tl.where(norm == 0, 0.0, inverse_root_keys / tl.where(norm == 0, 1.0, norm))
    z = head_start(z_ptr, batch, head, stride_zb, stride_zh)
    store_sums(z, stride_zn, start, n_q, sums, inverse[:, None], VALUE_WIDTHS, BLOCK_Q)
    row = start + tl.arange(0, BLOCK_Q)
    norm = norm * unit
    tl.store(row_norm_ptr + wide(item) * n_q + row, norm, mask=row < n_q)
    exact = norm.to(tl.float64)
    partial = sums_behind(row_norm_ptr, wide(tl.num_programs(0) // blocks) * n_q)
    tl.store(partial + wide(item) * blocks + block, tl.sum(exact * exact, 0))


@triton.jit(do_not_specialize=COUNTS)
def pure_scale(
    z_ptr,
    row_norm_ptr,
    gamma_ptr,
    norm_ptr,
    seen_ptr,
    gamma,
    stride_zb,
    stride_zh,
    stride_zn,
    gamma_stride,
    stride_seen_b,
    stride_seen_n,
    heads,
    n_q,
    root_keys,
    eps,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    CAUSAL: tl.constexpr,
    BY_ROW: tl.constexpr,
    LEARNED: tl.constexpr,
):
    """Turn u into Z for one block of queries, and write the norms F."""
    block, blocks, item, batch, head = block_of(n_q, heads, 1, BLOCK_Q, False)
    start = block * BLOCK_Q
    row = start + tl.arange(0, BLOCK_Q)
    row_norm = tl.load(row_norm_ptr + wide(item) * n_q + row, mask=row < n_q, other=0.0)
    partial = sums_behind(row_norm_ptr, wide(tl.num_programs(0) // blocks) * n_q) + wide(item) * blocks
    if BY_ROW:
        seen = tl.load(seen_ptr + wide(batch) * stride_seen_b + row * stride_seen_n, mask=row < n_q, other=0.0)
        norm = row_norm.to(tl.float64) * tl.sqrt(seen)
        norm = tl.where(norm < TINY, 0.0, norm)
        tl.store(norm_ptr + wide(item) * n_q + row, norm.to(tl.float32), mask=row < n_q)
    elif CAUSAL:
        exact = row_norm.to(tl.float64)
        norm = tl.sqrt(sum_of(partial, block, 128) + tl.cumsum(exact * exact, 0))
        norm = tl.where(norm < TINY, 0.0, norm)
        tl.store(norm_ptr + wide(item) * n_q + row, norm.to(tl.float32), mask=row < n_q)
    else:
        norm = tl.sqrt(sum_of(partial, blocks, 128))
        norm = tl.where(norm < TINY, 0.0, norm)
        tl.store(norm_ptr + item, norm.to(tl.float32), mask=block == 0)
    scale = decay_of(gamma_ptr, gamma, head, gamma_stride, LEARNED).to(tl.float64) * root_keys
    scale = tl.where(norm == 0, 0.0, scale / tl.where(norm == 0, 1.0, norm + eps))
    share = (row_norm.to(tl.float64) * scale).to(tl.float32)
    base = head_start(z_ptr, batch, head, stride_zb, stride_zh)
    u = load_tile(base, stride_zn, start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, False, False)
    z = u.to(tl.float32) * share[:, None]
    if u.dtype == tl.float16:
        z = tl.clamp(z, -FLOAT16_MAX, FLOAT16_MAX, propagate_nan=tl.PropagateNan.ALL)
    store_tile(base, stride_zn, start, n_q, rounded(z, u.dtype), VALUE_WIDTH, BLOCK_Q, VALUE_PADDED)
