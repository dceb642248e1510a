"""Pure InfSA backward: scores are computed again, by one kernel for the keys and values and one for the queries.

With a_i = γ / s_i, c_i = ⟨∂L/∂Z_i, Z_i⟩ and w_i = Σ_r c_r / (s_r F_r) over the rows whose norm contains row i
(n_i c_i / (s_i F_i) for the row norm):

    dS_ij = (a_i ∂L/∂Z_i · v_j − w_i R_ij) φ'(S_ij)      dV = Rᵀ (a ∂L/∂Z)      dQ = dS k / √d      dK = dSᵀ q / √d

Each result is summed by one program in one order: no atomics, and two runs are bit-equal. Where a and w are the same
for every row they leave the loop, which then needs one product and one select per score. Causal rows and rows with a
norm of their own differ, and float16 needs its range watched: there three numbers per row are multiplied into the
scores.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from ..triton.parts import (
    COUNTS,
    edges_and_pulled,
    head_start,
    load_tile,
    product,
    rounded,
    store_tile,
    sum_of,
    tokens_of,
    wide,
)


@triton.jit(do_not_specialize=COUNTS)
def pure_row_dots(
    g_ptr,
    z_ptr,
    dot_ptr,
    partial_ptr,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_zb,
    stride_zh,
    stride_zn,
    heads,
    n_q,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    """c_i = ⟨∂L/∂Z_i, Z_i⟩ and its sum over a block of queries."""
    blocks = tl.cdiv(n_q, BLOCK_Q)
    block = tl.program_id(0) % blocks
    item = tl.program_id(0) // blocks
    batch, head = item // heads, item % heads
    start = block * BLOCK_Q
    g_base = head_start(g_ptr, batch, head, stride_gb, stride_gh)
    z_base = head_start(z_ptr, batch, head, stride_zb, stride_zh)
    g = load_tile(g_base, stride_gn, start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, False, False)
    z = load_tile(z_base, stride_zn, start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, False, False)
    dots = tl.sum(g.to(tl.float32) * z.to(tl.float32), 1)
    row = start + tl.arange(0, BLOCK_Q)
    tl.store(dot_ptr + wide(item) * n_q + row, dots, mask=row < n_q)
    tl.store(partial_ptr + wide(item) * blocks + block, tl.sum(dots.to(tl.float64), 0))


@triton.jit
def shared_factors(norm_ptr, partial_ptr, gamma_ptr, gamma_stride, item, head, dot_blocks, unit, eps):
    """a · unit, and the weight of R' beside ∂L/∂Z · v, for a norm that all rows share."""
    norm = tl.load(norm_ptr + item)
    gamma = tl.load(gamma_ptr + head * gamma_stride)
    dots = sum_of(partial_ptr + wide(item) * dot_blocks, dot_blocks, 128)
    alive = (norm != 0) & (gamma != 0)
    factor = tl.where(norm == 0, 0.0, gamma / tl.where(norm == 0, 1.0, norm + eps))
    weight = tl.where(alive, dots.to(tl.float32) / tl.where(alive, norm * gamma, 1.0), 0.0)
    return factor * unit, weight * unit


@triton.jit
def _visit_queries(
    dk,
    dv,
    k,
    v,
    queries,
    grads,
    row_base,
    stride_qn,
    stride_gn,
    first,
    last,
    column_start,
    n_q,
    items,
    weight,
    unit,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    DIAGONAL: tl.constexpr,
    ROWWISE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TMA: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    """Add the queries first .. last to dK and dV."""
    for row_start in tl.range(first, last, BLOCK_Q, warp_specialize=SPECIALIZE):
        q = load_tile(queries, stride_qn, row_start, n_q, WIDTH, BLOCK_Q, PADDED, EVEN, TMA)
        g = load_tile(grads, stride_gn, row_start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, EVEN, TMA)
        raw = product(k, tl.trans(q), None)  # (BLOCK_K, BLOCK_Q)
        pull = product(v, tl.trans(g), None)
        if ROWWISE:
            row = row_start + tl.arange(0, BLOCK_Q)
            of_pull = tl.load(row_base + row, mask=row < n_q, other=0.0)
            of_edges = tl.load(row_base + wide(items) * n_q + row, mask=row < n_q, other=0.0)
            of_sums = tl.load(row_base + wide(items) * 2 * n_q + row, mask=row < n_q, other=0.0)
            r, ds = edges_and_pulled(raw, unit, pull * of_pull[None, :], of_edges[None, :], ACTIVATION)
            r = r * of_sums[None, :]
            if DIAGONAL:
                past = (column_start + tl.arange(0, BLOCK_K))[:, None] <= row[None, :]
                r = tl.where(past, r, 0.0)
                ds = tl.where(past, ds, 0.0)
        else:
            r, ds = edges_and_pulled(raw, unit, pull, weight, ACTIVATION)
        dv = product(rounded(r, g.dtype), g, dv)
        dk = product(rounded(ds, q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=COUNTS)
def pure_keys(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    dk_ptr,
    dv_ptr,
    norm_ptr,
    partial_ptr,
    gamma_ptr,
    rows_ptr,
    out_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_dkb,
    stride_dkh,
    stride_dkn,
    stride_dvb,
    stride_dvh,
    stride_dvn,
    gamma_stride,
    items,
    heads,
    n_q,
    n_k,
    dot_blocks,
    unit,
    eps,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
    CAUSAL: tl.constexpr,
    ROWWISE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TMA: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    """dK and dV of one block of keys of one head."""
    blocks = tl.cdiv(n_k, BLOCK_K)
    block = tl.program_id(0) % blocks
    item = tl.program_id(0) // blocks
    batch, head = item // heads, item % heads
    start = block * BLOCK_K
    k_base = head_start(k_ptr, batch, head, stride_kb, stride_kh)
    v_base = head_start(v_ptr, batch, head, stride_vb, stride_vh)
    k = load_tile(k_base, stride_kn, start, n_k, WIDTH, BLOCK_K, PADDED, False, False)
    v = load_tile(v_base, stride_vn, start, n_k, VALUE_WIDTH, BLOCK_K, VALUE_PADDED, False, False)
    row_base = rows_ptr + wide(item) * n_q
    if ROWWISE:
        weight = 0.0
        of_keys = tl.load(out_ptr + item)
        of_values = tl.load(out_ptr + items + item)
    else:
        of_keys, weight = shared_factors(
            norm_ptr, partial_ptr, gamma_ptr, gamma_stride, item, head, dot_blocks, unit, eps
        )
        of_values = of_keys

    queries = head_start(q_ptr, batch, head, stride_qb, stride_qh)
    grads = head_start(g_ptr, batch, head, stride_gb, stride_gh)
    queries = tokens_of(queries, stride_qn, n_q, WIDTH, BLOCK_Q, PADDED, TMA)
    grads = tokens_of(grads, stride_gn, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, TMA)
    dk = tl.zeros([BLOCK_K, PADDED], dtype=tl.float32)
    dv = tl.zeros([BLOCK_K, VALUE_PADDED], dtype=tl.float32)
    first = 0
    if CAUSAL:
        first = tl.minimum(tl.cdiv(start + BLOCK_K, BLOCK_Q) * BLOCK_Q, n_q)  # from here on every key is in the past
    for part in tl.static_range(1 - CAUSAL, 2):  # the diagonal comes first
        dk, dv = _visit_queries(
            dk,
            dv,
            k,
            v,
            queries,
            grads,
            row_base,
            stride_qn,
            stride_gn,
            first if part else start // BLOCK_Q * BLOCK_Q,
            n_q if part else first,
            start,
            n_q,
            items,
            weight,
            unit,
            WIDTH,
            VALUE_WIDTH,
            PADDED,
            VALUE_PADDED,
            BLOCK_Q,
            BLOCK_K,
            EVEN,
            part == 0,
            ROWWISE,
            ACTIVATION,
            TMA,
            SPECIALIZE and part == 1,
        )
    dk_base = head_start(dk_ptr, batch, head, stride_dkb, stride_dkh)
    dv_base = head_start(dv_ptr, batch, head, stride_dvb, stride_dvh)
    dk = rounded(dk * of_keys, dk_ptr.dtype.element_ty)
    dv = rounded(dv * of_values, dv_ptr.dtype.element_ty)
    store_tile(dk_base, stride_dkn, start, n_k, dk, WIDTH, BLOCK_K, PADDED)
    store_tile(dv_base, stride_dvn, start, n_k, dv, VALUE_WIDTH, BLOCK_K, VALUE_PADDED)
