"""Pure InfSA's chunked operator for ``torch.library``: the compiler sees one call with known output shapes.

``torch.compile(fullgraph=True)`` therefore works with dynamic N. Autocast is off inside: sums over tokens are never
computed in half precision.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd

from ..checks import backward_schema, refuse_second_derivatives
from ..dtypes import accumulation_dtype, without_autocast
from ..masks import forbids_future
from . import chunked
from . import resolvent as solving
from .chunked import EdgeMatrix
from .rule import Rule


def _matrix(q: Tensor, k: Tensor, rule: Rule, dropout_p: float = 0.0, seed: Tensor | None = None) -> EdgeMatrix:
    key_mask, query_mask, attn_mask, activation, causal, norm, _ = rule
    number = 0 if seed is None else int(seed)  # the seed lives on the CPU: no device is stalled
    return EdgeMatrix(q, k, key_mask, query_mask, attn_mask, activation, causal == "yes", norm, dropout_p, number)


def _prefix(q: Tensor, rule: Rule) -> Tensor:
    """Whether rows are divided by the norm of their leading block, per batch item and head: (B or 1, H or 1, 1)."""
    if rule.causal == "auto" and rule.attn_mask is not None:
        return forbids_future(rule.attn_mask, q.shape[2])
    return torch.full((1, 1, 1), rule.causal == "yes", dtype=torch.bool, device=q.device)


def _accuracy(dtype: torch.dtype) -> float:
    """The relative residual that hops=inf is solved to: well below the type's own round-off, if float64 can."""
    return max(torch.finfo(dtype).eps / 100, 8 * torch.finfo(torch.float64).eps)


@custom_op("infsa::pure_chunked", mutates_args=())
@without_autocast
def pure_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor | None,
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
    """Ẑ = Â v and the size that divided each row; with γ, Ẑ = Â (v + γẐ), so that γẐ sums the paths of every length.

    ``causal`` is "no", "yes" or "auto".
    """
    rule = Rule(key_mask, query_mask, attn_mask, activation, causal, norm, eps)
    prefix, dtype = _prefix(q, rule), accumulation_dtype(q.dtype)
    if gamma is None:
        return chunked.diffuse(_matrix(q, k, rule, dropout_p, seed), v, prefix, eps)
    matrix = _matrix(q.double(), k.double(), rule)
    z, size = solving.resolvent(matrix, v.double(), gamma.double(), prefix, eps, _accuracy(dtype))
    return z.to(dtype), size.to(dtype)


GRADIENTS = backward_schema(
    "infsa::pure_chunked", "Tensor z, Tensor size", "bool mask_needs_grad", "(Tensor, Tensor, Tensor, Tensor)"
)


@custom_op("infsa::pure_chunked_backward", mutates_args=(), schema=GRADIENTS)
@without_autocast
def pure_chunked_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV and the additive mask's gradient; with γ the adjoint system is solved first."""
    key_mask, query_mask, attn_mask, z, size, activation, causal, norm, eps, dropout_p, seed, mask_needs_grad = rest
    rule = Rule(key_mask, query_mask, attn_mask, activation, causal, norm, eps)
    prefix, dtype = _prefix(q, rule), accumulation_dtype(q.dtype)
    if gamma is None:
        matrix = _matrix(q, k, rule, dropout_p, seed)
        return chunked.gradients(matrix, v, grad, z, size, prefix, rule.eps, mask_needs_grad)
    matrix = _matrix(q.double(), k.double(), rule)
    grad, v, gamma, z, size = (x.double() for x in (grad, v, gamma, z, size))
    adjoint = solving.resolvent_back(matrix, grad, gamma, size, prefix, rule.eps, _accuracy(dtype))
    gradients = chunked.gradients(matrix, v + gamma * z, adjoint, z, size, prefix, rule.eps, mask_needs_grad)
    dq, dk, dv, dmask = (gradient.to(dtype) for gradient in gradients)
    return dq, dk, dv, dmask


# What the compiler needs to know: output shapes and types.


@pure_chunked.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    z = q.new_empty(*q.shape[:3], v.shape[-1], dtype=accumulation_dtype(q.dtype))
    return z, z.new_empty(z.shape[:3])


@pure_chunked_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    attn_mask, mask_needs_grad = rest[3], rest[-1]
    shapes = (q.shape, k.shape, v.shape, attn_mask.shape if mask_needs_grad else (0,))
    return tuple(q.new_empty(shape, dtype=accumulation_dtype(q.dtype)) for shape in shapes)


# Autograd: the forward keeps its inputs and small results, the backward is one more operator.


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, activation, causal, norm, eps, dropout_p, seed = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output, seed)
    ctx.options = activation, causal, norm, eps, dropout_p


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    *tensors, seed = ctx.saved_tensors
    q, k, v, gamma, _, _, attn_mask, z, _ = tensors
    mask_needs_grad = ctx.needs_input_grad[6]
    found = pure_chunked_backward(grad, *tensors, *ctx.options, seed, mask_needs_grad)
    dq, dk, dv = (gradient.to(x.dtype) for gradient, x in zip(found, (q, k, v), strict=False))
    dgamma = None if gamma is None else (found[2] * z).sum_to_size(gamma.shape).to(gamma.dtype)
    dmask = found[3].to(attn_mask.dtype) if mask_needs_grad else None
    return dq, dk, dv, dgamma, None, None, dmask, *(None,) * 6


register_autograd("infsa::pure_chunked", _backward, setup_context=_save)
refuse_second_derivatives("infsa::pure_chunked_backward")
