"""The token graph itself: how it is built, its spectral radius, and whether its path series converges."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from . import krylov, perron
from .errors import ConvergenceError, DivergenceError
from .inputs import as_adjacency, check_choice, check_gamma, check_query_key
from .operator import DenseOperator, GraphOperator, QueryKeyOperator, dense_weights

SIDES = ("right", "left")


class TokenGraph:
    """A weighted graph of N tokens with a decay γ; see `AttentionGraph`, which adds all measures.

    Attributes:
        gamma: the decay γ.
        residuals: relative residual of every solved or iterated result so far, by measure; an answer is
            never better than this number says.
    """

    gamma: float
    residuals: dict[str, float]
    _operator: GraphOperator
    _max_dense: int
    _perron: dict[str, tuple[float, Tensor]]

    def __init__(self, A: Any, gamma: float = 0.7) -> None:
        self._build(DenseOperator(as_adjacency(A)), gamma)

    def _build(self, operator: GraphOperator, gamma: float, max_dense: int = 0) -> None:
        self.gamma = check_gamma(gamma)
        self.residuals = {}
        self._operator = operator
        self._max_dense = max_dense
        self._perron = {}

    @classmethod
    def from_qk(
        cls,
        q: Tensor,
        k: Tensor,
        gamma: float = 0.7,
        *,
        activation: str = "relu",
        eps: float = 1e-6,
        max_dense: int = 2048,
    ) -> Self:
        """The graph Â = φ(q kᵀ/√d) / (F + ε) of one head, from queries and keys (N, d).

        Up to `max_dense` tokens Â is stored in float64. Beyond, it is only ever applied to vectors, by
        `infsa.pure_attention`: in float64 for float64 q, otherwise in float32, with memory linear in N.
        """
        check_query_key(q, k, activation, eps, max_dense)
        graph = cls.__new__(cls)
        if q.shape[0] <= max_dense:
            graph._build(DenseOperator(dense_weights(q, k, activation, eps)), gamma)
        else:
            graph._build(QueryKeyOperator(q, k, activation, eps), gamma, max_dense)
        return graph

    @property
    def size(self) -> int:
        """Number of tokens N."""
        return len(self._operator.ones)

    @property
    def is_dense(self) -> bool:
        """Whether Â is stored, rather than applied from queries and keys."""
        return isinstance(self._operator, DenseOperator)

    def __repr__(self) -> str:
        kind = "dense" if self.is_dense else "matrix-free"
        return f"{type(self).__name__}(tokens={self.size}, gamma={self.gamma:g}, {kind})"

    def spectral_radius(self) -> float:
        """ρ(A), the largest modulus of an eigenvalue; 0 if and only if the graph has no cycle."""
        rho, _ = self._perron_pair("right")
        self.residuals["spectral_radius"] = self.residuals["eigenvector_right"]
        return rho

    def spectral_ratio(self) -> float:
        """|λ₂| / |λ₁|: how much of a second direction survives each hop; 1 for a periodic graph, 0 if N = 1."""
        rho = self.spectral_radius()
        self._need_cycle(rho)
        if self.size == 1:
            return 0.0
        if isinstance(self._operator, DenseOperator):  # all eigenvalues at once: no residual to record
            return min(float(perron.eigenvalue_moduli(self._operator.matrix)[1]) / rho, 1.0)
        # a second, arbitrary start vector: the all-ones one may see nothing of λ₂ (a regular graph)
        noise = torch.rand(self.size, generator=torch.Generator().manual_seed(0))
        start = torch.stack([self._operator.ones, noise.to(self._operator.ones)], dim=1)
        ritz = krylov.arnoldi(self._operator.right, start, count=2)
        self.residuals["spectral_ratio"] = ritz.residual
        first, second = ritz.values.abs().tolist()
        return second / first

    def eigenvector(self, side: str = "left") -> Tensor:
        """Perron vector v (N,): v >= 0, Σv = 1, Aᵀ v = ρ v (`"left"`: attended to) or A v = ρ v (`"right"`).

        `"symmetric"` is the eigenvector centrality of A + Aᵀ, for which links count in both directions. It exists
        for every graph with an edge; tokens outside the strongest component score 0.

        Example:
            >>> AttentionGraph([[0.0, 1.0], [0.0, 0.0]]).eigenvector("symmetric")
            tensor([0.5000, 0.5000], dtype=torch.float64)

        On a reducible graph it is one such vector; a graph without a cycle has none. Matrix-free, ρ keeps
        only half its digits in the rare case of equally strong components that lead to one another.
        """
        check_choice("side", side, (*SIDES, "symmetric"))
        rho, vector = self._perron_pair(side)
        if side == "symmetric" and rho == 0:
            raise ValueError(f"no eigenvector of A + Aᵀ: the graph of {self.size} tokens has no edge")
        self._need_cycle(rho)
        return vector.clone()

    def _need_cycle(self, rho: float) -> None:
        if rho == 0:
            raise ValueError(f"no Perron vector: rho(A) = 0, the graph of {self.size} tokens has no cycle")

    def _perron_pair(self, side: str) -> tuple[float, Tensor]:
        if side not in self._perron:
            rho, v = self._stored_perron(side) if self.is_dense else self._iterated_perron(side)
            product = self._product(side)
            self.residuals[f"eigenvector_{side}"] = krylov.relative(product(v) - rho * v, rho * v)
            self._perron[side] = rho, v
        return self._perron[side]

    def _stored_perron(self, side: str) -> tuple[float, Tensor]:
        assert isinstance(self._operator, DenseOperator)
        A = self._operator.matrix
        return perron.perron_vector({"right": A, "left": A.mT, "symmetric": A + A.mT}[side])

    def _product(self, side: str) -> Callable[[Tensor], Tensor]:
        """x to A x, Aᵀ x or (A + Aᵀ) x."""
        right, left = self._operator.right, self._operator.left
        return {"right": right, "left": left, "symmetric": lambda x: right(x) + left(x)}[side]

    def _iterated_perron(self, side: str) -> tuple[float, Tensor]:
        product = self._product(side)
        ones = self._operator.ones
        if krylov.is_nilpotent(product, ones):
            return 0.0, torch.zeros_like(ones)
        ritz = krylov.arnoldi(product, ones[:, None])
        v = ritz.vector / ritz.vector.sum()
        mixed = krylov.relative(v.clamp_max(0), v)
        if mixed > 100 * krylov.tolerance(ones.dtype):
            raise ConvergenceError(f"Arnoldi: the leading vector has mixed signs, by {mixed:.1e} of its norm")
        v = v.clamp_min(0)
        return float(ritz.values[0].real), v / v.sum()

    def _need_convergence(self) -> None:
        """Refuse unless γ ρ(A) < 1; a norm of A settles most graphs without an eigenvalue."""
        if self.gamma * self._operator.radius_bound < 1:
            return
        rho = self.spectral_radius()
        if self.gamma * rho >= 1 - krylov.tolerance(self._operator.ones.dtype):
            raise DivergenceError(
                f"the series of gamma*A diverges: gamma = {self.gamma:g}, rho(A) = {rho:g}, "
                f"gamma*rho = {self.gamma * rho:g}; need gamma < {1 / rho:g}"
            )

    def _matrix(self, method: str, instead: str) -> Tensor:
        """The stored matrix, or one line on what to call instead."""
        if isinstance(self._operator, DenseOperator):
            return self._operator.matrix
        raise ValueError(
            f"{method} needs an N×N matrix, N = {self.size} > max_dense = {self._max_dense}; use {instead}"
        )

    def _solve(self, name: str, b: Tensor, *, side: str = "right", scale: float = 1.0) -> Tensor:
        """Solve (I − γsA) x = b, or with Aᵀ for the left side, b (N,) or, if dense, (N, N).

        A `scale` s other than 1 is one over the largest row sum, so that the series surely converges.
        """
        if scale == 1:
            self._need_convergence()
        gamma = self.gamma * scale
        product = self._operator.right if side == "right" else self._operator.left
        if isinstance(self._operator, DenseOperator):
            A = self._operator.matrix if side == "right" else self._operator.matrix.mT
            x = torch.linalg.solve(torch.eye(self.size, dtype=A.dtype, device=A.device) - gamma * A, b)
            self.residuals[name] = krylov.relative(b + gamma * (A @ x) - x, x)
        else:
            x, self.residuals[name] = krylov.richardson(lambda x: gamma * product(x), b)
        return x
