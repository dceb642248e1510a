"""Token centralities: one number per token, from its neighbours or from all walks."""

import torch
from torch import Tensor

from . import krylov
from .base import TokenGraph
from .inputs import check_choice
from .operator import DenseOperator

TOKENRANK_ALPHA = 0.99


class Centralities(TokenGraph):
    """Degree, Katz, eigenvector, PageRank and TokenRank of every token, (N,) each.

    "In" scores say how much a token is attended to, "out" scores how much it attends.
    """

    def degree(self, side: str = "in") -> Tensor:
        """One-hop score (N,): column sums (`"in"`), row sums (`"out"`) or both added (`"total"`)."""
        check_choice("side", side, ("in", "out", "total"))
        ones = self._operator.ones
        if side == "total":
            return self._operator.left(ones) + self._operator.right(ones)
        return self._operator.left(ones) if side == "in" else self._operator.right(ones)

    def katz_in(self) -> Tensor:
        """Katz centrality (I − γAᵀ)^{-1} 1 (N,): decayed weight of all walks that end at each token."""
        return self._solve("katz_in", self._operator.ones, side="left")

    def katz_out(self) -> Tensor:
        """Katz centrality (I − γA)^{-1} 1 (N,): decayed weight of all walks that start at each token."""
        return self._solve("katz_out", self._operator.ones)

    def pagerank(self, alpha: float = 0.85) -> Tensor:
        """Stationary vector (N,), of sum 1, of αP + (1 − α)/N; P is A with rows of sum 1, zero rows uniform."""
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha}")
        return self._stationary("pagerank", alpha)

    def tokenrank(self) -> Tensor:
        """Stationary vector (N,) of 0.99 P + 0.01/N: PageRank with hardly any restart."""
        return self._stationary("tokenrank", TOKENRANK_ALPHA)

    def centralities(self) -> dict[str, Tensor]:
        """Every measure by name, (N,) each, for tables; `residuals` uses the same names.

        The two eigenvectors are NaN on a graph without a cycle, which has none.
        """
        scores = {f"degree_{side}": self.degree(side) for side in ("in", "out", "total")}
        scores |= {"katz_in": self.katz_in(), "katz_out": self.katz_out()}
        for side in ("right", "left"):
            rho, vector = self._perron_pair(side)
            scores[f"eigenvector_{side}"] = vector.clone() if rho > 0 else torch.full_like(vector, torch.nan)
        return scores | {"pagerank": self.pagerank(), "tokenrank": self.tokenrank()}

    def _stationary(self, name: str, alpha: float) -> Tensor:
        """Solve x = αPᵀx + (1 − α)/N; P is never formed, its zero rows give every token an equal part."""
        n, ones = self.size, self._operator.ones
        sums = self._operator.right(ones)
        empty = sums <= 0
        restart = ones * ((1 - alpha) / n)

        def move(x: Tensor) -> Tensor:  # (N,) to (N,)
            onward = self._operator.left(torch.where(empty, 0, x / sums))
            return alpha * (onward + x[empty].sum() / n)

        if isinstance(self._operator, DenseOperator):
            rows = torch.where(empty[:, None], 1 / n, self._operator.matrix / sums[:, None])
            x = torch.linalg.solve(torch.diag(ones) - alpha * rows.mT, restart)
            self.residuals[name] = krylov.relative(restart + move(x) - x, x)
        else:
            x, self.residuals[name] = krylov.richardson(move, restart, start=ones / n)
        return x / x.sum()
