"""What the kernels share: tiles of tokens, the activations, and exact powers of two.

Every φ has φ(0) = 0. Rows past the end of a tensor are read as zeros, and so need no mask afterwards.
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

RELU = tl.constexpr(0)
GELU = tl.constexpr(1)
ABS = tl.constexpr(2)
NUMBERS = {"relu": 0, "gelu": 1, "abs": 2}

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
# a new length must not recompile
COUNTS = ["heads", "items", "n", "n_q", "n_k", "dot_blocks", "splits", "span", "skip"]
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
def tokens_of(
    base, stride_n, length, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, TMA: tl.constexpr
):
    """How tiles of a head's tokens are read: a tensor descriptor, or the pointer itself."""
    if TMA:
        return tl.make_tensor_descriptor(base, [length, WIDTH], [stride_n, 1], [BLOCK, PADDED])
    else:
        return base


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
