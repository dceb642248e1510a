"""Pure InfSA by the kernels in eager mode: one function with its gradient, in few launches.

    forward: 2 launches     u and Σ r², Z
    backward: 3             c (causal: and w, 4), dK and dV, dQ

Compiled code takes the operators of ``triton_register`` instead, of which the compiler knows the shapes.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .. import dispatch
from ..activation import ACTIVATIONS
from ..checks import NORMS
from ..dispatch import KERNEL_DTYPES, LARGEST_WIDTH, PLAIN, kernels_wanted
from ..dtypes import FEW_TOKENS, cast_output
from ..masks import visible_keys
from ..tracing import exporting, followed, transformed
from ..triton.layout import readable
from .triton_backward import Gradients, pass_back
from .triton_forward import PLANS, Forward, Inputs, forward_plan, plan_for


def are_few(q: torch.Size, k: torch.Size, dtype: torch.dtype, by_row: bool) -> bool:
    """Whether so few tokens share a norm that half precision is computed in float32."""
    return dtype != torch.float32 and (k[2] if by_row else max(q[2], k[2])) <= FEW_TOKENS


def values(
    q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, seen: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    """Z in the type of q, and the norms F; ``options`` are activation, causality and ε."""
    few = are_few(q.shape, k.shape, q.dtype, seen is not None)
    dtype, (q, k, v) = q.dtype, (readable(x.float() if few else x) for x in (q, k, v))
    z, norm = plan_for(q, k, v, gamma, seen, *options)(q, k, v, gamma, seen)
    return cast_output(z, dtype) if few else z, norm


def gradients(
    found: Gradients,
    grad: Tensor,
    inputs: Inputs,
    result: tuple[Tensor, Tensor],
    *options: Any,
    wanted: tuple[bool, bool] = (True, True),
) -> Tensor:
    """Write dQ, dK and dV into ``found``; the first of what returns are sums of c (B, H, blocks)."""
    (q, k, v, gamma, seen), (z, norm) = inputs, result
    few = are_few(q.shape, k.shape, q.dtype, seen is not None)
    q, k, v = (readable(x.float() if few else x) for x in (q, k, v))
    inputs, plan = (q, k, v, gamma, seen), plan_for(q, k, v, gamma, seen, *options)
    if not few:
        return pass_back(plan, grad, inputs, (readable(z), norm), found, wanted)
    exact = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    sums = pass_back(plan, grad.float(), inputs, plan(*inputs), exact)
    for x, y in zip(found, exact, strict=True):
        x.copy_(y)
    return sums


class _Pure(torch.autograd.Function):
    """Z with its gradient: of ``packed``, of which q, k and v are views, or of q, k and v; and of a γ in memory."""

    @staticmethod
    def forward(
        ctx: Any,
        packed: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gamma: Tensor | float,
        seen: Tensor | None,
        plan: Forward | None,
        options: tuple[Any, ...],
    ) -> Tensor:
        z, norm = values(q, k, v, gamma, seen, *options) if plan is None else plan(q, k, v, gamma, seen)
        decay, ctx.gamma = (gamma, None) if isinstance(gamma, Tensor) else (None, gamma)
        ctx.save_for_backward(packed, q, k, v, decay, seen, z, norm)
        ctx.plan, ctx.options = plan, options
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        packed, q, k, v, decay, seen, z, norm = ctx.saved_tensors
        wants, gamma = ctx.needs_input_grad, ctx.gamma if decay is None else decay
        whole = None
        if followed(grad):
            from .triton_register import as_tensor, pure_gradients

            if packed is not None:
                q, k, v = packed.permute(2, 0, 3, 1, 4).unbind()
            dq, dk, dv, *sums = pure_gradients(grad, q, k, v, as_tensor(gamma, q), seen, z, norm, *ctx.options)
            if wants[0]:
                whole = torch.stack((dq, dk, dv), 2).transpose(1, 3)
        else:
            if wants[0]:
                whole = torch.empty((q.shape[0], q.shape[2], 3, q.shape[1], q.shape[3]), dtype=q.dtype, device=q.device)
                dq, dk, dv = whole.permute(2, 0, 3, 1, 4).unbind()
            else:
                dq, dk, dv = (readable(torch.empty_like(x)) for x in (q, k, v))  # kernels write whole rows of channels
            found, wanted = (dq, dk, dv), (wants[0] or wants[1], wants[0] or wants[2] or wants[3])
            inputs, result = (q, k, v, gamma, seen), (z, norm)
            if ctx.plan is None:
                sums = gradients(found, grad, inputs, result, *ctx.options, wanted=wanted)
            else:
                sums = pass_back(ctx.plan, grad, inputs, result, found, wanted)
        dgamma = decay_gradient(sums[0], decay) if wants[4] else None
        if wants[0]:
            return whole, None, None, None, dgamma, None, None, None
        asked = (x if wanted else None for x, wanted in zip((dq, dk, dv), wants[1:4], strict=True))
        return None, *asked, dgamma, None, None, None


def decay_gradient(sums: Tensor, gamma: Tensor) -> Tensor:
    """∂L/∂γ from sums of c; not a number where γ = 0."""
    per_head = sums.sum((0, 2)).view(-1, *(1,) * (gamma.dim() - 1))
    return (per_head.sum_to_size(gamma.shape) / gamma).to(gamma.dtype)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: float | Tensor,
    seen: Tensor | None,
    *options: Any,
    plan: Forward | None = None,
    packed: Tensor | None = None,
) -> Tensor:
    """Z in the type of q, differentiable; ``options`` are activation, causality and ε."""
    if plan is None and (torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or type(q) not in PLAIN):
        from .triton_register import as_tensor, pure

        z, _ = pure(q, k, v, as_tensor(gamma, q), seen, *options)
        return z
    asked = (q, k, v, gamma) if packed is None else (packed, gamma)
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in asked):
        found: Tensor = _Pure.apply(packed, q, k, v, gamma, seen, plan, options)
        return found
    return (values(q, k, v, gamma, seen, *options) if plan is None else plan(q, k, v, gamma, seen))[0]


def straight_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: float | Tensor = 0.7,
    activation: str = "relu",
    is_causal: bool | str = False,
    norm: str = "frobenius",
    hops: float = 1,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    impl: str = "auto",
    attn_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    packed: Tensor | None = None,
) -> Tensor | None:
    """``pure_attention`` without masks, with what was checked before not checked again; None where it is not for that.

    Whatever this does not know, and whatever is wrong, is left to the caller.
    """
    if is_in_torch_dispatch_mode() or exporting() or transformed():
        return None
    if attn_mask is not None or key_mask is not None:
        return None
    if type(q) not in PLAIN or type(k) not in PLAIN or type(v) not in PLAIN:
        return None
    kind = None
    if isinstance(gamma, Tensor) and type(gamma) in PLAIN:
        kind = (gamma.shape, gamma.stride(), gamma.dtype, gamma.device)
    elif type(gamma) is not float or not 0 < gamma < 1:
        return None
    device = q.device
    cast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    aligned = (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15 == 0
    shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
    options = (activation, is_causal, norm, hops, eps, dropout_p, impl)
    try:
        types = ((q.dtype, k.dtype, v.dtype), (device, k.device, v.device))
        plan = _checked(shapes, strides, *types, aligned, kind, cast, dispatch.INTERPRETED, *options)
    except TypeError:  # an option that cannot be a key
        return None
    if plan is None:
        return None
    seen = visible_keys(None, plan.n_q, plan.n_k, plan.is_causal, device) if norm == "row" else None
    return attend(q, k, v, gamma, seen, activation, plan.is_causal, plan.eps, plan=plan, packed=packed)


@functools.lru_cache(PLANS, typed=True)
def _checked(
    shapes: tuple[torch.Size, ...],
    strides: tuple[tuple[int, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[torch.device, ...],
    aligned: bool,
    gamma: tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device] | None,
    cast: torch.dtype | None,
    interpreted: bool,
    activation: str,
    is_causal: bool | str,
    norm: str,
    hops: float,
    eps: float,
    dropout_p: float,
    impl: str,
) -> Forward | None:
    """The plan of a call that the kernels do as it is, without a cast or a copy; None if there is a question left."""
    (q, k, v), device = shapes, devices[0]
    if any(len(x) != 4 or 0 in x or x[:2] != q[:2] or x[3] > LARGEST_WIDTH for x in shapes) or k[2] != v[2]:
        return None
    if q[3] != k[3] or len(set(dtypes)) > 1 or len(set(devices)) > 1 or any(x[3] != 1 for x in strides):
        return None
    if dtypes[0] not in KERNEL_DTYPES or cast not in (None, dtypes[0]) or are_few(q, k, dtypes[0], norm == "row"):
        return None
    if activation not in ACTIVATIONS or norm not in NORMS or type(hops) is not int or hops != 1 or dropout_p != 0:
        return None
    if type(eps) not in (int, float) or not 0 <= eps < math.inf or type(dropout_p) not in (int, float):
        return None
    if (
        is_causal not in (True, False, "auto")
        or type(is_causal) not in (bool, str)
        or (is_causal is True and q[2] != k[2])
    ):
        return None
    if not kernels_wanted(impl, device, interpreted):
        return None
    steps: int | None = None
    if gamma is not None:
        size, step, dtype, place = gamma
        if dtype != torch.float32 or place != device or len(size) > 1 or math.prod(size) not in (1, q[1]):
            return None
        steps = 0 if math.prod(size) == 1 else step[0]
    causal = is_causal is True
    seen = (0, int(causal)) if norm == "row" else None
    return forward_plan(q, k, v, strides, dtypes[0], device, aligned, steps, seen, activation, causal, eps, None)
