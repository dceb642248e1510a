"""The launches of fused Linear-InfSA for one kind of call: tile sizes, grids and compiled kernels, asked for once.

forward: 7 launches            x -> q, (Σ e, Σ e q), (q̄, u), x u, (S, Σ S), Sᵀ x, values
backward: 10 for tied keys     r, x r, draw, drawᵀ x, dq̄, (dq, Σ dq), dq W_Q, + [draw, S] [ρ u; ρ r], dqᵀ x, dW
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from ..checks import Projection
from ..triton.configs import generation, padded_width
from ..triton.launch import Launch
from ..triton.layout import mask_bytes
from ..triton.parts import NUMBERS
from . import triton_backward, triton_forward

CHANNELS = 128  # of a token, per step
TOKENS = 64  # per step over the scores
PROGRAMS = 264  # that share the scores of a batch
HEADS = 64  # whose scores one program takes
IMAGES = 16  # that share a read of a weight
SPANS_AT_ONCE = 64  # whose sums one step adds
PLANS = 512  # kinds of calls whose launches are kept


class Kind(NamedTuple):
    """All that the launches of a call depend on."""

    shape: torch.Size  # (B, N, D)
    dtype: torch.dtype
    device: torch.device
    heads: int
    rows: int  # H d of the queries and keys
    columns: int  # H d of the values
    key_bias: bool
    value_bias: bool
    masked: bool
    activation: str
    eps: float
    gamma: float | None  # None: a tensor


class Queries(NamedTuple):
    """How the passes over queries are cut."""

    block: int  # tokens per step
    columns: int  # heads × padded width per program
    programs: int


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b of matrices, or of batches of them, in float32, summed in it too."""
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype == torch.float32:
        return multiply(a, b)
    return multiply(a, b, out_dtype=torch.float32) if a.is_cuda else multiply(a.float(), b.float())


def spans_of(n: int, programs: int, block: int) -> tuple[int, int]:
    """How many spans n tokens are cut into, and how long each is, in whole blocks."""
    span = triton.cdiv(triton.cdiv(n, max(1, programs)), block) * block
    return triton.cdiv(n, span), span


class Plan:
    """The launches for one kind of call."""

    def __init__(self, kind: Kind) -> None:
        (batch, n, dim), heads, activation, eps = kind.shape, kind.heads, kind.activation, kind.eps
        self.kind, self.shape, self.dtype, self.heads = kind, kind.shape, kind.dtype, heads
        self.width, self.value_width = kind.rows // heads, kind.columns // heads
        items, number = batch * heads, NUMBERS[activation]
        cut = Queries(32, 32, 8) if generation(kind.device.index) == 0 else Queries(16, 1024, 528)
        padded = padded_width(self.width)
        queries = {"WIDTH": self.width, "PADDED": padded, "BLOCK_N": cut.block, "MASKED": kind.masked}
        queries |= {"BLOCK_H": max(1, cut.columns // padded), "num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}
        head_blocks = triton.cdiv(heads, queries["BLOCK_H"])
        splits, span = spans_of(n, cut.programs // (batch * head_blocks), cut.block)
        self.spans = (batch, splits, heads)
        strides = (n * kind.rows, kind.rows)
        spread = (*strides, heads, n, splits, span)
        self.span = self._launch(triton_forward.span_kernel, batch * splits * head_blocks, spread, queries)
        further = queries | {"num_warps": 8}  # sums beside the tokens
        self.dq = self._launch(triton_backward.query_gradient_kernel, batch * splits * head_blocks, spread, further)

        block_h = min(HEADS, triton.next_power_of_2(heads))
        head_blocks = triton.cdiv(heads, block_h)
        edge_splits, span = spans_of(n, PROGRAMS // (batch * head_blocks), TOKENS)
        self.edge_spans = (2 if activation == "gelu" else 1, batch, edge_splits, heads)
        self.draw_spans = (batch, edge_splits, heads)
        tiles = {"BLOCK_N": TOKENS, "BLOCK_H": block_h, "MASKED": kind.masked, "ACTIVATION": number, "num_warps": 4}
        numbers, blocks = (heads, items, n, edge_splits, span), batch * edge_splits * head_blocks
        self.edge = self._launch(triton_forward.edge_kernel, blocks, numbers, tiles)
        self.draw = self._launch(triton_backward.edge_gradient_kernel, blocks, numbers, tiles)

        key, value = self._sizes(self.width, kind.key_bias), self._sizes(self.value_width, kind.value_bias)
        summed = {"BLOCK": SPANS_AT_ONCE}
        images = IMAGES if 2 * batch >= IMAGES else 1
        few = {"IMAGES": images}
        groups = heads * triton.cdiv(batch, images)
        decay = {"LEARNED": kind.gamma is None, "ACTIVATION": number}
        gamma = 1.0 if kind.gamma is None else kind.gamma
        self.central = self._launch(
            triton_forward.central_kernel,
            (groups, triton.cdiv(dim, key["BLOCK_D"])),
            (heads, items, splits, eps),
            key | few | {"BLOCK": max(1, SPANS_AT_ONCE // images)},
        )
        counts = (heads, items, edge_splits)
        self.value = self._launch(triton_forward.value_kernel, items, (*counts, eps, gamma), value | summed | decay)
        self.row = self._launch(triton_backward.row_kernel, groups, (heads, items, eps, gamma), value | few | decay)
        self.dcentral = self._launch(triton_backward.central_gradient_kernel, items, counts, key | summed)
        self.weights: dict[Any, Launch] = {}
        self.value_shape, self.shape_of_keys = (kind.columns, dim), (kind.rows, dim)

    def _launch(self, kernel: Any, grid: int | tuple[int, ...], numbers: tuple[float, ...], constants: Any) -> Launch:
        return Launch(kernel, (grid,) if isinstance(grid, int) else grid, numbers, constants, self.kind.device)

    def _tile(self, width: int) -> dict[str, Any]:
        """Channels per step for heads of a width: what every generation's shared memory holds."""
        padded = padded_width(width)
        block = CHANNELS if padded <= 64 else CHANNELS // 2
        return {"DIM": self.shape[2], "WIDTH": width, "PADDED": padded, "BLOCK_D": block, "num_warps": 4}

    def _sizes(self, width: int, biased: bool) -> dict[str, Any]:
        return self._tile(width) | {"BIASED": biased}

    def decay(self, gamma: Tensor | None) -> Tensor | None:
        """γ as the launches want it: a row in float32."""
        return None if gamma is None else gamma.to(torch.float32).expand(self.heads).contiguous()

    def _empty(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, dtype=dtype, device=self.kind.device)

    def forward(
        self,
        x: Tensor,
        query: Projection,
        key: Projection,
        value: Projection,
        gamma: Tensor | None,
        mask: Tensor | None,
        q: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """γ Σ a v (B, H, 1, d), and what the way back reads; masked tokens must be zero, and all tensors contiguous.

        ``q`` (B, N, H d) are the queries, where they are known.
        """
        batch, _, dim = self.shape
        heads = self.heads
        real = mask_bytes(mask, x)
        q = linear(x, *query) if q is None else q
        totals, vectors = self.energies(q, real)
        central, numbers = totals.new_empty(batch, heads, self.width), totals.new_empty(5, batch, heads)
        u = q.new_empty(batch, heads, dim)
        self.central(totals, vectors, key[0], _or(key[1], u), central, numbers, u)
        raw, scores, sums, pooled = self.scores(x, u, numbers, real)
        values = q.new_empty(batch, heads, 1, self.value_width)
        self.value(pooled, sums, value[0], _or(value[1], u), _or(gamma, u), numbers, values)
        return values, q, raw, scores, u, pooled, central, numbers

    def energies(self, q: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Σ e and Σ e q of each span of tokens, for q (B, N, H d)."""
        totals = self._empty(*self.spans)
        vectors = totals.new_empty(*self.spans, self.width)
        self.span(q, real, totals, vectors)
        return totals, vectors

    def scores(self, x: Tensor, u: Tensor, numbers: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x u and S (B, N, H), of each span Σ S and perhaps Σ|S|, and Sᵀ x (B, H, D)."""
        raw = torch.bmm(x, u.mT)
        scores = raw if self.kind.activation == "relu" else torch.empty_like(raw)  # of ReLU, S says the sign of raw
        sums = numbers.new_empty(*self.edge_spans)
        self.edge(raw, numbers, real, scores, sums)
        return raw, scores, sums, wide_product(scores.mT, x)

    def row_gradients(
        self, grad: Tensor, pooled: Tensor, numbers: Tensor, value: Projection, gamma: Tensor | None, u: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[r; ρ u; ρ r] (B, 3H, D), g' (B, H, d) and the pulls (4, B, H)."""
        batch, _, dim = self.shape
        rows = u.new_empty(batch, 3 * self.heads, dim)
        scaled = numbers.new_empty(batch, self.heads, self.value_width)
        pulls = numbers.new_empty(4, batch, self.heads)
        self.row(grad, pooled, numbers, value[0], _or(value[1], u), _or(gamma, u), u, rows, scaled, pulls)
        return rows, scaled, pulls

    def score_gradients(
        self, x: Tensor, raw: Tensor | None, scores: Tensor, numbers: Tensor, rows: Tensor, pulls: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[draw, S] (B, N, 2H), du (B, H, D) and Σ draw of each span."""
        (batch, n, dim), heads = self.shape, self.heads
        on_scores = wide_product(x, rows.as_strided((batch, dim, heads), (3 * heads * dim, 1, dim)))
        both = scores.new_empty(batch, n, 2 * heads)
        sums = numbers.new_empty(*self.draw_spans)
        self.draw(on_scores, _or(raw, scores), scores, numbers, pulls, real, both, sums)
        return both, wide_product(both.as_strided((batch, heads, n), (2 * heads * n, 1, 2 * heads)), x), sums

    def central_gradients(
        self, du: Tensor, sums: Tensor, central: Tensor, numbers: Tensor, pulls: Tensor, key: Projection
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The pulls on Σ e q (B, H, d), on Σ e with do (2, B, H), and ρ q̄ (B, H, d)."""
        on_totals = central.new_empty(2, *central.shape[:2])
        on_vectors, scaled = torch.empty_like(central), torch.empty_like(central)
        self.dcentral(du, sums, central, numbers, pulls, key[0], _or(key[1], du), on_vectors, on_totals, scaled)
        return on_vectors, on_totals, scaled

    def query_gradients(self, q: Tensor, on_totals: Tensor, on_vectors: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """dq (B, N, H d), and its sum over each span of tokens (B, spans, H d)."""
        dq, sums = torch.empty_like(q), on_totals.new_empty(*self.spans[:2], q.shape[2])
        self.dq(q, real, on_totals, on_vectors, dq, sums)
        return dq, sums

    def weight_gradients(
        self,
        values: tuple[Tensor, Tensor, Tensor],
        keys: tuple[Tensor, Tensor, Tensor] | None,
        wanted: tuple[bool, bool, bool, bool],
        types: tuple[Any, Any],
        weight: Tensor | None = None,
        spans: Tensor | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> list[Tensor | None]:
        """The gradients of weight and bias of the values, then of the keys, as ``wanted`` and in these types.

        They are Σ over images of a cᵀ and of a s: both have rows a (B, H, d), columns c (B, H, D) and numbers s. To the
        keys' are added another weight's gradient in float32 and the terms of another bias's. ``out`` are the values
        (B, H d) and the pull on what a projection makes of them (B, D): last comes the gradient of its weight.
        """
        kind = (wanted, types, weight is not None, spans is not None, out is not None)
        launch = self.weights.get(kind)
        if launch is None:
            launch = self.weights[kind] = self._weight_launch(*kind)
        shapes = (self.value_shape, self.value_shape[:1], self.shape_of_keys, self.shape_of_keys[:1])
        sizes = zip(shapes, (types[0], types[0], types[1], types[1]), wanted, strict=True)
        found = [self._empty(*shape, dtype=dtype) if yes else None for shape, dtype, yes in sizes]
        last = (None, None, None) if out is None else (*out, out[0].new_empty(self.shape[2], self.value_shape[0]))
        tensors = (*values, *found[:2], *(keys or values), weight, spans, *found[2:], *last)
        found.append(last[2])
        launch(*[values[0] if y is None else y for y in tensors])
        return found

    def _weight_launch(self, wanted: tuple[bool, ...], types: Any, added: bool, spanned: bool, out: bool) -> Launch:
        (batch, _, dim), tiles = self.shape, (self._tile(self.value_width), self._tile(self.width))
        block = min(tile["BLOCK_D"] for tile in tiles)
        names = ("VALUE_WEIGHT", "VALUE_BIAS", "WEIGHT", "BIAS")
        which = {"OF_VALUES": any(wanted[:2]), "OF_KEYS": any(wanted[2:]), "ADDED": added, "SPANS": spanned, "OUT": out}
        padded = {"VALUE_WIDTH": self.value_width, "VALUE_PADDED": tiles[0]["PADDED"]}
        sizes = tiles[1] | padded | which | dict(zip(names, wanted, strict=True)) | {"BLOCK_D": block}
        sizes["IMAGES"] = min(block // 2, max(16, triton.next_power_of_2(batch)))
        blocks = triton.cdiv(dim, block) if wanted[0] or wanted[2] or out else 1
        grid = (self.heads, blocks, which["OF_VALUES"] + which["OF_KEYS"] + out)
        numbers = (self.heads, batch * self.heads, self.spans[1])
        return self._launch(triton_backward.weight_kernel, grid, numbers, sizes)


plan_of = functools.lru_cache(PLANS)(Plan)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """x, or any tensor in its place that a kernel never reads."""
    return other if x is None else x
