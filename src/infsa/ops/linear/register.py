"""Linear-InfSA's operators for ``torch.library``: the compiler sees each as one call with known output shapes.

Autocast is off inside: sums over tokens are never computed in half precision.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd

from ..checks import refuse_second_derivatives
from ..dtypes import accumulation_dtype, without_autocast
from . import chunked


@custom_op("infsa::linear_energy_sums", mutates_args=())
@without_autocast
def linear_energy_sums(q: Tensor, groups: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Σ e and Σ e q, per group of tokens: (B, H, count), (B, H, count, d)."""
    total, _, vectors = chunked.energy_sums(q, groups, count)
    return total, vectors


@custom_op("infsa::linear_energy_sums_backward", mutates_args=())
@without_autocast
def linear_energy_sums_backward(
    grad_total: Tensor, grad_vectors: Tensor, q: Tensor, groups: Tensor | None, count: int
) -> Tensor:
    """dq."""
    return chunked.energy_gradient(grad_total, grad_vectors, q, groups, count)


@custom_op("infsa::linear_score_sums", mutates_args=())
@without_autocast
def linear_score_sums(central: Tensor, k: Tensor, v: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Σ|S|, ΣS and ΣSv: (B, H, m), (B, H, m), (B, H, m, dv)."""
    return chunked.score_sums(central, k, v, activation)


@custom_op("infsa::linear_score_sums_backward", mutates_args=())
@without_autocast
def linear_score_sums_backward(
    grad_absolute: Tensor,
    grad_signed: Tensor,
    grad_vectors: Tensor,
    central: Tensor,
    k: Tensor,
    v: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the central queries, keys and values."""
    return chunked.score_gradients(grad_absolute, grad_signed, grad_vectors, central, k, v, activation)


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


@custom_op("infsa_triton::linear_fused_backward", mutates_args=())
def linear_fused_backward(
    grad: Tensor,
    x: Tensor,
    wq: Tensor,
    bq: Tensor | None,
    wk: Tensor | None,
    bk: Tensor | None,
    wv: Tensor,
    bv: Tensor | None,
    decay: Tensor | None,
    mask: Tensor | None,
    q: Tensor,
    raw: Tensor,
    scores: Tensor,
    u: Tensor,
    pooled: Tensor,
    central: Tensor,
    numbers: Tensor,
    heads: int,
    activation: str,
    eps: float,
    gamma: float,
    wants: list[bool],
) -> list[Tensor]:
    """The gradients of the first eight that are wanted, in their order."""
    from . import fused

    tensors = (x, wq, bq, wk, bk, wv, bv, decay)
    plan = fused.plan_for(tensors, mask, heads, activation, eps, gamma)
    kept = (q, raw if raw.numel() else None, scores, u, pooled, central, numbers)
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
    *tensors, heads, activation, eps, gamma = inputs
    ctx.options = heads, activation, eps, gamma
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output[1:])


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
