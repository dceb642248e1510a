"""Pure InfSA's chunked operators for ``torch.library``: the compiler sees each as one call with known output shapes.

``torch.compile(fullgraph=True)`` therefore works with dynamic N. Autocast is off inside: sums over tokens are never
computed in half precision.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd

from ..checks import refuse_second_derivatives
from ..dtypes import accumulation_dtype, without_autocast
from ..masks import forbids_future
from . import chunked
from . import resolvent as solving
from .chunked import EdgeMatrix


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
@without_autocast
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
    return chunked.diffuse(matrix, v, _prefix(q, attn_mask, causal), eps)


@custom_op("infsa::pure_chunked_backward", mutates_args=())
@without_autocast
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
    return chunked.gradients(matrix, v, grad, z, size, prefix, eps, mask_needs_grad)


@custom_op("infsa::pure_resolvent", mutates_args=())
@without_autocast
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
    z, size = solving.resolvent(matrix, v.double(), gamma.double(), prefix, eps, _accuracy(dtype))
    return z.to(dtype), size.to(dtype)


@custom_op("infsa::pure_resolvent_backward", mutates_args=())
@without_autocast
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
    adjoint = solving.resolvent_back(matrix, grad, gamma, size, prefix, eps, _accuracy(dtype))
    gradients = chunked.gradients(matrix, v + gamma * z, adjoint, z, size, prefix, eps, mask_needs_grad)
    dq, dk, dv, dmask = (gradient.to(dtype) for gradient in gradients)
    return dq, dk, dv, dmask


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


register_autograd("infsa::pure_chunked", _pure_backward, setup_context=_save_pure)
register_autograd("infsa::pure_resolvent", _resolvent_backward, setup_context=_save_resolvent)
refuse_second_derivatives("infsa::pure_chunked_backward", "infsa::pure_resolvent_backward")
