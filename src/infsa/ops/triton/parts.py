"""What the kernels share: tiles of tokens, the activations, and exact powers of two.

Every φ has φ(0) = 0. Rows past the end of a tensor are read as zeros, and so need no mask afterwards.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

RELU = tl.constexpr(0)
GELU = tl.constexpr(1)
ABS = tl.constexpr(2)
NUMBERS = {"relu": 0, "gelu": 1, "abs": 2}

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
# a new length must not recompile
COUNTS = ["heads", "group", "items", "n", "n_q", "n_k", "n_own", "n_other", "dot_blocks", "splits", "span", "spans"]
SQRT_HALF = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def wide(number):
    """A count as a 64-bit integer: products with strides pass 2^31 at a million tokens."""
    return tl.zeros([], dtype=tl.int64) + number


@triton.jit
def product(a, b, sums):
    """sums + a b, accumulated in float32, with float32 operands in full precision."""
    if INTERPRETED and a.dtype == tl.bfloat16:  # the interpreter holds bfloat16 as integers and multiplies those
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """float32 x in another type, to the nearest."""
    if INTERPRETED and dtype == tl.bfloat16:  # the interpreter cuts the lower bits off
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def head_start(pointer, batch, head, stride_b, stride_h):
    """The first token of one head, with 64-bit offsets."""
    return pointer + wide(batch) * stride_b + wide(head) * stride_h


@triton.jit
def decay_of(gamma_ptr, gamma, head, gamma_stride, LEARNED: tl.constexpr):
    """A head's γ: read from memory, or the number itself."""
    if LEARNED:
        return tl.load(gamma_ptr + head * gamma_stride)
    else:
        return tl.zeros([], dtype=tl.float32) + gamma


@triton.jit
def sums_behind(rows_ptr, count):
    """Where float64 sums begin behind ``count`` float32 numbers."""
    return (rows_ptr + (count + count % 2)).to(tl.pointer_type(tl.float64))


@triton.jit
def block_of(length, heads, group, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """The program's block of one head's tokens: its number, how many there are, the item, and its batch and head.

    The items of a group take turns, block by block: where blocks differ in work, those with the most come first.
    """
    blocks = tl.cdiv(length, BLOCK)
    first = tl.program_id(0) // (blocks * group) * group
    place = tl.program_id(0) - first * blocks
    together = tl.minimum(group, tl.num_programs(0) // blocks - first)
    block = place // together
    item = first + place % together
    if LAST_FIRST:
        block = blocks - 1 - block
    return block, blocks, item, item // heads, item % heads


@triton.jit
def _tokens(base, stride_n, length, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        return tl.make_tensor_descriptor(base, [length, WIDTH], [stride_n, 1], [BLOCK, PADDED])
    else:
        return base


@triton.jit
def tokens_of(base, stride_n, length, WIDTHS: tl.constexpr, BLOCK: tl.constexpr, TMA: tl.constexpr):
    """How tiles of a head's tokens are read: tensor descriptors, or the pointers themselves.

    ``WIDTHS`` are a head's channels, those of a tile, a power of two, and those of a second tile for the rest, or 0.
    """
    if WIDTHS[2] == 0:
        return (_tokens(base, stride_n, length, WIDTHS[0], BLOCK, WIDTHS[1], TMA),)
    else:
        return (
            _tokens(base, stride_n, length, WIDTHS[1], BLOCK, WIDTHS[1], TMA),
            _tokens(base + WIDTHS[1], stride_n, length, WIDTHS[0] - WIDTHS[1], BLOCK, WIDTHS[2], TMA),
        )


@triton.jit
def load_tile(
    source,
    stride_n,
    start,
    length,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    EVEN: tl.constexpr,
    TMA: tl.constexpr,
):
    """Tokens start .. start + BLOCK as (BLOCK, PADDED), zeros beyond the last token and channel."""
    if TMA:
        return source.load([start, 0])
    else:
        token = tl.arange(0, BLOCK)
        channel = tl.arange(0, PADDED)
        place = source + wide(start) * stride_n + token[:, None] * stride_n + channel[None, :]
        if EVEN and WIDTH == PADDED:
            return tl.load(place)
        elif EVEN:
            return tl.load(place, mask=channel[None, :] < WIDTH, other=0.0)
        else:
            return tl.load(place, mask=(start + token < length)[:, None] & (channel < WIDTH)[None, :], other=0.0)


@triton.jit
def load_tiles(
    sources,
    stride_n,
    start,
    length,
    WIDTHS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    TMA: tl.constexpr,
):
    """``load_tile`` of what ``tokens_of`` gives: one tile or two."""
    if WIDTHS[2] == 0:
        return (load_tile(sources[0], stride_n, start, length, WIDTHS[0], BLOCK, WIDTHS[1], EVEN, TMA),)
    else:
        return (
            load_tile(sources[0], stride_n, start, length, WIDTHS[1], BLOCK, WIDTHS[1], EVEN, TMA),
            load_tile(sources[1], stride_n, start, length, WIDTHS[0] - WIDTHS[1], BLOCK, WIDTHS[2], EVEN, TMA),
        )


@triton.jit
def no_sums(ROWS: tl.constexpr, WIDTHS: tl.constexpr):
    """Zeros in float32 for as many channels as tiles have."""
    FIRST: tl.constexpr = WIDTHS[1]
    REST: tl.constexpr = WIDTHS[2]
    if REST == 0:
        return (tl.zeros([ROWS, FIRST], dtype=tl.float32),)
    else:
        return (tl.zeros([ROWS, FIRST], dtype=tl.float32), tl.zeros([ROWS, REST], dtype=tl.float32))


@triton.jit
def dots(x, y):
    """x yᵀ of tiles: all pairs of tokens."""
    found = product(x[0], tl.trans(y[0]), None)
    if len(x) == 2:
        found = product(x[1], tl.trans(y[1]), found)
    return found


@triton.jit
def add_products(weights, y, sums):
    """sums + weights · y, the weights rounded to the type of y."""
    weights = rounded(weights, y[0].dtype)
    if len(y) == 1:
        return (product(weights, y[0], sums[0]),)
    else:
        return (product(weights, y[0], sums[0]), product(weights, y[1], sums[1]))


@triton.jit
def store_sums(base, stride_n, start, length, sums, scale, WIDTHS: tl.constexpr, BLOCK: tl.constexpr):
    """Write scale · sums in the type of the memory."""
    dtype: tl.constexpr = base.dtype.element_ty
    first = rounded(sums[0] * scale, dtype)
    if WIDTHS[2] == 0:
        store_tile(base, stride_n, start, length, first, WIDTHS[0], BLOCK, WIDTHS[1])
    else:
        rest = rounded(sums[1] * scale, dtype)
        store_tile(base, stride_n, start, length, first, WIDTHS[1], BLOCK, WIDTHS[1])
        store_tile(base + WIDTHS[1], stride_n, start, length, rest, WIDTHS[0] - WIDTHS[1], BLOCK, WIDTHS[2])


@triton.jit
def store_tile(base, stride_n, start, length, tile, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """Write (BLOCK, PADDED) to tokens start .. start + BLOCK, as far as they exist."""
    token = tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)
    place = base + wide(start) * stride_n + token[:, None] * stride_n + channel[None, :]
    tl.store(place, tile, mask=(start + token < length)[:, None] & (channel < WIDTH)[None, :])


@triton.jit
def power_of_two_below(x):
    """The power of two in (x / 2, x] for x > 0, held between 2^-100 and 2^100 so that its inverse is exact too."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.minimum(tl.maximum(bits, 27 << 23), 227 << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def halves(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a tile's columns; each thread keeps what it has."""
    return tl.split(tl.permute(tl.reshape(tile, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def edges(raw, unit, ACTIVATION: tl.constexpr):
    """φ(unit · raw) / unit: scores are kept in the unit that fits their type, which only GELU notices."""
    if ACTIVATION == RELU:
        return tl.maximum(raw, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == ABS:
        return tl.abs(raw)
    else:
        return raw * (0.5 + 0.5 * tl.math.erf(raw * unit * SQRT_HALF))


@triton.jit
def edges_and_pulled(raw, unit, pull, weight, ACTIVATION: tl.constexpr):
    """R' = φ(unit · raw) / unit, and (pull − weight · R') φ'(unit · raw)."""
    if ACTIVATION == RELU:
        r = tl.maximum(raw, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return r, tl.where(raw <= 0, 0.0, pull - weight * raw)  # asked this way, NaN stays NaN
    elif ACTIVATION == ABS:
        r = tl.abs(raw)
        pulled = pull - weight * r
        return r, tl.where(raw < 0, -pulled, tl.where(raw == 0, 0.0, pulled))
    else:
        score = raw * unit
        below = 0.5 + 0.5 * tl.math.erf(score * SQRT_HALF)
        r = raw * below
        return r, (pull - weight * r) * (below + score * INV_SQRT_2PI * tl.exp(-0.5 * score * score))


@triton.jit
def query_gradient(q, on_total, on_vectors):
    """(g_e + g_q · q) q / e + e g_q, e = ‖q‖: what sums of e and e q pull on queries (tokens, heads, channels)."""
    energy = tl.sqrt(tl.sum(q * q, 2))
    pull = on_total[None, :] + tl.sum(q * on_vectors[None, :, :], 2)
    pull = tl.where(energy > 0, pull / tl.where(energy > 0, energy, 1.0), 0.0)
    return pull[:, :, None] * q + energy[:, :, None] * on_vectors[None, :, :]


@triton.jit
def sum_of(pointer, count, BLOCK: tl.constexpr):
    """Σ of ``count`` float64 partial sums, always in the same order."""
    total = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(pointer + place, mask=place < count, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def real_tokens(mask_ptr, batch, token, n, MASKED: tl.constexpr):
    """Which tokens exist and are not masked."""
    real = token < n
    if MASKED:
        real = real & (tl.load(mask_ptr + wide(batch) * n + token, mask=real, other=0) != 0)
    return real
