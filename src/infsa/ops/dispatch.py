"""The one place that chooses an implementation, and can say why.

An ``impl`` given by name is honoured or refused in one line, never replaced. ``"auto"`` takes the first implementation
of an operator that supports the call: GPU kernels, then tiles in plain PyTorch, then the equations as written.
"""

import copy
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .dtypes import compute_dtype
from .tracing import constant, exporting, surely, transformed

IMPLEMENTATIONS = {"pure": ("triton", "chunked", "reference"), "linear": ("fused", "chunked", "reference")}
NAMES: tuple[str, ...] = ("auto", "reference", "chunked", "triton", "fused")  # of both operators
KERNELS = ("triton", "fused")
HAS_TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run on the CPU, slowly
AVAILABLE = tuple(name for name in NAMES[1:] if HAS_TRITON or name not in KERNELS)

KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_WIDTH = 128  # of a head, for the kernels
DENSE_SOLVE = 512  # tokens up to which hops=inf is solved with a dense factorisation
FEW_ROWS = 4  # a matrix product of so few keeps most of a GPU waiting, a sum reads the weight at full speed
PLAIN = (Tensor, nn.Parameter)

Reason = Callable[[str], str | None]


@dataclass(frozen=True)
class Dispatch:
    """Which implementation runs, and why the others do not."""

    operator: str  # "pure" or "linear"
    impl: str
    reason: str
    rejected: dict[str, str]  # implementation: why not

    def __str__(self) -> str:
        lines = [f"{self.operator}: {self.impl} ({self.reason})"]
        return "\n".join(lines + [f"  not {name}: {why}" for name, why in self.rejected.items()])


def explain_dispatch(attention: Callable[..., Any], *inputs: Any, impl: str | None = None, **options: Any) -> Dispatch:
    """Say which implementation a call would run and why, without running it; at most a layer's projections run.

    ``attention`` is one of the functions that take an ``impl`` (:func:`pure_attention`, :func:`linear_attention`,
    :func:`central_pool`, :func:`projected_values`) or a layer with one; what follows are its arguments. Arguments that
    it refuses are refused here too.

    Example:
        >>> q = torch.randn(1, 4, 64, 16)
        >>> print(infsa.ops.explain_dispatch(infsa.pure_attention, q, q, q, is_causal=True))
        pure: chunked (the first that supports the call)
          not triton: needs tensors on a CUDA device, got cpu
          not reference: chunked comes first
    """
    if isinstance(attention, nn.Module):
        if not hasattr(attention, "impl"):
            raise TypeError(
                f"explain_dispatch takes a function or a layer with an impl, got {type(attention).__name__}"
            )
        layer = copy.copy(attention)  # shares the parameters
        layer.__dict__["impl"] = _Question(attention.impl if impl is None else impl)
        attention = layer.forward
    else:
        options["impl"] = _Question("auto" if impl is None else impl)
    try:
        attention(*inputs, **options)
    except _Answer as answer:
        return answer.dispatch
    raise TypeError(f"explain_dispatch takes a function or a layer that chooses, got {attention!r}")


class _Question(str):
    """An ``impl`` that asks what would run."""


class _Answer(Exception):
    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__(str(dispatch))
        self.dispatch = dispatch


def check_impl(impl: str, operator: str) -> None:
    """Refuse an implementation that an operator does not have, or not here."""
    names = IMPLEMENTATIONS[operator]
    if impl != "auto" and impl not in names:
        raise ValueError(f"impl must be one of {['auto', *names]} for {operator} InfSA, got {impl!r}")
    if impl in KERNELS and impl not in AVAILABLE:
        here = [name for name in names if name in AVAILABLE]
        raise ValueError(f"impl={impl!r} is not available here (it needs Triton); available: {here}")


def choose_pure(impl: str, q: Tensor, v: Tensor, attn_mask: Tensor | None, hops: float, dropout_p: float) -> str:
    """The implementation of Pure InfSA for a call."""

    def cannot(name: str) -> str | None:
        if name != "triton":
            return _no_derivatives(name)
        if attn_mask is not None:
            return f"takes no attn_mask, got one of shape {tuple(attn_mask.shape)}"
        if dropout_p > 0:
            return f"takes no dropout, got dropout_p={dropout_p!r}"
        if hops == math.inf:
            return "takes a finite number of hops, got hops=inf"
        return _kernel_limit(q, q.dtype, q.shape[3], v.shape[3]) or _no_derivatives(name)

    def avoided(name: str) -> str | None:
        if name == "chunked" and hops == math.inf and q.shape[2] <= DENSE_SOLVE:
            return f"up to {DENSE_SOLVE} tokens, hops=inf is faster as a dense solve"
        return _avoided(name, q)

    return _choose("pure", impl, cannot, avoided)


def asks_for_kernels(x: Any, impl: str) -> bool:
    """Whether an eager call of Pure InfSA may be one for the kernels, asked before anything is checked."""
    wanted = impl == "triton" or (impl == "auto" and isinstance(x, Tensor) and x.is_cuda)
    return wanted and HAS_TRITON and type(impl) is str and not torch.compiler.is_compiling()


def kernels_wanted(impl: str, device: torch.device, interpreted: bool, name: str = "triton") -> bool:
    """Whether ``impl`` means the kernels of this name on a device, for a call that they can do."""
    if impl == "auto":
        return kernels_run_on(device.type, device.index)
    return impl == name and (device.type == "cuda" or interpreted)


def choose_linear(impl: str, like: Tensor, fused_limit: Callable[[], str | None] | None = None) -> str:
    """The implementation of Linear-InfSA for a call; ``fused_limit`` says why ``fused`` cannot do it."""

    def cannot(name: str) -> str | None:
        if name != "fused":
            return _no_derivatives(name)
        if fused_limit is None:
            return "takes tokens before their projection: use infsa.ops.projected_values"
        return fused_limit() or _no_derivatives(name)

    return _choose("linear", impl, cannot, lambda name: _avoided(name, like))


def fused_limit(
    x: Tensor, projections: Sequence[Tensor | None], heads: int, gamma: float | Tensor, rounds: dict[str, Any]
) -> str | None:
    """Why ``fused`` cannot do a call on tokens x (B, N, D) with weights and biases; None if it can."""
    if rounds:
        name, value = next(iter(rounds.items()))
        return f"takes {name}={1 if isinstance(value, int) else None}, got {value!r}"
    tensors = (x, *projections)
    kinds = tuple([None if y is None else (type(y), y.dtype, y.device, y.shape) for y in tensors])
    fits = misfit.__wrapped__ if torch.compiler.is_compiling() else misfit  # the compiler needs no cache
    reason = fits(kinds, torch.is_autocast_enabled(x.device.type), heads)
    if reason is not None:
        return reason
    if isinstance(gamma, Tensor) and (type(gamma) not in PLAIN or gamma.device != x.device):
        return f"takes gamma as a plain tensor on {x.device}, got {type(gamma).__name__} on {gamma.device}"
    widths = (projections[0].shape[0] // heads, projections[4].shape[0] // heads)  # type: ignore[union-attr]
    return _kernel_limit(x, compute_dtype(x), *widths)


@functools.lru_cache(512)
def misfit(kinds: tuple[Any, ...], cast: bool, heads: int) -> str | None:
    """Why tokens and projections of these types, dtypes, devices and shapes do not fit each other for ``fused``."""
    x, query, value = kinds[0], kinds[1], kinds[5]
    batch, _, dim = x[3]
    if not batch:
        return "takes at least one image, got none"
    rows, columns = query[3][0], value[3][0]
    if rows % heads or columns % heads:
        return f"takes projections whose rows num_heads={heads} divides, got {rows} and {columns}"
    shapes = ((rows, dim), (rows,), (rows, dim), (rows,), (columns, dim), (columns,))
    for kind, shape in zip(kinds[1:], shapes, strict=True):
        if kind is not None and kind[1:] != (query[1], x[2], shape):
            return f"takes projections of one dtype that fit the tokens, got {tuple(kind[3])} {kind[1]} on {kind[2]}"
    if not cast and x[1] != query[1]:
        return f"takes tokens and projections of one dtype, got {x[1]} and {query[1]}"
    other = next((kind[0].__name__ for kind in kinds if kind is not None and kind[0] not in PLAIN), None)
    return None if other is None else f"takes plain tensors, got {other}"


def plain_layers(*modules: nn.Module) -> bool:
    """Whether the weights of linear layers say all that calling them does: no subclass, adapter, hook or patch."""
    return all(type(module) is nn.Linear for module in modules) and untouched(*modules)


def untouched(*modules: nn.Module) -> bool:
    """Whether calling modules does no more than their classes say: there are no hooks, no ``forward`` was replaced."""
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return False
        if "forward" in module.__dict__:
            return False
    return not _has_any_global_hook()


def sums_pay(x: Tensor, weight: Tensor) -> bool:
    """Whether products of x (..., D) with a weight are better written as sums: few rows, compiled, no gradients."""
    plain = type(weight) in PLAIN and x.dtype == weight.dtype and not torch.is_grad_enabled()
    compiled = x.is_cuda and torch.compiler.is_compiling() and not exporting()
    few = compiled and surely(x.numel() <= FEW_ROWS * x.shape[-1])
    return plain and few and not torch.is_autocast_enabled(x.device.type)


def few_rows_kernel_runs(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel for few rows takes x (..., D) times a weight (E, D) plus a bias: eager, without gradients."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if not (kernels_run_on(x.device.type, x.device.index) or (INTERPRETED and x.device.type == "cpu")):
        return False
    if exporting() or transformed() or is_in_torch_dispatch_mode() or torch.is_autocast_enabled(x.device.type):
        return False
    if not 0 < x.numel() <= FEW_ROWS * x.shape[-1]:
        return False
    given = [y for y in (x, weight, bias) if y is not None]
    if any(type(y) not in PLAIN or y.dtype != x.dtype or y.device != x.device or not y.is_contiguous() for y in given):
        return False
    fit = weight.shape[1:] == x.shape[-1:] and (bias is None or bias.shape == weight.shape[:1])
    return fit and x.dtype in KERNEL_DTYPES and not torch._C._functorch.is_legacy_batchedtensor(x)


def _choose(operator: str, impl: str, cannot: Reason, avoided: Reason) -> str:
    """The implementation for ``impl``: why one cannot do the call, and why "auto" leaves one out that could."""
    check_impl(impl, operator)
    names = IMPLEMENTATIONS[operator]
    if impl == "auto":
        chosen = next(name for name in names if cannot(name) is None and avoided(name) is None)
    else:
        reason = cannot(impl)
        if reason is not None:
            raise ValueError(f"impl={str(impl)!r} {reason}")
        chosen = str(impl)
    if isinstance(impl, _Question):
        others = [name for name in names if name != chosen]
        rejected = {name: cannot(name) or avoided(name) or f"{chosen} comes first" for name in others}
        if impl != "auto":
            rejected = dict.fromkeys(others, f"impl={chosen!r} was asked for")
        how = "the first that supports the call" if impl == "auto" else "requested"
        raise _Answer(Dispatch(operator, chosen, how, rejected))
    return chosen


def _kernel_limit(like: Tensor, dtype: torch.dtype, *widths: int) -> str | None:
    """Why no kernel takes heads of these widths on this device."""
    if not (like.device.type == "cuda" or INTERPRETED):
        return f"needs tensors on a CUDA device, got {like.device}"
    if dtype not in KERNEL_DTYPES:
        return f"takes float16, bfloat16 or float32, got {dtype}"
    if max(widths) > LARGEST_WIDTH:
        return f"takes head widths up to {LARGEST_WIDTH}, got {max(widths)}"
    return None


def _no_derivatives(name: str) -> str | None:
    if name != "reference" and transformed():
        return "knows no forward-mode or torch.func derivatives; impl='reference' does"
    return None


def _avoided(name: str, like: Tensor) -> str | None:
    """Why "auto" leaves out an implementation that could do the call."""
    if name == "reference":
        return None
    if exporting():
        return "an exported program holds plain operations"
    if name not in KERNELS:
        return None
    if not HAS_TRITON:
        return "needs Triton, which is not installed"
    if not kernels_run_on(like.device.type, like.device.index):
        return "needs a GPU of compute capability 8.0 or newer"
    if name == "fused" and not torch.compiler.is_compiling() and is_in_torch_dispatch_mode():
        return "a TorchDispatchMode sees plain operations only"
    return None


@constant
def kernels_run_on(kind: str, index: int | None) -> bool:
    """Whether a device runs the kernels; the compiler takes the answer as it is when it traces."""
    return HAS_TRITON and kind == "cuda" and _new_enough(torch.cuda.current_device() if index is None else index)


@functools.cache
def _new_enough(index: int) -> bool:
    return torch.cuda.get_device_properties(index).major >= 8
