"""Pure InfSA backward for the queries; the formulas are in ``pure_backward_kernels``."""

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
    tokens_of,
    wide,
)
from .triton_backward_kernels import shared_factors


@triton.jit
def _visit_keys(
    dq,
    q,
    g,
    keys,
    values,
    of_pull,
    weight,
    stride_kn,
    stride_vn,
    first,
    last,
    row_start,
    n_k,
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
    """Add the keys first .. last to dQ."""
    for column_start in tl.range(first, last, BLOCK_K, warp_specialize=SPECIALIZE):
        k = load_tile(keys, stride_kn, column_start, n_k, WIDTH, BLOCK_K, PADDED, EVEN, TMA)
        v = load_tile(values, stride_vn, column_start, n_k, VALUE_WIDTH, BLOCK_K, VALUE_PADDED, EVEN, TMA)
        raw = product(q, tl.trans(k), None)  # (BLOCK_Q, BLOCK_K)
        pull = product(g, tl.trans(v), None)
        if ROWWISE:
            pull = pull * of_pull
        _, ds = edges_and_pulled(raw, unit, pull, weight, ACTIVATION)
        if DIAGONAL:
            row = row_start + tl.arange(0, BLOCK_Q)
            column = column_start + tl.arange(0, BLOCK_K)
            ds = tl.where(column[None, :] <= row[:, None], ds, 0.0)
        dq = product(rounded(ds, k.dtype), k, dq)
    return dq


@triton.jit(do_not_specialize=COUNTS)
def pure_queries(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    dq_ptr,
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
    stride_dqb,
    stride_dqh,
    stride_dqn,
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
    """dQ of one block of queries of one head."""
    blocks = tl.cdiv(n_q, BLOCK_Q)
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest rows first
    item = tl.program_id(0) // blocks
    batch, head = item // heads, item % heads
    start = block * BLOCK_Q
    q_base = head_start(q_ptr, batch, head, stride_qb, stride_qh)
    g_base = head_start(g_ptr, batch, head, stride_gb, stride_gh)
    q = load_tile(q_base, stride_qn, start, n_q, WIDTH, BLOCK_Q, PADDED, False, False)
    g = load_tile(g_base, stride_gn, start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, False, False)
    row = start + tl.arange(0, BLOCK_Q)
    if ROWWISE:
        row_base = rows_ptr + wide(item) * n_q
        of_pull = tl.load(row_base + row, mask=row < n_q, other=0.0)[:, None]
        weight = tl.load(row_base + wide(items) * n_q + row, mask=row < n_q, other=0.0)[:, None]
        of_queries = tl.load(out_ptr + item)
    else:
        of_pull = 0.0
        of_queries, weight = shared_factors(
            norm_ptr, partial_ptr, gamma_ptr, gamma_stride, item, head, dot_blocks, unit, eps
        )

    keys = head_start(k_ptr, batch, head, stride_kb, stride_kh)
    values = head_start(v_ptr, batch, head, stride_vb, stride_vh)
    keys = tokens_of(keys, stride_kn, n_k, WIDTH, BLOCK_K, PADDED, TMA)
    values = tokens_of(values, stride_vn, n_k, VALUE_WIDTH, BLOCK_K, VALUE_PADDED, TMA)
    dq = tl.zeros([BLOCK_Q, PADDED], dtype=tl.float32)
    whole = n_k
    if CAUSAL:
        whole = start // BLOCK_K * BLOCK_K  # the columns that every row of the block sees
    for part in tl.static_range(1 + CAUSAL):  # the diagonal comes second
        dq = _visit_keys(
            dq,
            q,
            g,
            keys,
            values,
            of_pull,
            weight,
            stride_kn,
            stride_vn,
            whole if part else 0,
            tl.minimum(start + BLOCK_Q, n_k) if part else whole,
            start,
            n_k,
            unit,
            WIDTH,
            VALUE_WIDTH,
            PADDED,
            VALUE_PADDED,
            BLOCK_Q,
            BLOCK_K,
            EVEN,
            part == 1,
            ROWWISE,
            ACTIVATION,
            TMA,
            SPECIALIZE and part == 0,
        )
    dq_base = head_start(dq_ptr, batch, head, stride_dqb, stride_dqh)
    dq = rounded(dq * of_queries, dq_ptr.dtype.element_ty)
    store_tile(dq_base, stride_dqn, start, n_q, dq, WIDTH, BLOCK_Q, PADDED)
