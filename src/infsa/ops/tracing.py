"""What torch does with the code that runs: exporting, transforming, compiling with dynamic sizes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compiler.assume_constant_result``, which would import the whole compiler to set this one mark."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant
def exporting() -> bool:
    """Whether a program is being exported; torch 2.11 says so in all compiled code, unless asked like this."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


@constant
def _functions_transformed() -> bool:
    return torch._C._are_functorch_transforms_active()


def transformed() -> bool:
    """Whether forward-mode derivatives or ``torch.func`` are at work, in compiled code too."""
    return forward_ad._current_level >= 0 or _functions_transformed()


def followed(grad: Tensor) -> bool:
    """Whether torch must be able to follow a backward pass: to differentiate it again, compile, transform or batch it.

    ``torch.autograd.grad(..., is_grads_batched=True)`` passes one tensor that stands for many.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
        return True
    return type(grad) is not Tensor or torch._C._functorch.is_legacy_batchedtensor(grad)


def surely(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds for certain; asking leaves dynamic sizes dynamic."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loaded with the compiler; brings sympy

    return statically_known_true(condition)
