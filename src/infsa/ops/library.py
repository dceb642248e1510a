"""Registration of the chunked implementation as ``torch.library`` custom operators.

The compiler sees each as one opaque call with known output shapes, so ``torch.compile(fullgraph=True)``
works with dynamic N. Autocast is off inside: sums over tokens are never computed in half precision.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd

from .checks import accumulation_dtype, refuse_second_derivatives
from .linear import chunked as chunked_linear
from .masks import forbids_future
from .pure import chunked as chunked_pure
from .pure import resolvent as chunked_resolvent
from .pure.chunked import EdgeMatrix


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        with torch.autocast(args[0].device.type, enabled=False):
            return function(*args)

    return wrapper


def _matrix(
    q: Tensor,
    k: Tensor,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    activation: str,
    causal: str,
    norm: str,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
) -> EdgeMatrix:
    number = 0 if seed is None else int(seed)  # the seed lives on the CPU: no device is stalled
    return EdgeMatrix(q, k, key_mask, query_mask, attn_mask, activation, causal == "yes", norm, dropout_p, number)


def _prefix(q: Tensor, attn_mask: Tensor | None, causal: str) -> Tensor:
    """Whether rows are divided by the norm of their leading block, per batch item and head: (B or 1, H or 1, 1)."""
    if causal == "auto" and attn_mask is not None:
        return forbids_future(attn_mask, q.shape[2])
    return torch.full((1, 1, 1), causal == "yes", dtype=torch.bool, device=q.device)


def _like_output(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    z = q.new_empty(*q.shape[:3], v.shape[-1], dtype=accumulation_dtype(q.dtype))
    return z, z.new_empty(z.shape[:3])


def _like_gradients(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, wanted: bool) -> list[Tensor]:
    dtype = accumulation_dtype(q.dtype)
    grads = [x.new_empty(x.shape, dtype=dtype) for x in (q, k, v)]
    return [*grads, q.new_empty(attn_mask.shape if wanted and attn_mask is not None else 0, dtype=dtype)]


def _accuracy(dtype: torch.dtype) -> float:
    """The relative residual that hops=inf is solved to: well below the type's own round-off, if float64 can."""
    return max(torch.finfo(dtype).eps / 100, 8 * torch.finfo(torch.float64).eps)


def _cast(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient.to(like.dtype)


@custom_op("infsa::pure_chunked", mutates_args=())
@_without_autocast
def pure_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    activation: str,
    causal: str,
    norm: str,
    eps: float,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Ẑ = Â v and the size that divided each row; ``causal`` is "no", "yes" or "auto"."""
    matrix = _matrix(q, k, key_mask, query_mask, attn_mask, activation, causal, norm, dropout_p, seed)
    return chunked_pure.diffuse(matrix, v, _prefix(q, attn_mask, causal), eps)


@custom_op("infsa::pure_chunked_backward", mutates_args=())
@_without_autocast
def pure_chunked_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    z: Tensor,
    size: Tensor,
    activation: str,
    causal: str,
    norm: str,
    eps: float,
    dropout_p: float,
    seed: Tensor | None,
    mask_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV and the additive mask's gradient."""
    matrix = _matrix(q, k, key_mask, query_mask, attn_mask, activation, causal, norm, dropout_p, seed)
    prefix = _prefix(q, attn_mask, causal)
    return chunked_pure.gradients(matrix, v, grad, z, size, prefix, eps, mask_needs_grad)


@custom_op("infsa::pure_resolvent", mutates_args=())
@_without_autocast
def pure_resolvent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    activation: str,
    causal: str,
    norm: str,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Ẑ = Â (v + γẐ), so that γẐ sums the paths of every length, and the size of each row."""
    dtype, prefix = accumulation_dtype(q.dtype), _prefix(q, attn_mask, causal)
    matrix = _matrix(q.double(), k.double(), key_mask, query_mask, attn_mask, activation, causal, norm)
    z, size = chunked_resolvent.resolvent(matrix, v.double(), gamma.double(), prefix, eps, _accuracy(dtype))
    return z.to(dtype), size.to(dtype)


@custom_op("infsa::pure_resolvent_backward", mutates_args=())
@_without_autocast
def pure_resolvent_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    z: Tensor,
    size: Tensor,
    activation: str,
    causal: str,
    norm: str,
    eps: float,
    mask_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Implicit differentiation: solve the adjoint system once, then one ordinary backward pass."""
    dtype, prefix = accumulation_dtype(q.dtype), _prefix(q, attn_mask, causal)
    matrix = _matrix(q.double(), k.double(), key_mask, query_mask, attn_mask, activation, causal, norm)
    grad, v, gamma, z, size = (x.double() for x in (grad, v, gamma, z, size))
    adjoint = chunked_resolvent.resolvent_back(matrix, grad, gamma, size, prefix, eps, _accuracy(dtype))
    gradients = chunked_pure.gradients(matrix, v + gamma * z, adjoint, z, size, prefix, eps, mask_needs_grad)
    dq, dk, dv, dmask = (gradient.to(dtype) for gradient in gradients)
    return dq, dk, dv, dmask


@custom_op("infsa::linear_energy_sums", mutates_args=())
@_without_autocast
def linear_energy_sums(q: Tensor, groups: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Σ e and Σ e q, per group of tokens: (B, H, count), (B, H, count, d)."""
    total, _, vectors = chunked_linear.energy_sums(q, groups, count)
    return total, vectors


@custom_op("infsa::linear_energy_sums_backward", mutates_args=())
@_without_autocast
def linear_energy_sums_backward(
    grad_total: Tensor, grad_vectors: Tensor, q: Tensor, groups: Tensor | None, count: int
) -> Tensor:
    """dq."""
    return chunked_linear.energy_gradient(grad_total, grad_vectors, q, groups, count)


@custom_op("infsa::linear_score_sums", mutates_args=())
@_without_autocast
def linear_score_sums(central: Tensor, k: Tensor, v: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Σ|S|, ΣS and ΣSv: (B, H, m), (B, H, m), (B, H, m, dv)."""
    return chunked_linear.score_sums(central, k, v, activation)


@custom_op("infsa::linear_score_sums_backward", mutates_args=())
@_without_autocast
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
    return chunked_linear.score_gradients(grad_absolute, grad_signed, grad_vectors, central, k, v, activation)


# What the compiler needs to know: output shapes and types.


@pure_chunked.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like_output(q, v)


@pure_resolvent.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like_output(q, v)


@pure_chunked_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(_like_gradients(q, k, v, attn_mask=rest[2], wanted=rest[-1]))


@pure_resolvent_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(_like_gradients(q, k, v, attn_mask=rest[2], wanted=rest[-1]))


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


# Autograd: each forward keeps its inputs and small results, each backward is one more operator.


def _save_pure(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, key_mask, query_mask, attn_mask, activation, causal, norm, eps, dropout_p, seed = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, key_mask, query_mask, attn_mask, seed, *output)
    ctx.options = activation, causal, norm, eps, dropout_p


def _pure_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, v, key_mask, query_mask, attn_mask, seed, z, size = ctx.saved_tensors
    mask_needs_grad = ctx.needs_input_grad[5]
    dq, dk, dv, dmask = pure_chunked_backward(
        grad, q, k, v, key_mask, query_mask, attn_mask, z, size, *ctx.options, seed, mask_needs_grad
    )
    dmask = _cast(dmask, attn_mask) if mask_needs_grad else None
    return _cast(dq, q), _cast(dk, k), _cast(dv, v), None, None, dmask, *(None,) * 6


def _save_resolvent(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, activation, causal, norm, eps = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)
    ctx.options = activation, causal, norm, eps


def _resolvent_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, v, gamma, key_mask, query_mask, attn_mask, z, size = ctx.saved_tensors
    mask_needs_grad = ctx.needs_input_grad[6]
    dq, dk, dv, dmask = pure_resolvent_backward(
        grad, q, k, v, gamma, key_mask, query_mask, attn_mask, z, size, *ctx.options, mask_needs_grad
    )
    dgamma = (dv * z).sum_to_size(gamma.shape)
    dmask = _cast(dmask, attn_mask) if mask_needs_grad else None
    return _cast(dq, q), _cast(dk, k), _cast(dv, v), _cast(dgamma, gamma), None, None, dmask, *(None,) * 4


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
    return _cast(dcentral, central), dk, dv, None


register_autograd("infsa::pure_chunked", _pure_backward, setup_context=_save_pure)
register_autograd("infsa::pure_resolvent", _resolvent_backward, setup_context=_save_resolvent)
register_autograd("infsa::linear_energy_sums", _energy_backward, setup_context=_save_energy)
register_autograd("infsa::linear_score_sums", _scores_backward, setup_context=_save_scores)
refuse_second_derivatives(
    "infsa::pure_chunked_backward",
    "infsa::pure_resolvent_backward",
    "infsa::linear_energy_sums_backward",
    "infsa::linear_score_sums_backward",
)
