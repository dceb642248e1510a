"""Linear-InfSA from tokens to its pooled values as one function with its gradient, in few launches.

    forward: 7 launches            x -> q, (Σ e, Σ e q), (q̄, u), x u, (S, Σ S), Sᵀ x, values
    backward: 12 with everything   r, x r, draw, drawᵀ x, dq̄, dq, dq W_Q, + [draw, S] [u; r], dqᵀ x, Σ dq, dW_Q, dW_V

A plan holds what a repeated call need not ask again: tile sizes, grids, the compiled kernels. Sums over tokens are
accumulated in float32, in one order.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from ..checks import transformed
from ..triton.configs import padded_width
from ..triton.launch import Launch
from ..triton.layout import mask_bytes, on_device
from ..triton.parts import NUMBERS
from ..triton.support import Projection
from . import pooled_gradients, pooled_values
from .pooled_values import CHANNELS, PROGRAMS, TOKENS
from .query_sums import SPANS_AT_ONCE, gradient_kernel, query_sizes, span_kernel, spans_of

HEADS = 64  # whose scores one program takes
IMAGES = 16  # that share a read of a weight
PLANS = 512  # kinds of calls whose launches are kept


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b (B, ...) of half-precision matrices in float32, summed in it too."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


class Plan:
    """The launches for one shape, type and device of tokens and one kind of layer."""

    def __init__(
        self,
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
        heads: int,
        rows: int,
        columns: int,
        biased: tuple[bool, bool],
        masked: bool,
        activation: str,
        eps: float,
        gamma: float | None,
    ) -> None:
        batch, n, dim = shape
        self.shape, self.dtype, self.device, self.heads, self.activation = shape, dtype, device, heads, activation
        self.width, self.value_width, self.masked = rows // heads, columns // heads, masked
        items, number, learned = batch * heads, NUMBERS[activation], gamma is None
        config, queries = query_sizes(self.width, heads, masked, dtype, device.index)
        head_blocks = triton.cdiv(heads, queries["BLOCK_H"])
        splits, span = spans_of(n, config.programs // (batch * head_blocks), config.block_n)
        self.spans = (batch, splits, heads)
        strides = (n * rows, rows)
        self.span = self._launch(span_kernel, batch * splits * head_blocks, (*strides, heads, n, splits, span), queries)
        blocks = batch * triton.cdiv(n, config.block_n) * head_blocks
        self.dq = self._launch(gradient_kernel, blocks, (*strides, heads, n), queries)

        block_h = min(HEADS, triton.next_power_of_2(heads))
        head_blocks = triton.cdiv(heads, block_h)
        edge_splits, span = spans_of(n, PROGRAMS // (batch * head_blocks), TOKENS)
        self.edge_spans = (2 if activation == "gelu" else 1, batch, edge_splits, heads)
        self.draw_spans = (batch, edge_splits, heads)
        tiles = {"BLOCK_N": TOKENS, "BLOCK_H": block_h, "MASKED": masked, "ACTIVATION": number, "num_warps": 4}
        numbers = (heads, items, n, edge_splits, span)
        self.edge = self._launch(pooled_values.edge_kernel, batch * edge_splits * head_blocks, numbers, tiles)
        self.draw = self._launch(
            pooled_gradients.edge_gradient_kernel, batch * edge_splits * head_blocks, numbers, tiles
        )

        key, value = self._sizes(self.width, biased[0]), self._sizes(self.value_width, biased[1])
        summed = {"BLOCK": SPANS_AT_ONCE}
        images = IMAGES if 2 * batch >= IMAGES else 1
        few = {"IMAGES": images}
        groups = heads * triton.cdiv(batch, images)
        decay = {"LEARNED": learned, "ACTIVATION": number}
        factor = 1.0 if gamma is None else gamma
        blocks = triton.cdiv(dim, key["BLOCK_D"])
        self.central = self._launch(
            pooled_values.central_kernel,
            (groups, blocks),
            (heads, items, splits, eps),
            key | few | {"BLOCK": max(1, SPANS_AT_ONCE // images)},
        )
        self.value = self._launch(
            pooled_values.value_kernel, items, (heads, items, edge_splits, eps, factor), value | summed | decay
        )
        self.row = self._launch(pooled_gradients.row_kernel, groups, (heads, items, eps, factor), value | few | decay)
        self.dcentral = self._launch(
            pooled_gradients.central_gradient_kernel, items, (heads, items, edge_splits), key | summed
        )
        self.weights: dict[Any, Launch] = {}

    def _launch(self, kernel: Any, grid: int | tuple[int, ...], numbers: tuple[float, ...], constants: Any) -> Launch:
        return Launch(kernel, (grid,) if isinstance(grid, int) else grid, numbers, constants, self.device)

    def _sizes(self, width: int, biased: bool) -> dict[str, Any]:
        return _tile(self.shape[2], width) | {"BIASED": biased, "num_warps": 4}

    def _empty(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)

    def forward(
        self,
        x: Tensor,
        query: Projection,
        key: Projection,
        value: Projection,
        gamma: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """γ Σ a v (B, H, 1, d) and what the way back reads; masked tokens must be zero, and all tensors contiguous."""
        batch, _, dim = self.shape
        heads = self.heads
        real = mask_bytes(mask, x)
        q = linear(x, *query)
        totals, vectors = self._empty(*self.spans), self._empty(*self.spans, self.width)
        self.span(q, real, totals, vectors)
        central, numbers = self._empty(batch, heads, self.width), self._empty(4, batch, heads)
        u = self._empty(batch, heads, dim, dtype=self.dtype)
        self.central(totals, vectors, key[0], _or(key[1], u), central, numbers, u)
        raw = torch.bmm(x, u.mT)
        scores = raw if self.activation == "relu" else torch.empty_like(raw)
        sums = self._empty(*self.edge_spans)
        self.edge(raw, numbers, real, scores, sums)
        pooled = wide_product(scores.mT, x)  # (B, H, D)
        values = self._empty(batch, heads, 1, self.value_width, dtype=self.dtype)
        self.value(pooled, sums, value[0], _or(value[1], u), _or(gamma, u), numbers, values)
        return values, (q, raw, scores, u, pooled, central, numbers)

    def row_gradients(
        self, grad: Tensor, pooled: Tensor, numbers: Tensor, value: Projection, gamma: Tensor | None, u: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[u; r] (B, 2H, D), g' (B, H, d) and the three pulls (3, B, H)."""
        batch, _, dim = self.shape
        rows = self._empty(batch, 2 * self.heads, dim, dtype=self.dtype)
        scaled = self._empty(batch, self.heads, self.value_width)
        pulls = self._empty(3, batch, self.heads)
        self.row(grad, pooled, numbers, value[0], _or(value[1], u), _or(gamma, u), u, rows, scaled, pulls)
        return rows, scaled, pulls

    def query_gradients(
        self,
        x: Tensor,
        kept: tuple[Tensor, ...],
        rows: Tensor,
        pulls: Tensor,
        key: Projection,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[draw, S] (B, N, 2H), du (B, H, D), dq (B, N, H d), and the pulls on Σ e with do (2, B, H)."""
        q, raw, scores, _, _, central, numbers = kept
        (batch, n, dim), heads = self.shape, self.heads
        real = mask_bytes(mask, x)
        on_scores = wide_product(x, rows.as_strided((batch, dim, heads), (2 * heads * dim, 1, dim), heads * dim))
        both = self._empty(batch, n, 2 * heads, dtype=self.dtype)
        sums = self._empty(*self.draw_spans)
        self.draw(on_scores, _or(raw, scores), scores, numbers, pulls, real, both, sums)
        du = wide_product(both.as_strided((batch, heads, n), (2 * heads * n, 1, 2 * heads)), x)
        on_vectors, on_totals = self._empty(batch, heads, self.width), self._empty(2, batch, heads)
        self.dcentral(du, sums, central, numbers, key[0], _or(key[1], du), on_vectors, on_totals)
        dq = torch.empty_like(q)
        self.dq(q, real, on_totals, on_vectors, dq)
        return both, du, dq, on_totals

    def weight_gradients(
        self,
        rows: Tensor,
        columns: Tensor,
        numbers: Tensor,
        skip: int,
        wanted: tuple[bool, ...],
        dtype: torch.dtype,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Σ over images of a cᵀ and a s, added to a ``weight``'s and ``bias``'s gradient in float32, as ``wanted``."""
        batch, _, dim = self.shape
        width, added = rows.shape[2], weight is not None or bias is not None
        kind = (width, skip, wanted, dtype, added)
        launch = self.weights.get(kind)
        if launch is None:
            tile = _tile(dim, width)
            images = min(tile["BLOCK_D"] // 2, max(16, triton.next_power_of_2(batch)))
            sizes = tile | {"ADDED": added, "IMAGES": images, "WEIGHT": wanted[0], "BIAS": wanted[1], "num_warps": 4}
            grid = (self.heads, triton.cdiv(dim, tile["BLOCK_D"]) if wanted[0] else 1)
            numbers_ = (self.heads, batch * self.heads, skip * batch * self.heads)
            launch = self.weights[kind] = self._launch(pooled_gradients.weight_kernel, grid, numbers_, sizes)
        dw = self._empty(self.heads * width, dim, dtype=dtype) if wanted[0] else None
        db = self._empty(self.heads * width, dtype=dtype) if wanted[1] else None
        launch(rows, columns, numbers, _or(weight, rows), _or(bias, rows), _or(dw, rows), _or(db, rows))
        return dw, db


plan_of = functools.lru_cache(PLANS)(Plan)


def _tile(dim: int, width: int) -> dict[str, Any]:
    """Channels per step for heads of a width: what every generation's shared memory holds."""
    padded = padded_width(width)
    return {"DIM": dim, "WIDTH": width, "PADDED": padded, "BLOCK_D": CHANNELS if padded <= 64 else CHANNELS // 2}


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """x, or any tensor in its place that a kernel never reads."""
    return other if x is None else x


def fused_values(
    x: Tensor,
    heads: int,
    query: Projection,
    key: Projection | None,
    value: Projection,
    gamma: float | Tensor,
    mask: Tensor | None,
    activation: str,
    eps: float,
) -> Tensor:
    """γ Σ a v (B, H, 1, d) for tokens x (B, N, D), B > 0, and projections of one type; in the type of x.

    ``mask`` (B, N) is True for real tokens, the others must be zero; ``key=None`` takes the keys from the queries.
    """
    decay = gamma if isinstance(gamma, Tensor) else None
    plan = plan_of(
        x.shape,
        x.dtype,
        x.device,
        heads,
        query[0].shape[0],
        value[0].shape[0],
        ((key or query)[1] is not None, value[1] is not None),
        mask is not None,
        activation,
        eps,
        None if isinstance(gamma, Tensor) else gamma,
    )
    tensors = (x, *query, *(key or (None, None)), *value, decay)
    if torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in tensors):
        options = (heads, activation, eps, 1.0 if decay is not None else gamma)
        found: Tensor = _Fused.apply(*tensors, mask, plan, options)
        return found
    with on_device(x), _without_autocast(x):
        return plan.forward(*_prepared(plan, tensors, mask))[0]


def _prepared(plan: Plan, tensors: Sequence[Tensor | None], mask: Tensor | None) -> tuple[Any, ...]:
    """The arguments of ``Plan.forward``: contiguous, of one type, γ a row in float32."""
    x, wq, bq, wk, bk, wv, bv = (
        y if y is None or (y.dtype is plan.dtype and y.is_contiguous()) else y.to(plan.dtype).contiguous()
        for y in tensors[:7]
    )
    gamma = tensors[7]
    if gamma is not None:
        gamma = gamma.to(torch.float32).expand(plan.heads).contiguous()
    query = (wq, bq)
    return x, query, query if wk is None else (wk, bk), (wv, bv), gamma, mask


def _without_autocast(x: Tensor) -> Any:
    enabled = torch.is_autocast_enabled(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if enabled else contextlib.nullcontext()


def _batched(x: Tensor) -> bool:
    """Whether x stands for many tensors, as ``torch.autograd.grad(..., is_grads_batched=True)`` passes them."""
    return type(x) is not Tensor or torch._C._functorch.is_legacy_batchedtensor(x)


class _Fused(torch.autograd.Function):
    """``fused_values`` with its gradient: of x, three projections and γ, each only if asked for."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, mask, plan, ctx.options = arguments
        with on_device(tensors[0]), _without_autocast(tensors[0]):
            values, kept = plan.forward(*_prepared(plan, tensors, mask))
        ctx.plan = plan
        if not any(ctx.needs_input_grad[:5]):  # values and γ alone: tokens and scores are not read again
            kept = (None, None, None, *kept[3:5], None, kept[6])
        elif plan.activation == "relu":
            kept = (kept[0], None, *kept[2:])
        ctx.save_for_backward(*tensors, mask, *kept)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors
        inputs, mask, kept = saved[:8], saved[8], saved[9:]
        nothing = (None, None, None)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed() or _batched(grad):
            return *_plain_gradients(ctx.options, inputs, mask, grad, ctx.needs_input_grad), *nothing
        wants = ctx.needs_input_grad
        dtypes = [None if y is None else y.dtype for y in inputs]
        found: list[Tensor | None] = [None] * 8
        with on_device(grad), _without_autocast(grad):
            x, (wq, _), (wk, bk), value, gamma, _ = _prepared(plan, inputs, mask)
            _, _, _, u, pooled, _, numbers = kept
            rows, scaled, pulls = plan.row_gradients(grad.contiguous(), pooled, numbers, value, gamma, u)
            if wants[5] or wants[6]:
                found[5:7] = plan.weight_gradients(scaled, pooled, numbers, 2, wants[5:7], dtypes[5])
            if wants[7]:
                found[7] = pulls[2].sum(0).sum_to_size(inputs[7].shape).to(dtypes[7])
            if any(wants[:5]):
                found[:5] = _pass_back(plan, x, kept, (wq, wk, bk), rows, pulls, mask, wants, dtypes)
        return *found, *nothing


def _pass_back(
    plan: Plan,
    x: Tensor,
    kept: tuple[Tensor, ...],
    weights: tuple[Tensor, Tensor, Tensor | None],
    rows: Tensor,
    pulls: Tensor,
    mask: Tensor | None,
    wants: tuple[bool, ...],
    dtypes: list[Any],
) -> list[Tensor | None]:
    """dx, and the gradients of the query and key projections."""
    wq, wk, bk = weights
    both, du, dq, on_totals = plan.query_gradients(x, kept, rows, pulls, (wk, bk), mask)
    flat, tied, central = dq.view(-1, dq.shape[2]), dtypes[3] is None, kept[5]
    dx = dwq = dbq = dwk = dbk = None
    if wants[0]:
        dx = torch.mm(flat, wq).view(x.shape).baddbmm_(both, rows)
    if wants[1]:
        dwq = wide_product(flat.mT.unsqueeze(0), x.view(1, -1, x.shape[2]))[0]
    if wants[2]:
        dbq = flat.sum(0, dtype=torch.float32)
    if tied and (wants[1] or wants[2]):
        dwq, dbq = plan.weight_gradients(central, du, on_totals, 1, wants[1:3], dtypes[1], dwq, dbq)
    elif wants[3] or wants[4]:
        dwk, dbk = plan.weight_gradients(central, du, on_totals, 1, wants[3:5], dtypes[3])
    dwq, dbq = (None if y is None else y.to(dtypes[1]) for y in (dwq, dbq))
    return [dx, dwq, dbq, dwk, dbk]


def _plain_gradients(
    options: tuple[Any, ...],
    inputs: tuple[Tensor | None, ...],
    mask: Tensor | None,
    grad: Tensor,
    wants: tuple[bool, ...],
) -> list[Tensor | None]:
    """The same by plain operations, which can be differentiated again, batched and traced."""
    from .projected import plain_values

    heads, activation, eps, gamma = options
    again = torch.is_grad_enabled()
    with torch.enable_grad(), _without_autocast(grad):
        own: list[Any] = [None if y is None else y.view_as(y) for y in inputs]  # a weight used twice has two gradients
        x, wq, bq, wk, bk, wv, bv, decay = own
        key = None if wk is None else (wk, bk)
        gamma = gamma if decay is None else decay
        values = plain_values(x, heads, (wq, bq), key, (wv, bv), gamma, mask, activation, eps)
        asked = [y for y, wanted in zip(own, wants, strict=False) if wanted]
        pulled = iter(torch.autograd.grad(values, asked, grad, create_graph=again))
    return [next(pulled) if wanted else None for wanted in wants[:8]]
