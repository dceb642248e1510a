"""Registration of the kernels with ``torch.library``: fake shapes, autograd and FLOP counts.

Operators live in the namespace ``infsa_triton``. The compiler sees each as one opaque call.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd
from torch.utils.flop_counter import register_flop_formula

from ..checks import cast_output, refuse_second_derivatives
from ..triton.layout import token_major
from ..triton.support import FEW_TOKENS
from . import triton_backward, triton_forward


def _few(q: Tensor, k: Tensor, seen: Tensor | None) -> bool:
    coupled = k.shape[2] if seen is not None else max(q.shape[2], k.shape[2])
    return q.dtype != torch.float32 and coupled <= FEW_TOKENS


@custom_op("infsa_triton::pure", mutates_args=())
def pure(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, seen: Tensor | None, activation: str, is_causal: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """Z = γ R v / (F + ε) in the type of q, and the norms F; γ is float32, (1 or H, 1, 1).

    ``seen``, float64 (B or 1, Nq or 1), asks for the row norm: the number of keys that each query may see.
    """
    if _few(q, k, seen):
        z, norm = triton_forward.forward(q.float(), k.float(), v.float(), gamma, activation, is_causal, eps, seen=seen)
        return cast_output(z, q.dtype), norm
    return triton_forward.forward(q, k, v, gamma, activation, is_causal, eps, seen=seen)


@custom_op("infsa_triton::pure_backward", mutates_args=())
def pure_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    seen: Tensor | None,
    z: Tensor,
    norm: Tensor,
    activation: str,
    is_causal: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV, and c: (B, H, Nq) in float32, whose sum over rows and batch is γ ∂L/∂γ."""
    dtype = q.dtype
    if _few(q, k, seen):
        grad, q, k, v = grad.float(), q.float(), k.float(), v.float()
        z, norm = triton_forward.forward(q, k, v, gamma, activation, is_causal, eps, seen=seen)
    dq, dk, dv, dots = triton_backward.backward(grad, q, k, v, gamma, z, norm, activation, is_causal, eps, seen=seen)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype), dots


@pure.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, seen: Tensor | None, *options: Any) -> Any:
    count = triton_forward.norms_of(q.shape[2], options[1], seen)
    norm = q.new_empty(q.shape[0], q.shape[1], count, dtype=torch.float32)
    return token_major(q, q.shape[2], v.shape[3]), norm


@pure_gradients.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, *_: Any) -> Any:
    grads = (token_major(x, x.shape[2], x.shape[3]) for x in (q, k, v))
    return *grads, q.new_empty(q.shape[:3], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, activation, is_causal, eps = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)
    ctx.options = activation, is_causal, eps


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    dq, dk, dv, dots = pure_gradients(grad, *ctx.saved_tensors, *ctx.options)
    dgamma = None
    if ctx.needs_input_grad[3]:
        gamma = ctx.saved_tensors[3]
        per_head = dots.sum((0, 2), dtype=torch.float64).view(-1, 1, 1)
        dgamma = (per_head.sum_to_size(gamma.shape) / gamma).to(gamma.dtype)  # not a number where γ = 0
    return dq, dk, dv, dgamma, *(None,) * 4


register_autograd("infsa_triton::pure", _backward, setup_context=_save)
refuse_second_derivatives("infsa_triton::pure_backward")


@register_flop_formula(torch.ops.infsa_triton.pure)
def pure_flops(q_shape: Any, k_shape: Any, v_shape: Any, *_: Any, **__: Any) -> int:
    """Two products per pair of tokens, causal or not, as torch counts attention."""
    batch, heads, n_q, width = q_shape
    return 2 * batch * heads * n_q * k_shape[2] * (width + v_shape[3])


@register_flop_formula(torch.ops.infsa_triton.pure_backward)
def pure_backward_flops(grad_shape: Any, q_shape: Any, k_shape: Any, v_shape: Any, *_: Any, **__: Any) -> int:
    """The five products of the formulas; that the kernels compute two of them twice is not counted."""
    batch, heads, n_q, width = q_shape
    return 2 * batch * heads * n_q * k_shape[2] * (3 * width + 2 * v_shape[3])
