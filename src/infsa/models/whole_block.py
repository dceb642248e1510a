"""A block of Linear-InfSA as one function with its gradient, for eager code.

Short inputs wait for the host. The modules of a block are ten calls, each of which autograd follows by itself; here
autograd follows one, and what it runs both ways are the same products and kernels in the same order.
"""

import functools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..nn.decay import Decay
from ..ops import dispatch
from ..ops.dtypes import FEW_TOKENS
from ..ops.linear.projected import plain_values
from ..ops.tracing import exporting, followed, transformed
from ..ops.triton.layout import on_device
from .kernels import WIDEST

PARTS = {  # the modules that a block may be made of, by name
    "norm1": nn.LayerNorm, "drop": nn.Dropout, "drop_path1": DropPath, "norm2": nn.LayerNorm, "drop_path2": DropPath,
}  # fmt: skip
MLP = {
    "fc1": nn.Linear,
    "act": nn.GELU,
    "drop1": nn.Dropout,
    "norm": nn.Identity,
    "fc2": nn.Linear,
    "drop2": nn.Dropout,
}
ATTENTION = {"q": nn.Linear, "v": nn.Linear, "proj": nn.Linear, "decay": Decay}
KINDS = (*PARTS.values(), *MLP.values(), *ATTENTION.values())
PARTS_OF, MLP_OF, ATTENTION_OF = (itemgetter(*names) for names in (PARTS, MLP, ATTENTION))

MOST = 1 << 24  # numbers in tokens: without gradients, modules let go of what they have read, and more would be held
PLANS = 512  # kinds of calls whose launches are kept

Tensors = Sequence[Any]  # x and the parameters, γ after the first eight; None for those that a block does not have
READ = itemgetter(2, 3, 4, 5, 6, 7, 8, 0, 10, 11, 15)  # of the parameters: what kernels read, or read the product with
HIDDEN = 12  # of the parameters: the weight whose rows are the MLP's hidden units


class Options(NamedTuple):
    """What is no tensor."""

    norms: tuple[float, float]  # ε of both
    approximate: str  # of GELU
    heads: int
    activation: str
    eps: float
    gamma: float  # where it is no tensor


class Plan(NamedTuple):
    """The launches for one kind of call."""

    attention: Any
    add_row: Any
    norm_gradient: Any
    gelu_gradient: Any


def run_whole(block: Any, x: Tensor) -> Tensor | None:
    """What a block of Linear-InfSA makes of all its tokens x (B, N, D); None where its modules are to be called."""
    shape, dtype, device = x.shape, x.dtype, x.device
    if type(x) is not Tensor or torch.is_autocast_enabled(device.type) or is_in_torch_dispatch_mode():
        return None
    if transformed() or exporting() or (shape[1] <= FEW_TOKENS and dtype != torch.float32):
        return None
    if not dispatch.kernels_wanted(block.attn.impl, device, dispatch.INTERPRETED, "fused"):
        return None
    made = _made_of(block)
    if made is None:
        return None
    own, gamma, options = made
    learning = torch.is_grad_enabled()
    if learning:
        learning = x.requires_grad or any(y is not None and y.requires_grad for y in (*own, gamma))
    if not (learning or x.numel() <= MOST):
        return None
    if any(y is not None and (type(y) is not nn.Parameter or y.dtype is not dtype) for y in own):
        return None
    read = tuple([None if y is None else (y.shape, y.device, y.is_contiguous()) for y in READ(own)])
    learned = None if gamma is None else (type(gamma), gamma.device)
    plan = _plan_of(shape, dtype, device, read, own[HIDDEN].shape[0], learned, options)
    if plan is None:
        return None
    given = (x.contiguous(), *own[:8], gamma, *own[8:])
    if learning:
        found: Tensor = _Whole.apply(*given, plan, options)
        return found
    with on_device(x):
        return _forward(plan, options, given, False)[0]


@functools.lru_cache(PLANS)
def _plan_of(
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    read: tuple[Any, ...],
    hidden: int,
    learned: tuple[Any, ...] | None,
    options: Options,
) -> Plan | None:
    """The launches of a call; None where kernels cannot do it. ``read`` says what their weights are, not which."""
    dim, heads = shape[2], options.heads
    shapes = [None if kind is None else kind[0] for kind in read]
    kinds = [None if y is None else (nn.Parameter, dtype, device, y) for y in shapes[:6]]
    if any(kind is not None and kind[1:] != (device, True) for kind in read) or learned not in (None, (Tensor, device)):
        return None
    if dispatch.misfit(((Tensor, dtype, device, shape), *kinds), False, heads) is not None or dim > WIDEST:
        return None
    query, query_bias, key, key_bias, value, value_bias, out, *gains, bias = shapes
    assert query is not None and value is not None  # noqa: PT018
    widest = max(query[0], value[0]) // heads
    if dtype not in dispatch.KERNEL_DTYPES or widest > dispatch.LARGEST_WIDTH:
        return None
    if out != (dim, value[0]) or gains != [(dim,)] * 3 or bias not in (None, (dim,)):
        return None
    from ..ops.linear.plan import Kind, plan_of  # needs Triton
    from .add_row import AddRow
    from .gelu_gradient import GeluGradient
    from .norm_gradient import NormGradient

    biased = (query_bias if key is None else key_bias) is not None, value_bias is not None
    decay = options.gamma if learned is None else None
    kind = Kind(shape, dtype, device, heads, query[0], value[0], *biased, False, options.activation, options.eps, decay)
    add_row = AddRow(shape, device, options.norms[1], bias is not None)
    gelu = GeluGradient(shape[0] * shape[1], hidden, device, options.approximate)
    return Plan(plan_of(kind), add_row, NormGradient(shape, device), gelu)


def _made_of(block: Any) -> tuple[tuple[Any, ...], Tensor | None, Options] | None:
    """A block's parameters, its γ where that is a tensor, and its options, if it is made of plain modules only."""
    parts = block._modules
    attn, mlp = parts["attn"], parts["mlp"]
    if type(mlp) is not Mlp:
        return None
    modules = (*PARTS_OF(parts), *MLP_OF(mlp._modules), *ATTENTION_OF(attn._modules))
    if tuple(map(type, modules)) != KINDS or attn.extra is not None:
        return None
    if attn.key_difference is not None or attn.iterations > 1 or attn.queries > 1:
        return None
    norm1, drop, path1, norm2, path2, fc1, act, drop1, _, fc2, drop2, q, v, proj, decay = modules
    key = attn.k
    if key is not None and (type(key) is not nn.Linear or not dispatch.untouched(key)):
        return None
    if (drop.training and drop.p) or (drop1.training and drop1.p) or (drop2.training and drop2.p):
        return None
    if (path1.training and path1.drop_prob) or (path2.training and path2.drop_prob):
        return None
    if len(norm1.normalized_shape) != 1 or not dispatch.untouched(attn, mlp, *modules):
        return None
    gamma = decay.forward()
    learned = isinstance(gamma, Tensor)
    layers = (norm1, q, key, v, proj, norm2, fc1, fc2)
    try:
        own = [y for layer in layers for y in ((None, None) if layer is None else _parameters(layer))]
    except KeyError:  # replicas of DataParallel and shards of FSDP hold plain tensors instead
        return None
    sizes = (attn.num_heads, attn.activation, attn.eps, 1.0 if learned else gamma)
    return tuple(own), gamma if learned else None, Options((norm1.eps, norm2.eps), act.approximate, *sizes)


def _parameters(module: nn.Module) -> tuple[Any, Any]:
    return module._parameters["weight"], module._parameters["bias"]


def _forward(plan: Plan, options: Options, tensors: Tensors, learning: bool) -> tuple[Any, ...]:
    """The tokens after the block, and what the way back reads."""
    x, gain1, shift1, wq, bq, wk, bk, wv, bv, gamma, out, out_bias, gain2, shift2, *mlp = tensors
    wide, wide_bias, narrow, narrow_bias = mlp
    shape, attention = x.shape, plan.attention
    normal, mean1, scale1 = torch.native_layer_norm(x, shape[2:], gain1, shift1, options.norms[0])
    query, key = (wq, bq), (wq, bq) if wk is None else (wk, bk)
    values, *sums = attention.forward(normal, query, key, (wv, bv), attention.decay(gamma), None)
    values = values.view(shape[0], -1)
    row = F.linear(values, out, out_bias)
    found, inner, y, mean2, scale2 = plan.add_row(x, row, narrow_bias, gain2, shift2, learning)
    hidden = F.linear(inner, wide, wide_bias)
    active = F.gelu(hidden, approximate=options.approximate)
    found.view(-1, shape[2]).addmm_(active, narrow.t())  # what is returned must be no view: it may change in place
    return found, (normal, mean1, scale1, values, y, inner, mean2, scale2, hidden, active), sums


def _backward(
    plan: Plan, options: Options, tensors: Tensors, kept: Tensors, sums: Tensors, grad: Tensor, wants: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of the tensors; what is not wanted is left out where that saves a launch."""
    from ..ops.linear import fused

    x, gain1, _, *projections, out, _, gain2, _, wide, _, narrow, _ = tensors
    normal, mean1, scale1, values, y, inner, mean2, scale2, hidden, active = kept
    found: list[Tensor | None] = [None] * len(wants)
    shape, grad = x.shape, grad.contiguous()
    flat, further = grad.view(-1, shape[2]), any(wants[:14])
    found[16] = torch.mm(flat.t(), active) if wants[16] else None
    found[17] = flat.sum(0) if wants[17] and not further else None
    if not (further or wants[14] or wants[15]):
        return found
    on_hidden = torch.mm(flat, narrow)
    terms = plan.gelu_gradient(on_hidden, hidden)
    if wants[14]:
        found[14] = torch.mm(on_hidden.t(), inner)
    if not further:
        found[15] = terms.sum(0).to(flat.dtype) if wants[15] else None
        return found
    pulled = torch.mm(on_hidden, wide)
    del on_hidden
    norms = (pulled, y, flat, mean2, scale2, gain2)
    pulls = plan.norm_gradient(*norms, wants[17], terms if wants[15] else None)
    on_y, on_row, on_bias, *found[12:14], found[17], found[15] = pulls
    if not any(wants[:12]):
        return found
    found[11] = on_bias
    if not any(wants[:10]):
        found[10] = torch.mm(on_row.t(), values) if wants[10] else None
        return found
    on_values = torch.mm(on_row, out).view(shape[0], options.heads, 1, -1)
    wq, bq, wk, bk, wv, bv, gamma = projections
    query, asked = (wq, bq), (any(wants[:3]), *wants[3:10])
    ready = normal, query, query if wk is None else (wk, bk), (wv, bv), plan.attention.decay(gamma)
    call = (plan.attention, ready, gamma, (x.dtype,) * 7, None, sums, on_values, asked)
    on_normal, *found[3:11] = fused.gradients(*call, out=(values, on_row) if wants[10] else None)
    if any(wants[:3]):
        found[0], _, _, *found[1:3], _, _ = plan.norm_gradient(on_normal, x, on_y, mean1, scale1, gain1)
    return found


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
        *tensors, ctx.plan, ctx.options = arguments
        with on_device(tensors[0]):
            found, kept, sums = _forward(ctx.plan, ctx.options, tensors, True)
        ctx.save_for_backward(*tensors, *_needed(kept, sums, ctx.needs_input_grad))
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from ..ops.linear.fused import autocast_off

        saved, wants = ctx.saved_tensors, ctx.needs_input_grad
        tensors, kept, sums = saved[:18], saved[18:28], saved[28:]
        if followed(grad):
            return *_plain_gradients(ctx.options, tensors, grad, wants), None, None
        with on_device(grad), autocast_off(grad):
            found = _backward(ctx.plan, ctx.options, tensors, kept, sums, grad, wants[:18])
        return *(y if wanted else None for y, wanted in zip(found, wants, strict=False)), None, None


def _plain_gradients(options: Options, tensors: Tensors, grad: Tensor, wants: Sequence[bool]) -> list[Tensor | None]:
    """The same by plain operations, which can be differentiated again and batched."""
    from ..ops.linear.fused import autocast_off

    again = torch.is_grad_enabled()
    with torch.enable_grad(), autocast_off(grad):
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
