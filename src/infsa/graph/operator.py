"""The graph as a linear map: Â x and Âᵀ x, from a stored matrix or straight from queries and keys."""

import math

import torch
from torch import Tensor

from infsa.ops import pure_attention


class DenseOperator:
    """A stored matrix (N, N), in float64."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.ones = matrix.new_ones(matrix.shape[0])

    @property
    def radius_bound(self) -> float:
        """The smallest of three norms: rows, columns, Frobenius."""
        A = self.matrix
        return min(float(A.sum(1).max()), float(A.sum(0).max()), float(torch.linalg.matrix_norm(A)))

    def right(self, x: Tensor) -> Tensor:
        """Â x: (N,) to (N,)."""
        return self.matrix @ x

    def left(self, x: Tensor) -> Tensor:
        """Âᵀ x: (N,) to (N,)."""
        return self.matrix.mT @ x


class QueryKeyOperator:
    """Â of queries and keys (N, d), applied by Pure InfSA itself: memory grows with N, never N².

    Swapping q and k transposes the scores and keeps their Frobenius norm, hence `left`.
    """

    radius_bound = 1.0  # ρ(Â) <= ‖Â‖_F = F / (F + ε)

    def __init__(self, q: Tensor, k: Tensor, activation: str, eps: float) -> None:
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.q = q.detach().to(dtype)[None, None]  # (1, 1, N, d)
        self.k = k.detach().to(dtype)[None, None]
        self.activation = activation
        self.eps = eps
        self.ones = self.q.new_ones(q.shape[0])

    def right(self, x: Tensor) -> Tensor:
        """Â x: (N,) to (N,)."""
        return self._attend(self.q, self.k, x)

    def left(self, x: Tensor) -> Tensor:
        """Âᵀ x: (N,) to (N,)."""
        return self._attend(self.k, self.q, x)

    def _attend(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        one = q.new_ones(1)  # γ = 1: the decay is applied by whoever calls
        v = x[None, None, :, None]  # (1, 1, N, 1)
        out: Tensor = pure_attention(q, k, v, gamma=one, activation=self.activation, eps=self.eps)
        return out[0, 0, :, 0]


GraphOperator = DenseOperator | QueryKeyOperator  # `ones` (N,), `radius_bound` >= ρ(Â), `right` and `left`


def dense_weights(q: Tensor, k: Tensor, activation: str, eps: float) -> Tensor:
    """Â = φ(q kᵀ/√d) / (F + ε) of queries and keys (N, d), stored in float64."""
    scores = q.detach().double() @ k.detach().double().mT / math.sqrt(q.shape[1])
    weights = scores.relu() if activation == "relu" else scores.abs()
    norm = torch.linalg.matrix_norm(weights) + eps
    return weights / norm if float(norm) > 0 else weights
