"""Linear-InfSA's operators for ``torch.library``: the compiler sees each as one call with known output shapes.

Autocast is off inside: sums over tokens are never computed in half precision.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef, custom_op, register_autograd

from ..checks import backward_schema, refuse_second_derivatives
from ..dtypes import accumulation_dtype, without_autocast
from . import chunked


def _plain(name: str, function: Callable[..., Any]) -> CustomOpDef:
    return custom_op(f"infsa::{name}", without_autocast(function), mutates_args=())


linear_energy_sums = _plain("linear_energy_sums", chunked.energy_sums)
linear_energy_sums_backward = _plain("linear_energy_sums_backward", chunked.energy_gradient)
linear_score_sums = _plain("linear_score_sums", chunked.score_sums)
linear_score_sums_backward = _plain("linear_score_sums_backward", chunked.score_gradients)


@custom_op("infsa_triton::linear_fused", mutates_args=())
def linear_fused(
    x: Tensor,
    wq: Tensor,
    bq: Tensor | None,
    wk: Tensor | None,
    bk: Tensor | None,
    wv: Tensor,
    bv: Tensor | None,
    decay: Tensor | None,
    mask: Tensor | None,
    heads: int,
    activation: str,
    eps: float,
    gamma: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """γ Σ a v (B, H, 1, d), and what the backward pass reads; γ is ``decay`` (H,) or the number."""
    from . import fused

    tensors = (x, wq, bq, wk, bk, wv, bv, decay)
    values, q, raw, *kept = fused.forward(fused.plan_for(tensors, mask, heads, activation, eps, gamma), tensors, mask)
    raw = raw.new_empty(0) if raw is kept[0] else raw  # outputs may not share memory
    return (values, q, raw, *kept)  # type: ignore[return-value]


KEPT = "Tensor q, Tensor raw, Tensor scores, Tensor u, Tensor pooled, Tensor central, Tensor numbers"
GRADIENTS = backward_schema("infsa_triton::linear_fused", KEPT, "bool[] wants", "Tensor[]")


@custom_op("infsa_triton::linear_fused_backward", mutates_args=(), schema=GRADIENTS)
def linear_fused_backward(grad: Tensor, *rest: Any) -> list[Tensor]:
    """The gradients of the first eight that are wanted, in their order."""
    from . import fused

    tensors, mask, kept, options, wants = rest[:8], rest[8], [*rest[9:16]], rest[16:20], rest[20]
    kept[1] = kept[1] if kept[1].numel() else None
    plan = fused.plan_for(tensors, mask, *options)
    return [y for y in fused.backward(plan, tensors, mask, kept, grad, wants) if y is not None]


@linear_energy_sums.register_fake
def _(q: Tensor, groups: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    total = q.new_empty(q.shape[0], q.shape[1], count, dtype=accumulation_dtype(q.dtype))
    return total, total.new_empty(*total.shape, q.shape[3])


@linear_energy_sums_backward.register_fake
def _(grad_total: Tensor, grad_vectors: Tensor, q: Tensor, *_: Any) -> Tensor:
    return q.new_empty(q.shape)


@linear_score_sums.register_fake
def _(central: Tensor, k: Tensor, v: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    total = k.new_empty(central.shape[:3], dtype=accumulation_dtype(k.dtype))
    return total, torch.empty_like(total), total.new_empty(*total.shape, v.shape[3])


@linear_score_sums_backward.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    central, k, v = args[3:6]
    dcentral = central.new_empty(central.shape, dtype=accumulation_dtype(k.dtype))
    return dcentral, k.new_empty(k.shape), v.new_empty(v.shape)


@linear_fused.register_fake
def _(x: Tensor, wq: Tensor, *rest: Any) -> Any:
    (batch, n, dim), wv, heads, activation = x.shape, rest[3], rest[7], rest[8]
    values = x.new_empty(batch, heads, 1, wv.shape[0] // heads)
    scores, pooled = x.new_empty(batch, n, heads), x.new_empty(batch, heads, dim, dtype=torch.float32)
    central = pooled.new_empty(batch, heads, wq.shape[0] // heads)
    raw = x.new_empty(0) if activation == "relu" else torch.empty_like(scores)
    q, u, numbers = (
        x.new_empty(batch, n, wq.shape[0]),
        x.new_empty(batch, heads, dim),
        pooled.new_empty(5, batch, heads),
    )
    return values, q, raw, scores, u, pooled, central, numbers


@linear_fused_backward.register_fake
def _(grad: Tensor, *rest: Any) -> list[Tensor]:
    return [torch.empty_like(y) for y, wanted in zip(rest[:8], rest[-1], strict=True) if wanted]


def _save_energy(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, groups, ctx.count = inputs
    ctx.save_for_backward(q, groups)


def _energy_backward(ctx: Any, grad_total: Tensor, grad_vectors: Tensor) -> tuple[Any, ...]:
    q, groups = ctx.saved_tensors
    return linear_energy_sums_backward(grad_total, grad_vectors, q, groups, ctx.count), None, None


def _save_scores(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _scores_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    central, k, v = ctx.saved_tensors
    dcentral, dk, dv = linear_score_sums_backward(*grads, central, k, v, ctx.activation)
    return dcentral.to(central.dtype), dk, dv, None


def _save_fused(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[9:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs[:9], *output[1:])


def _fused_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    wants = list(ctx.needs_input_grad[:8])
    found = iter(linear_fused_backward(grad, *ctx.saved_tensors, *ctx.options, wants))
    return *(next(found) if wanted else None for wanted in wants), *(None,) * 5


register_autograd("infsa::linear_energy_sums", _energy_backward, setup_context=_save_energy)
register_autograd("infsa::linear_score_sums", _scores_backward, setup_context=_save_scores)
register_autograd("infsa_triton::linear_fused", _fused_backward, setup_context=_save_fused)
refuse_second_derivatives(
    "infsa::linear_energy_sums_backward", "infsa::linear_score_sums_backward", "infsa_triton::linear_fused_backward"
)
