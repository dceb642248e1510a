"""Which dtype is used where: inputs as autocast wants them, sums over tokens in float32 or better."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FEW_TOKENS = 16  # so few that the terms of a gradient nearly cancel: kernels compute half precision in float32


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type sums over tokens are kept in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that products with x are computed in: autocast's where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def as_autocast(*tensors: Any) -> tuple[Any, ...]:
    """The inputs of an operator as autocast wants them: as for torch's attention, all but float64 in its type."""
    first = tensors[0]
    if not isinstance(first, Tensor) or first.device.type == "meta" or not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    cast: list[Any] = []
    for place, x in enumerate(tensors):
        same = [cast[other] for other in range(place) if tensors[other] is x]  # one tensor given twice stays one
        lower = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        cast.append(same[0] if same else x.to(dtype) if lower else x)
    return tuple(cast)


def cast_output(output: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a result to the input's type; float16 saturates at its largest value instead of overflowing."""
    if dtype == torch.float16:
        largest = torch.finfo(torch.float16).max
        output = output.clamp(-largest, largest)
    return output.to(dtype)


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, the first of which says on which device autocast is off inside."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        with torch.autocast(args[0].device.type, enabled=False):
            return function(*args)

    return wrapper
