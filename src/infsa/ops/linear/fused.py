"""Linear-InfSA from tokens to its pooled values as one function with its gradient, in few launches.

Eager code calls ``forward`` and ``backward`` through one autograd function; compiled code, and whoever counts
operations, sees the same two as the operators of ``register.py``. Both take ``tensors``: x, weight and bias of queries,
keys (None: those of the queries) and values, and γ where it is a tensor.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.flop_counter import register_flop_formula

from ..checks import Projection
from ..dtypes import FEW_TOKENS
from ..tracing import followed
from ..triton.layout import mask_bytes, on_device
from . import plan as plans
from . import register
from .plan import Kind, Plan

Tensors = Sequence[Any]  # tensors, and None for those that a layer does not have


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
    q: Tensor | None = None,
) -> Tensor:
    """γ Σ a v (B, H, 1, d) for tokens x (B, N, D), B > 0; in the type of x, to which projections are cast.

    ``mask`` (B, N) is True for real tokens, the others must be zero; ``key=None`` takes the keys from the queries. The
    queries ``q`` (B, N, H d) may be known, in the type of x, where nothing asks for gradients.
    """
    if x.shape[1] <= FEW_TOKENS and x.dtype != torch.float32:
        few = None if q is None else q.float()
        return fused_values(x.float(), heads, query, key, value, gamma, mask, activation, eps, few).to(x.dtype)
    decay, factor = (gamma, 1.0) if isinstance(gamma, Tensor) else (None, gamma)
    tensors = (x, *query, *(key or (None, None)), *value, decay)
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        if q is not None:
            raise ValueError("queries of another product are taken in eager code only, without a TorchDispatchMode")
        with autocast_off(x):
            cast = [y if y is None else y.to(x.dtype) for y in tensors[:7]]
            return register.linear_fused(*cast, decay, mask, heads, activation, eps, factor)[0]
    plan = plan_for(tensors, mask, heads, activation, eps, factor)
    if torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in tensors):
        found: Tensor = _Fused.apply(*tensors, mask, plan, (heads, activation, eps, factor))
        return found
    return forward(plan, tensors, mask, q)[0]


def plan_for(tensors: Tensors, mask: Tensor | None, heads: int, activation: str, eps: float, gamma: float) -> Plan:
    """The launches of a call, cached; ``gamma`` counts where γ is not among the tensors."""
    x, wq, bq, wk, bk, wv, bv, decay = tensors
    biased = (bq if wk is None else bk) is not None, bv is not None
    sizes = (heads, wq.shape[0], wv.shape[0], *biased, mask is not None)
    return plans.plan_of(Kind(x.shape, x.dtype, x.device, *sizes, activation, eps, gamma if decay is None else None))


def prepared(plan: Plan, tensors: Tensors) -> tuple[Any, ...]:
    """x, the three projections and γ as the launches want them: contiguous, of one type, γ a row in float32."""
    x, wq, bq, wk, bk, wv, bv = (
        y if y is None or (y.dtype is plan.dtype and y.is_contiguous()) else y.to(plan.dtype).contiguous()
        for y in tensors[:7]
    )
    query = (wq, bq)
    return x, query, query if wk is None else (wk, bk), (wv, bv), plan.decay(tensors[7])


def forward(plan: Plan, tensors: Tensors, mask: Tensor | None, q: Tensor | None = None) -> tuple[Tensor, ...]:
    """The values, and what ``backward`` reads; the queries ``q`` may be known."""
    x = tensors[0]
    with on_device(x), autocast_off(x):
        x, query, key, value, gamma = prepared(plan, tensors)
        return plan.forward(x, query, key, value, gamma, mask, None if q is None else q.contiguous())


def backward(
    plan: Plan,
    tensors: Tensors,
    mask: Tensor | None,
    kept: Tensors,
    grad: Tensor,
    wants: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of the tensors, each in its type and only as far as wanted."""
    with on_device(grad), autocast_off(grad):
        ready, types = prepared(plan, tensors), [None if y is None else y.dtype for y in tensors[:7]]
        return gradients(plan, ready, tensors[7], types, mask, kept, grad.contiguous(), wants)[:8]


def gradients(
    plan: Plan,
    ready: tuple[Any, ...],
    decay: Tensor | None,
    types: Sequence[Any],
    mask: Tensor | None,
    kept: Tensors,
    grad: Tensor,
    wants: Sequence[bool],
    out: tuple[Tensor, Tensor] | None = None,
) -> list[Tensor | None]:
    """The same for tensors that are ``prepared``, γ itself being ``decay``; the gradients have these ``types``.

    With ``out`` the last one is that of the projection after the heads, see :meth:`Plan.weight_gradients`.
    """
    found: list[Tensor | None] = [None] * 9
    q, raw, scores, u, pooled, central, numbers = kept
    x, query, key, value, gamma = ready
    rows, scaled, pulls = plan.row_gradients(grad, pooled, numbers, value, gamma, u)
    of_values = (scaled, pooled, numbers)
    if decay is not None and wants[7]:
        found[7] = pulls[2].sum(0).sum_to_size(decay.shape).to(decay.dtype)
    if not any(wants[:5]):
        if wants[5] or wants[6] or out is not None:
            wanted = (wants[5], wants[6], False, False)
            given = plan.weight_gradients(of_values, None, wanted, (types[5], types[5]), out=out)
            found[5], found[6], found[8] = given[0], given[1], given[4]
        return found
    real = mask_bytes(mask, x)
    both, du, sums = plan.score_gradients(x, raw, scores, numbers, rows, pulls, real)
    on_vectors, on_totals, central = plan.central_gradients(du, sums, central, numbers, pulls, key)
    unit = _unit(on_vectors, on_totals[0]) if plan.dtype == torch.float16 else None
    dq, terms = plan.query_gradients(q, _over(on_totals, unit), _over(on_vectors, unit), real)
    flat = dq.view(-1, dq.shape[2])
    if wants[0]:
        found[0] = _times(torch.mm(flat, query[0]), unit).view(x.shape).baddbmm_(both, rows[:, plan.heads :])
    on_query = spans = None
    if wants[1]:
        on_query = _times(plans.wide_product(flat.t(), x.view(-1, x.shape[2])), unit)
    if wants[2]:
        spans = _times(terms, unit)
    first = 1 if key is query else 3  # whose gradients get what the keys give
    if first == 3:
        found[1] = None if on_query is None else on_query.to(types[1])
        found[2] = None if spans is None else spans.sum((0, 1)).to(types[1])
        on_query = spans = None
    wanted = (wants[5], wants[6], wants[first], wants[first + 1])
    if any(wanted) or out is not None:
        keys, kinds = (central, du, on_totals), (types[5], types[first])
        given = plan.weight_gradients(of_values, keys, wanted, kinds, on_query, spans, out)
        found[5], found[6], found[first], found[first + 1], found[8] = given
    return found


def _unit(on_vectors: Tensor, on_totals: Tensor) -> Tensor:
    """A power of two at least as large as both: dq, divided by it, does not underflow in float16."""
    largest = torch.maximum(on_vectors.abs().amax(), on_totals.abs().amax())
    return torch.exp2(torch.ceil(torch.log2(largest.clamp_min(1e-30))))


def _over(x: Tensor, unit: Tensor | None) -> Tensor:
    return x if unit is None else x / unit


def _times(x: Tensor, unit: Tensor | None) -> Tensor:
    return x if unit is None else x.mul_(unit)


def autocast_off(x: Tensor) -> Any:
    """Autocast off, where it is on."""
    enabled = torch.is_autocast_enabled(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if enabled else contextlib.nullcontext()


class _Fused(torch.autograd.Function):
    """``fused_values`` with its gradient: of x, three projections and γ, each only if asked for."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, mask, ctx.plan, ctx.options = arguments
        values, *found = forward(ctx.plan, tensors, mask)
        kept: list[Tensor | None] = [*found]
        if not any(ctx.needs_input_grad[:5]):  # values and γ alone: tokens and scores are not read again
            kept[:3], kept[5] = [None] * 3, None
        elif kept[1] is kept[2]:
            kept[1] = None
        ctx.save_for_backward(*tensors, mask, *kept)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved, wants = ctx.saved_tensors, ctx.needs_input_grad
        tensors, mask, kept = saved[:8], saved[8], saved[9:]
        if followed(grad):
            return *_plain_gradients(ctx.options, tensors, mask, grad, wants), *(None,) * 3
        return *backward(ctx.plan, tensors, mask, kept, grad, wants), *(None,) * 3


def _plain_gradients(
    options: tuple[Any, ...],
    tensors: tuple[Tensor | None, ...],
    mask: Tensor | None,
    grad: Tensor,
    wants: tuple[bool, ...],
) -> list[Tensor | None]:
    """The same by plain operations, which can be differentiated again, batched and traced."""
    from .projected import plain_values

    heads, activation, eps, gamma = options
    again = torch.is_grad_enabled()
    with torch.enable_grad(), autocast_off(grad):
        own: list[Any] = [None if y is None else y.view_as(y) for y in tensors]  # a weight used twice has two gradients
        x, wq, bq, wk, bk, wv, bv, decay = own
        key = None if wk is None else (wk, bk)
        gamma = gamma if decay is None else decay
        values = plain_values(x, heads, (wq, bq), key, (wv, bv), gamma, mask, activation, eps)
        asked = [y for y, wanted in zip(own, wants, strict=False) if wanted]
        pulled = iter(torch.autograd.grad(values, asked, grad, create_graph=again))
    return [next(pulled) if wanted else None for wanted in wants[:8]]


@register_flop_formula(torch.ops.infsa_triton.linear_fused)
def fused_flops(x_shape: Any, wq_shape: Any, *rest: Any, **_: Any) -> int:
    """Queries, scores and pooled tokens; what all tokens share is not counted."""
    batch, n, dim = x_shape
    return 2 * batch * n * dim * wq_shape[0] + 4 * batch * n * dim * rest[7]


@register_flop_formula(torch.ops.infsa_triton.linear_fused_backward)
def fused_backward_flops(grad_shape: Any, x_shape: Any, wq_shape: Any, *_: Any, **__: Any) -> int:
    """dW_Q and dx; pulls on scores, du, and dx from both."""
    batch, n, dim = x_shape
    return 4 * batch * n * dim * wq_shape[0] + 8 * batch * n * dim * grad_shape[1]
