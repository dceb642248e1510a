"""Registration of the kernels with ``torch.library``: fake shapes, autograd and FLOP counts.

Operators live in the namespace ``infsa_triton``. The compiler sees each as one opaque call.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd
from torch.utils.flop_counter import register_flop_formula

from ..checks import refuse_second_derivatives
from ..triton.layout import token_major
from .triton_backward import ROWS_PER_DOT
from .triton_function import decay_gradient, gradients, values


def as_tensor(gamma: float | Tensor, like: Tensor) -> Tensor:
    """γ as the operators take it."""
    return gamma if isinstance(gamma, Tensor) else torch.full((1, 1, 1), gamma, device=like.device)


@custom_op("infsa_triton::pure", mutates_args=())
def pure(
    q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, seen: Tensor | None, activation: str, is_causal: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """Z = γ R v / (F + ε) in the type of q, and the norms F; γ is float32, (1 or H, 1, 1).

    ``seen``, float64 (B or 1, Nq or 1), asks for the row norm: the number of keys that each query may see.
    """
    return values(q, k, v, gamma, seen, activation, is_causal, eps)


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
    """dQ, dK, dV, and sums of c: (B, H, blocks) in float64, whose sum over blocks and batch is γ ∂L/∂γ."""
    found = _like(q, k, v)
    return *found, gradients(found, grad, (q, k, v, gamma, seen), (z, norm), activation, is_causal, eps)[0]


def _like(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return token_major(q, *q.shape[2:]), token_major(k, *k.shape[2:]), token_major(v, *v.shape[2:])


@pure.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, seen: Tensor | None, *options: Any) -> Any:
    count = q.shape[2] if options[1] or seen is not None else 1
    norm = q.new_empty(q.shape[0], q.shape[1], count, dtype=torch.float32)
    return token_major(q, q.shape[2], v.shape[3]), norm


@pure_gradients.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, *_: Any) -> Any:
    blocks = (q.shape[2] + ROWS_PER_DOT - 1) // ROWS_PER_DOT
    return *_like(q, k, v), q.new_empty(*q.shape[:2], blocks, dtype=torch.float64)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, activation, is_causal, eps = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)
    ctx.options = activation, is_causal, eps


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    dq, dk, dv, sums = pure_gradients(grad, *ctx.saved_tensors, *ctx.options)
    dgamma = decay_gradient(sums, ctx.saved_tensors[3]) if ctx.needs_input_grad[3] else None
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
