"""A block of Linear-InfSA as one function with its gradient, for eager code.

Short inputs wait for the host. The modules of a block are ten calls, each of which autograd follows by itself; here
autograd follows one, and what it runs both ways are the same products and kernels in the same order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..ops.dispatch import choose_linear, fused_limit, untouched
from ..ops.dtypes import FEW_TOKENS
from ..ops.linear.projected import plain_values
from ..ops.tracing import followed, transformed

KINDS = {  # of the modules that a block may be made of, by name
    "norm1": nn.LayerNorm, "drop": nn.Dropout, "drop_path1": DropPath, "norm2": nn.LayerNorm, "mlp": Mlp,
    "drop_path2": DropPath,
}  # fmt: skip
MLP = {
    "fc1": nn.Linear,
    "act": nn.GELU,
    "drop1": nn.Dropout,
    "norm": nn.Identity,
    "fc2": nn.Linear,
    "drop2": nn.Dropout,
}
ATTENTION = {"q": nn.Linear, "v": nn.Linear, "proj": nn.Linear}
LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default
GELU_BACKWARD = torch.ops.aten.gelu_backward.grad_input

MOST = 1 << 24  # numbers in tokens: without gradients, modules let go of what they have read, and more would be held

Tensors = Sequence[Any]  # x, then what ``_parameters`` returns; None for those that a block does not have


class Options(NamedTuple):
    """What is no tensor."""

    norms: tuple[float, float]  # ε of both
    approximate: str  # of GELU
    heads: int
    activation: str
    eps: float
    gamma: float  # where it is no tensor


def run_whole(block: Any, x: Tensor) -> Tensor | None:
    """What a block of Linear-InfSA makes of all its tokens x (B, N, D); None where its modules are to be called."""
    if (
        type(x) is not Tensor
        or torch.is_autocast_enabled(x.device.type)
        or is_in_torch_dispatch_mode()
        or transformed()
    ):
        return None
    made = None if x.shape[1] <= FEW_TOKENS and x.dtype != torch.float32 else _made_of(block)
    if made is None:
        return None
    tensors, options, impl = made
    learning = torch.is_grad_enabled() and (x.requires_grad or any(y is not None and y.requires_grad for y in tensors))
    alike = all(y is None or (type(y) is nn.Parameter and y.dtype is x.dtype) for y in (*tensors[:8], *tensors[9:]))
    if not alike or not (learning or x.numel() <= MOST):
        return None
    gamma, projections = options.gamma if tensors[8] is None else tensors[8], tensors[2:8]
    chosen = choose_linear(impl, x, lambda: fused_limit(x, projections, options.heads, gamma, {}))
    if chosen != "fused":
        return None
    from ..ops.linear import fused  # needs Triton

    given = (x.contiguous(), *tensors)
    sizes = (options.heads, options.activation, options.eps, options.gamma)
    plan = fused.plan_for((x, *projections, tensors[8]), None, *sizes)
    if learning:
        found: Tensor = _Whole.apply(*given, plan, options)
        return found
    with fused.on_device(x):
        found, *_ = _forward(plan, options, given)
    return found


def _made_of(block: Any) -> tuple[tuple[Any, ...], Options, str] | None:
    """A block's tensors and options and its implementation, if it is made of nothing but plain modules."""
    parts = block._modules
    attn, mlp = parts["attn"], parts["mlp"]
    if any(type(parts[name]) is not kind for name, kind in KINDS.items()):
        return None
    own: Any = attn._modules
    inner: Any = mlp._modules
    if any(type(own[name]) is not kind for name, kind in ATTENTION.items()) or attn.extra is not None:
        return None
    if any(type(inner[name]) is not kind for name, kind in MLP.items()) or attn.key_difference is not None:
        return None
    key, norms = attn.k, (parts["norm1"], parts["norm2"])
    if (key is not None and type(key) is not nn.Linear) or attn.iterations > 1 or attn.queries > 1:
        return None
    if any(len(norm.normalized_shape) != 1 for norm in norms):
        return None
    drops, paths = (parts["drop"], inner["drop1"], inner["drop2"]), (parts["drop_path1"], parts["drop_path2"])
    if any(drop.training and drop.p for drop in drops) or any(path.training and path.drop_prob for path in paths):
        return None
    if not untouched(*parts.values(), *own.values(), *inner.values()):
        return None
    gamma = own["decay"]()
    first, second = (_parameters(norm) for norm in norms)
    projected = (*_parameters(own["q"]), *((None, None) if key is None else _parameters(key)), *_parameters(own["v"]))
    learned = isinstance(gamma, Tensor)
    tensors = (*first, *projected, gamma if learned else None, *_parameters(own["proj"]))
    tensors += (*second, *_parameters(inner["fc1"]), *_parameters(inner["fc2"]))
    eps, approximate = (norms[0].eps, norms[1].eps), inner["act"].approximate
    return (
        tensors,
        Options(eps, approximate, attn.num_heads, attn.activation, attn.eps, 1.0 if learned else gamma),
        attn.impl,
    )


def _parameters(module: nn.Module) -> tuple[Any, Any]:
    return module._parameters["weight"], module._parameters["bias"]


def _forward(plan: Any, options: Options, tensors: Tensors) -> tuple[Any, ...]:
    """The tokens after the block, and what the way back reads."""
    from ..ops.linear import fused

    x, gain1, shift1, *projections, gain2, shift2, wide, wide_bias, narrow, narrow_bias = tensors
    *projections, out, out_bias = projections
    shape = x.shape[2:]
    normal, mean1, scale1 = torch.native_layer_norm(x, shape, gain1, shift1, options.norms[0])
    values, *kept = fused.forward(plan, (normal, *projections), None)
    values = values.view(x.shape[0], 1, -1)
    y = x + F.linear(values, out, out_bias)
    inner, mean2, scale2 = torch.native_layer_norm(y, shape, gain2, shift2, options.norms[1])
    hidden = F.linear(inner, wide, wide_bias)
    active = F.gelu(hidden, approximate=options.approximate)
    found = F.linear(active, narrow, narrow_bias).add_(y)
    return found, (normal, mean1, scale1, values, y, inner, mean2, scale2, hidden, active), kept


def _backward(
    plan: Any, options: Options, tensors: Tensors, kept: Tensors, sums: Tensors, grad: Tensor, wants: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of the tensors, as far as wanted."""
    from ..ops.linear import fused

    x, gain1, shift1, *projections, gain2, shift2, wide, _, narrow, _ = tensors
    *projections, out, _ = projections
    normal, mean1, scale1, values, y, inner, mean2, scale2, hidden, active = kept
    found: list[Tensor | None] = [None] * len(wants)
    shape, grad = x.shape[2:], grad.contiguous()
    flat = grad.view(-1, x.shape[2])
    found[16:18] = _product_gradients(flat, active, wants[16:18])
    if not any(wants[:16]):
        return found
    on_hidden = flat @ narrow
    flat_hidden = hidden.view(on_hidden.shape)
    GELU_BACKWARD(on_hidden, flat_hidden, approximate=options.approximate, grad_input=on_hidden)
    found[14:16] = _product_gradients(on_hidden, inner, wants[14:16])
    if not any(wants[:14]):
        return found
    pulled, mask = (on_hidden @ wide).view(y.shape), [any(wants[:12]), wants[12], wants[13]]
    del on_hidden
    on_y, *found[12:14] = LAYER_NORM_BACKWARD(pulled, y, shape, mean2, scale2, gain2, shift2, mask)
    if not any(wants[:12]):
        return found
    on_y.add_(grad)
    on_row = on_y.sum(1)
    found[10:12] = _product_gradients(on_row, values, wants[10:12])
    if not any(wants[:10]):
        return found
    on_values = (on_row @ out).view(x.shape[0], options.heads, 1, -1)
    asked = (any(wants[:3]), *wants[3:10])
    on_normal, *found[3:10] = fused.backward(plan, (normal, *projections), None, sums, on_values, asked)
    if not any(wants[:3]):
        return found
    on_x, *found[1:3] = LAYER_NORM_BACKWARD(on_normal, x, shape, mean1, scale1, gain1, shift1, list(wants[:3]))
    found[0] = on_x.add_(on_y) if wants[0] else None
    return found


def _product_gradients(grad: Tensor, x: Tensor, wants: Sequence[bool]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias of x Wᵀ + b from that of its rows."""
    weight = grad.t() @ x.view(-1, x.shape[2]) if wants[0] else None
    return weight, grad.sum(0) if wants[1] else None


def _needed(kept: Tensors, sums: Tensors, wants: Sequence[bool]) -> list[Tensor | None]:
    """What ``_forward`` kept, with None for what ``_backward`` does not read."""
    first, scored, attended, projected = any(wants[:3]), any(wants[:7]), any(wants[:10]), any(wants[:14])
    read = [attended, first, first, wants[10], projected, wants[14], projected, projected, any(wants[:16]), wants[16]]
    q, raw, scores, u, pooled, central, numbers = sums
    found = [y if wanted else None for y, wanted in zip(kept, read, strict=True)]
    found += [y if scored else None for y in (q, None if raw is scores else raw, scores)]
    found += [y if attended else None for y in (u, pooled)]
    return [*found, central if scored else None, numbers if attended else None]


class _Whole(torch.autograd.Function):
    """A block with its gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        from ..ops.linear.fused import on_device

        *tensors, ctx.plan, ctx.options = arguments
        with on_device(tensors[0]):
            found, kept, sums = _forward(ctx.plan, ctx.options, tensors)
        ctx.save_for_backward(*tensors, *_needed(kept, sums, ctx.needs_input_grad))
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from ..ops.linear.fused import autocast_off, on_device

        saved, wants = ctx.saved_tensors, ctx.needs_input_grad
        tensors, kept, sums = saved[:18], saved[18:28], saved[28:]
        if followed(grad):
            return *_plain_gradients(ctx.options, tensors, grad, wants), None, None
        with on_device(grad), autocast_off(grad):
            return *_backward(ctx.plan, ctx.options, tensors, kept, sums, grad, wants[:18]), None, None


def _plain_gradients(options: Options, tensors: Tensors, grad: Tensor, wants: Sequence[bool]) -> list[Tensor | None]:
    """The same by plain operations, which can be differentiated again and batched."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [None if y is None else y.view_as(y) for y in tensors]  # a weight used twice has two gradients
        asked = [y for y, wanted in zip(own, wants, strict=False) if wanted and y is not None]
        pulled = iter(torch.autograd.grad(_plain(options, own), asked, grad, create_graph=again))
    return [next(pulled) if wanted else None for wanted in wants[:18]]


def _plain(options: Options, tensors: Tensors) -> Tensor:
    x, gain1, shift1, wq, bq, wk, bk, wv, bv, decay, out, out_bias, gain2, shift2, *mlp = tensors
    shape = x.shape[2:]
    normal = F.layer_norm(x, shape, gain1, shift1, options.norms[0])
    gamma, key = options.gamma if decay is None else decay, None if wk is None else (wk, bk)
    values = plain_values(normal, options.heads, (wq, bq), key, (wv, bv), gamma, None, options.activation, options.eps)
    y = x + F.linear(values.reshape(x.shape[0], 1, -1), out, out_bias)
    hidden = F.linear(F.layer_norm(y, shape, gain2, shift2, options.norms[1]), mlp[0], mlp[1])
    return y + F.linear(F.gelu(hidden, approximate=options.approximate), mlp[2], mlp[3])
