"""Infinite Feature Selection: rank the nodes of an affinity graph by the weight of all paths through them."""

from typing import Any

import torch
from torch import Tensor

from .inputs import as_adjacency
from .perron import perron_root


def inf_fs(A: Any, c: float = 0.9) -> Tensor:
    """Scores (N,): row sums of (I − rA)^{-1} − I with r = c/ρ(A), for affinities `A` (N, N) >= 0.

    The scale of A does not matter, and 0 < c < 1 makes the series converge. Higher is more important.

    Example:
        >>> inf_fs([[0.0, 1.0], [1.0, 0.0]], c=0.5)
        tensor([1., 1.], dtype=torch.float64)
    """
    if not 0 < c < 1:
        raise ValueError(f"c must lie strictly between 0 and 1, got {c}")
    A = as_adjacency(A)
    rho = perron_root(A)
    if rho == 0:
        raise ValueError(f"A must have a cycle, got rho(A) = 0 for {len(A)} nodes: r = c/rho is not defined")
    steps = (c / rho) * A
    return torch.linalg.solve(torch.eye(len(A), dtype=A.dtype, device=A.device) - steps, steps.sum(dim=1))
