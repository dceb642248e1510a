"""Pure InfSA backward: scores are computed again, by one pass for the keys and values and one for the queries.

With a_i = γ / s_i, c_i = ⟨∂L/∂Z_i, Z_i⟩ and w_i = Σ_r c_r / (s_r F_r) over the rows whose norm contains row i
(n_i c_i / (s_i F_i) for the row norm):

    dS_ij = (a_i ∂L/∂Z_i · v_j − w_i R_ij) φ'(S_ij)      dV = Rᵀ (a ∂L/∂Z)      dQ = dS k / √d      dK = dSᵀ q / √d

Each result is summed by one program in one order: no atomics, and two runs are bit-equal. ``FACTORS`` says how a and w
enter. 0: they are the same for every row and leave the loop. 1: a row's a is multiplied into ∂L/∂Z beforehand, which
leaves one number per row, w. 3: float16 needs its range watched, three numbers per row are multiplied into the scores.
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
    edges_and_pulled,
    head_start,
    load_tile,
    load_tiles,
    no_sums,
    rounded,
    store_sums,
    store_tile,
    sum_of,
    tokens_of,
    wide,
)


@triton.jit(do_not_specialize=COUNTS)
def pure_row_dots(
    g_ptr,
    z_ptr,
    norm_ptr,
    seen_ptr,
    gamma_ptr,
    scaled_ptr,
    rows_ptr,
    partial_ptr,
    gamma,
    stride_gb,
    stride_gh,
    stride_gn,
    stride_zb,
    stride_zh,
    stride_zn,
    stride_seen_b,
    stride_seen_n,
    gamma_stride,
    heads,
    items,
    n_q,
    unit,
    eps,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BY_ROW: tl.constexpr,
    FACTORS: tl.constexpr,
    LEARNED: tl.constexpr,
):
    """c_i and its sum over a block of queries; with ``FACTORS`` 1 also a ∂L/∂Z and the block's part of w."""
    block, blocks, item, batch, head = block_of(n_q, heads, 1, BLOCK_Q, False)
    start = block * BLOCK_Q
    g_base = head_start(g_ptr, batch, head, stride_gb, stride_gh)
    z_base = head_start(z_ptr, batch, head, stride_zb, stride_zh)
    g = load_tile(g_base, stride_gn, start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, False, False).to(tl.float32)
    z = load_tile(z_base, stride_zn, start, n_q, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED, False, False)
    c = tl.sum(g * z.to(tl.float32), 1)
    row = start + tl.arange(0, BLOCK_Q)
    place = wide(item) * n_q + row
    if FACTORS == 1:
        norm = tl.load(norm_ptr + place, mask=row < n_q, other=0.0)
        exact = tl.where(norm == 0, 1.0, norm).to(tl.float64)
        inverse = tl.where(norm == 0, 0.0, 1.0 / (exact + eps))
        scale = (inverse * decay_of(gamma_ptr, gamma, head, gamma_stride, LEARNED)).to(tl.float32)
        scaled = rounded(g * scale[:, None], scaled_ptr.dtype.element_ty)
        scaled_base = scaled_ptr + wide(item) * n_q * VALUE_WIDTH
        store_tile(scaled_base, VALUE_WIDTH, start, n_q, scaled, VALUE_WIDTH, BLOCK_Q, VALUE_PADDED)
        shared = c * inverse / exact * unit  # c_i / (s_i F_i), and 1/√d of R
        if BY_ROW:
            seen = tl.load(seen_ptr + wide(batch) * stride_seen_b + row * stride_seen_n, mask=row < n_q, other=0.0)
            weight = shared * seen
        else:
            weight = tl.cumsum(shared, 0, reverse=True)
            tl.store(partial_ptr + wide(items + item) * blocks + block, tl.sum(shared, 0))
        tl.store(rows_ptr + place, weight.to(tl.float32), mask=row < n_q)
    elif FACTORS == 3:
        tl.store(rows_ptr + place, c, mask=row < n_q)
    tl.store(partial_ptr + wide(item) * blocks + block, tl.sum(c.to(tl.float64), 0))


@triton.jit(do_not_specialize=COUNTS)
def pure_later_rows(rows_ptr, partial_ptr, items, n_q, BLOCK_Q: tl.constexpr):
    """Add to a block's part of w what the rows of later blocks give: the norms of those contain it."""
    block, blocks, item, _, _ = block_of(n_q, items, 1, BLOCK_Q, False)
    later = sum_of(partial_ptr + wide(items + item) * blocks + block + 1, blocks - 1 - block, 128)
    row = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    place = rows_ptr + wide(item) * n_q + row
    weight = tl.load(place, mask=row < n_q, other=0.0)
    tl.store(place, (weight + later).to(tl.float32), mask=row < n_q)


@triton.jit
def _shared_factors(norm_ptr, partial_ptr, decay, item, dot_blocks, unit, eps):
    """a · unit, and the weight of R' beside ∂L/∂Z · v, for a norm that all rows share."""
    norm = tl.load(norm_ptr + item)
    total = sum_of(partial_ptr + wide(item) * dot_blocks, dot_blocks, 128)
    alive = (norm != 0) & (decay != 0)
    factor = tl.where(norm == 0, 0.0, decay / tl.where(norm == 0, 1.0, norm + eps))
    weight = tl.where(alive, total.to(tl.float32) / tl.where(alive, norm * decay, 1.0), 0.0)
    return factor * unit, weight * unit


@triton.jit
def _visit(
    dx,
    dy,
    x,
    y,
    weight,
    of_pull,
    others,
    pairs,
    rows,
    stride_x,
    stride_y,
    first,
    last,
    own_start,
    length,
    plane,
    unit,
    WIDTHS: tl.constexpr,
    VALUE_WIDTHS: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
    EVEN: tl.constexpr,
    DIAGONAL: tl.constexpr,
    KEYS: tl.constexpr,
    FACTORS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TMA: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    """Add the tokens first .. last of the other side to the gradients of a block."""
    others = tokens_of(others, stride_x, length, WIDTHS, OTHERS, TMA)
    pairs = tokens_of(pairs, stride_y, length, VALUE_WIDTHS, OTHERS, TMA)
    for start in tl.range(first, last, OTHERS, warp_specialize=SPECIALIZE):
        x2 = load_tiles(others, stride_x, start, length, WIDTHS, OTHERS, EVEN, TMA)
        y2 = load_tiles(pairs, stride_y, start, length, VALUE_WIDTHS, OTHERS, EVEN, TMA)
        raw = dots(x, x2)  # (OWN, OTHERS)
        pull = dots(y, y2)
        token = start + tl.arange(0, OTHERS)
        if KEYS and FACTORS > 0:
            if EVEN:
                of_edges = tl.load(rows + token)[None, :]
            else:
                of_edges = tl.load(rows + token, mask=token < length, other=0.0)[None, :]
        else:
            of_edges = weight
        if KEYS and FACTORS == 3:
            pull = pull * tl.load(rows + plane + token, mask=token < length, other=0.0)[None, :]
        elif FACTORS == 3:
            pull = pull * of_pull
        r, ds = edges_and_pulled(raw, unit, pull, of_edges, ACTIVATION)
        if DIAGONAL:
            own = own_start + tl.arange(0, OWN)
            past = (own[:, None] <= token[None, :]) if KEYS else (token[None, :] <= own[:, None])
            r = tl.where(past, r, 0.0)
            ds = tl.where(past, ds, 0.0)
        if KEYS:
            if FACTORS == 3:
                r = r * tl.load(rows + 2 * plane + token, mask=token < length, other=0.0)[None, :]
            dy = add_products(r, y2, dy)
        dx = add_products(ds, x2, dx)
    return dx, dy


@triton.jit(do_not_specialize=COUNTS)
def pure_gather(
    x_ptr,
    y_ptr,
    others_ptr,
    pairs_ptr,
    dx_ptr,
    dy_ptr,
    norm_ptr,
    partial_ptr,
    gamma_ptr,
    rows_ptr,
    out_ptr,
    gamma,
    stride_xb,
    stride_xh,
    stride_xn,
    stride_yb,
    stride_yh,
    stride_yn,
    stride_ob,
    stride_oh,
    stride_on,
    stride_pb,
    stride_ph,
    stride_pn,
    stride_dxb,
    stride_dxh,
    stride_dxn,
    stride_dyb,
    stride_dyh,
    stride_dyn,
    gamma_stride,
    items,
    heads,
    group,
    n_own,
    n_other,
    dot_blocks,
    unit,
    eps,
    WIDTHS: tl.constexpr,
    VALUE_WIDTHS: tl.constexpr,
    OWN: tl.constexpr,
    OTHERS: tl.constexpr,
    NARROW: tl.constexpr,
    EVEN: tl.constexpr,
    CAUSAL: tl.constexpr,
    KEYS: tl.constexpr,
    FACTORS: tl.constexpr,
    LEARNED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TMA: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    """The gradients of a block of one head: dK and dV, gathered from all (q, ∂L/∂Z), or dQ, from all (k, v)."""
    block, _, item, batch, head = block_of(n_own, heads, group, OWN, CAUSAL and not KEYS)  # the most work first
    start = block * OWN
    x_base = head_start(x_ptr, batch, head, stride_xb, stride_xh)
    y_base = head_start(y_ptr, batch, head, stride_yb, stride_yh)
    x = tokens_of(x_base, stride_xn, n_own, WIDTHS, OWN, False)
    y = tokens_of(y_base, stride_yn, n_own, VALUE_WIDTHS, OWN, False)
    x = load_tiles(x, stride_xn, start, n_own, WIDTHS, OWN, False, False)
    y = load_tiles(y, stride_yn, start, n_own, VALUE_WIDTHS, OWN, False, False)
    own = start + tl.arange(0, OWN)
    n_q = n_other if KEYS else n_own
    rows = rows_ptr + wide(item) * n_q
    plane = wide(items) * n_q
    weight = 0.0
    of_pull = 0.0
    if FACTORS == 0:
        decay = decay_of(gamma_ptr, gamma, head, gamma_stride, LEARNED)
        of_x, weight = _shared_factors(norm_ptr, partial_ptr, decay, item, dot_blocks, unit, eps)
        of_y = of_x
    else:
        if not KEYS:
            weight = tl.load(rows + own, mask=own < n_q, other=0.0)[:, None]
        if FACTORS == 3:
            of_x = tl.load(out_ptr + item)
            of_y = tl.load(out_ptr + items + item)
            if not KEYS:
                of_pull = tl.load(rows + plane + own, mask=own < n_q, other=0.0)[:, None]
        else:
            of_x = unit
            of_y = unit

    dx = no_sums(OWN, WIDTHS)
    if KEYS:
        dy = no_sums(OWN, VALUE_WIDTHS)
    else:
        dy = 0.0
    edge = tl.minimum(start // OTHERS * OTHERS, n_other)  # the diagonal lies between edge and beyond
    beyond = tl.minimum(tl.cdiv(start + OWN, OTHERS) * OTHERS, n_other)
    for part in tl.static_range(1, -CAUSAL, -1):  # the diagonal comes last, in tiles whose mask takes few registers
        dx, dy = _visit(
            dx,
            dy,
            x,
            y,
            weight,
            of_pull,
            head_start(others_ptr, batch, head, stride_ob, stride_oh),
            head_start(pairs_ptr, batch, head, stride_pb, stride_ph),
            rows,
            stride_on,
            stride_pn,
            edge if part == 0 else beyond if CAUSAL and KEYS else 0,
            beyond if part == 0 else edge if CAUSAL and not KEYS else n_other,
            start,
            n_other,
            plane,
            unit,
            WIDTHS,
            VALUE_WIDTHS,
            OWN,
            OTHERS if part else OTHERS // NARROW,
            EVEN,
            part == 0,
            KEYS,
            FACTORS,
            ACTIVATION,
            TMA,
            SPECIALIZE and part == 1,
        )
    dx_base = head_start(dx_ptr, batch, head, stride_dxb, stride_dxh)
    store_sums(dx_base, stride_dxn, start, n_own, dx, of_x, WIDTHS, OWN)
    if KEYS:
        dy_base = head_start(dy_ptr, batch, head, stride_dyb, stride_dyh)
        store_sums(dy_base, stride_dyn, start, n_own, dy, of_y, VALUE_WIDTHS, OWN)
