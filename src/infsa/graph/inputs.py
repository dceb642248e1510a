"""Checks on what a user hands to the graph toolkit; every message is one line and names the value."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

ACTIVATIONS = ("relu", "abs")  # the activations that keep a graph non-negative


def as_adjacency(A: Any) -> Tensor:
    """Copy `A` (N, N), tensor or array-like, to float64 after checking that it is a weighted graph."""
    try:
        given = _as_tensor(A)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"A must be a square matrix of numbers, got {type(A).__name__}") from error
    if given.layout != torch.strided:
        raise TypeError(f"A must be a dense matrix, got layout {given.layout}")
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] == 0:
        raise ValueError(f"A must have shape (N, N) with N >= 1, got {tuple(given.shape)}")
    if given.is_complex():
        raise TypeError(f"A must be real, got {given.dtype}")
    matrix = given.detach().to(torch.float64, copy=True)
    _refuse_entries(~torch.isfinite(matrix), matrix, "A must be finite")
    _refuse_entries(matrix < 0, matrix, "A must be non-negative")
    return matrix


def _as_tensor(A: Any) -> Tensor:
    """A tensor as it is, an array in its own type, nested lists of Python numbers in float64, as numpy reads them."""
    if isinstance(A, Tensor):
        return A
    if hasattr(A, "__array__"):
        array = np.asarray(A)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))  # no negative strides
    try:
        return torch.as_tensor(A, dtype=torch.float64)
    except TypeError:
        return torch.as_tensor(A)  # complex numbers, to be refused by their type


def _refuse_entries(wrong: Tensor, matrix: Tensor, rule: str) -> None:
    if wrong.any():
        i, j = (int(index) for index in wrong.nonzero()[0])
        raise ValueError(f"{rule}, got A[{i}, {j}] = {float(matrix[i, j]):g}")


def check_gamma(gamma: float) -> float:
    """Return the decay as a float; it must be finite and above 0 (an upper limit depends on the graph)."""
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"gamma must be a float, got {type(gamma).__name__}")
    if not (math.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma must be finite and greater than 0, got {gamma}")
    return float(gamma)


def check_query_key(q: Tensor, k: Tensor, activation: str, eps: float, max_dense: int) -> None:
    """Refuse anything but two real (N, d) tensors of one shape and device and a non-negative activation."""
    for name, x in (("q", q), ("k", k)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != 2 or 0 in x.shape:
            raise ValueError(f"{name} must have shape (N, d) with N, d >= 1, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be of a floating type, got {x.dtype}")
        if not torch.isfinite(x).all():
            raise ValueError(f"{name} must be finite, got {float(x[~torch.isfinite(x)][0])}")
    if q.shape != k.shape:
        raise ValueError(f"q and k must have one shape, got {tuple(q.shape)} and {tuple(k.shape)}")
    if q.device != k.device:
        raise ValueError(f"q and k must be on one device, got {q.device} and {k.device}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {ACTIVATIONS}, never negative, got {activation!r}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and at least 0, got {eps}")
    if isinstance(max_dense, bool) or not isinstance(max_dense, int) or max_dense < 0:
        raise ValueError(f"max_dense must be an integer of at least 0, got {max_dense!r}")


def check_choice(name: str, value: str, accepted: tuple[str, ...]) -> None:
    """Refuse `value` unless it is one of `accepted`."""
    if value not in accepted:
        raise ValueError(f"{name} must be one of {accepted}, got {value!r}")
