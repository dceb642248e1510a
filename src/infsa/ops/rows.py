"""Linear layers for a handful of rows, such as what all tokens of an image share."""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from .checks import accumulation_dtype, exporting, surely

FEW = 4  # rows; a matrix product of so few keeps most of a GPU waiting, a sum reads the weight at full speed


def by_sums(x: Tensor, weight: Tensor) -> bool:
    """Whether products of x (..., D) with a weight are better written as sums: few rows, compiled, without
    gradients.
    """
    plain = type(weight) in (Tensor, nn.Parameter) and x.dtype == weight.dtype and not torch.is_grad_enabled()
    compiled = x.is_cuda and torch.compiler.is_compiling() and not exporting()
    few = compiled and surely(x.numel() <= FEW * x.shape[-1])
    return plain and few and not torch.is_autocast_enabled(x.device.type)


def untouched(*modules: nn.Module) -> bool:
    """Whether calling modules does no more than their classes say: nobody listens, no ``forward`` was replaced."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    touched = any("forward" in vars(module) or any(getattr(module, name) for name in hooks) for module in modules)
    return not (touched or _has_any_global_hook())


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """``layer(x)``; compiled, one kernel for few rows and a plain layer that nobody listens to."""
    if type(layer) is nn.Linear and by_sums(x, layer.weight) and untouched(layer):
        return linear_by_sums(x, layer.weight, layer.bias)
    return layer(x)


def linear_by_sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, summed in the accumulation dtype: (..., D) -> (..., E); the weight may have leading dimensions
    like x.
    """
    dtype = accumulation_dtype(x.dtype)
    wide = (x.to(dtype).unsqueeze(-2) * weight.to(dtype)).sum(-1)
    return (wide if bias is None else wide + bias.to(dtype)).to(x.dtype)
