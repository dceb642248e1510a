"""Registration of Linear-InfSA's kernels with ``torch.library``, in the namespace ``infsa_triton``."""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd
from torch.utils.flop_counter import register_flop_formula

from ..checks import refuse_second_derivatives, transformed
from . import triton_sums as linear_sums
from .query_sums import query_gradients
from .query_sums import query_sums as launch_query_sums


@custom_op("infsa_triton::energy_sums", mutates_args=())
def energy_sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """Σ e (B, H) and Σ e q (B, H, d) for q = x Wᵀ + b, in float32."""
    return linear_sums.energy_sums(x, weight, bias, mask, heads)


@custom_op("infsa_triton::energy_sums_backward", mutates_args=())
def energy_gradients(
    grad_total: Tensor,
    grad_vectors: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dW and db (empty without a bias)."""
    with torch.autocast(x.device.type, enabled=False):
        return linear_sums.energy_gradients(grad_total, grad_vectors, x, weight, bias, mask, heads)


@custom_op("infsa_triton::score_sums", mutates_args=())
def score_sums(
    x: Tensor, u: Tensor, offset: Tensor, mask: Tensor | None, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ|S|, ΣS (B, H) and ΣSx (B, H, D), S_jh = φ(u_h · x_j + o_h), in float32."""
    return linear_sums.score_sums(x, u, offset, mask, activation)


@custom_op("infsa_triton::score_sums_backward", mutates_args=())
def score_gradients(
    grad_absolute: Tensor,
    grad_signed: Tensor,
    grad_vectors: Tensor,
    x: Tensor,
    u: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    absolute: Tensor,
    vectors: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, du and do."""
    with torch.autocast(x.device.type, enabled=False):
        return linear_sums.score_gradients(
            grad_absolute, grad_signed, grad_vectors, x, u, offset, mask, absolute, vectors, activation
        )


@custom_op("infsa_triton::query_sums", mutates_args=())
def query_sums(q: Tensor, mask: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Σ e (B, H) and Σ e q (B, H, d) of queries (B, N, H · d) that exist, in float32."""
    return launch_query_sums(q, mask, heads)


@query_sums.register_fake
def _(q: Tensor, mask: Tensor | None, heads: int) -> Any:
    total = q.new_empty(q.shape[0], heads, dtype=torch.float32)
    return total, total.new_empty(q.shape[0], heads, q.shape[2] // heads)


@energy_sums.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, heads: int) -> Any:
    total = x.new_empty(x.shape[0], heads, dtype=torch.float32)
    return total, total.new_empty(x.shape[0], heads, weight.shape[0] // heads)


@energy_gradients.register_fake
def _(grad_total: Tensor, grad_vectors: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> Any:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(0 if bias is None else bias.shape)


@score_sums.register_fake
def _(x: Tensor, u: Tensor, offset: Tensor, *_: Any) -> Any:
    return offset.new_empty(offset.shape), offset.new_empty(offset.shape), u.new_empty(u.shape)


@score_gradients.register_fake
def _(*args: Any) -> Any:
    x, u, offset = args[3:6]
    return x.new_empty(x.shape), u.new_empty(u.shape), offset.new_empty(offset.shape)


def _save_energy(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.heads = inputs
    ctx.save_for_backward(*tensors)


def _energy_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    dx, dweight, dbias = energy_gradients(*grads, *ctx.saved_tensors, ctx.heads)
    return dx, dweight, dbias if ctx.saved_tensors[2] is not None else None, None, None


def _save_queries(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.heads = inputs
    ctx.save_for_backward(*tensors)


def _queries_backward(ctx: Any, grad_total: Tensor, grad_vectors: Tensor) -> tuple[Any, ...]:
    """dq_i = (g_e + g_q · q_i) q_i / e_i + e_i g_q, by a kernel; traced, in plain operations that a compiler fuses."""
    q, mask = ctx.saved_tensors
    if type(q) is Tensor and not (torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed()):
        return query_gradients(grad_total, grad_vectors, q, mask, ctx.heads), None, None
    wide = q.unflatten(-1, (ctx.heads, -1)).float()  # (B, N, H, d)
    energy = torch.linalg.vector_norm(wide, dim=-1)
    grad_vectors = grad_vectors.unsqueeze(1)
    pull = (wide * grad_vectors).sum(-1) + grad_total.unsqueeze(1)
    pull = (pull / energy).masked_fill(energy == 0, 0)
    dq = (wide * pull.unsqueeze(-1) + energy.unsqueeze(-1) * grad_vectors).to(q.dtype).flatten(2)
    return dq if mask is None else dq.masked_fill(~mask.unsqueeze(-1), 0), None, None


def _save_scores(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors, output[0], output[2])


def _scores_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    return *score_gradients(*grads, *ctx.saved_tensors, ctx.activation), None, None


register_autograd("infsa_triton::energy_sums", _energy_backward, setup_context=_save_energy)
register_autograd("infsa_triton::query_sums", _queries_backward, setup_context=_save_queries)
register_autograd("infsa_triton::score_sums", _scores_backward, setup_context=_save_scores)
refuse_second_derivatives("infsa_triton::energy_sums_backward", "infsa_triton::score_sums_backward")


@register_flop_formula(torch.ops.infsa_triton.energy_sums)
def energy_flops(x_shape: Any, weight_shape: Any, *_: Any, **__: Any) -> int:
    """The query projection."""
    batch, n, dim = x_shape
    return 2 * batch * n * dim * weight_shape[0]


@register_flop_formula(torch.ops.infsa_triton.energy_sums_backward)
def energy_backward_flops(
    total_shape: Any, vectors_shape: Any, x_shape: Any, weight_shape: Any, *_: Any, **__: Any
) -> int:
    """The projection once more, dx and dW."""
    return 3 * energy_flops(x_shape, weight_shape)


@register_flop_formula(torch.ops.infsa_triton.score_sums)
def score_flops(x_shape: Any, u_shape: Any, *_: Any, **__: Any) -> int:
    """Scores and pooled tokens."""
    batch, n, dim = x_shape
    return 4 * batch * n * dim * u_shape[1]


@register_flop_formula(torch.ops.infsa_triton.score_sums_backward)
def score_backward_flops(
    absolute_shape: Any, signed_shape: Any, vectors_shape: Any, x_shape: Any, u_shape: Any, *_: Any, **__: Any
) -> int:
    """Scores and pulls, du, and dx from both."""
    batch, n, dim = x_shape
    return 10 * batch * n * dim * u_shape[1]
