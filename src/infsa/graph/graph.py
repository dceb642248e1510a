"""The public token graph: paths, absorbing chain and centralities in one class; Inf-FS and a small example."""

from typing import Any

import torch
from torch import Tensor

from . import krylov
from .base import TokenGraph
from .errors import SubstochasticError
from .inputs import as_adjacency, check_choice
from .krylov import tolerance
from .operator import DenseOperator
from .perron import perron_root

TOKENRANK_ALPHA = 0.99
FIVE_TOKEN_SCORES = (
    # to token 0, 1, 2, 3, 4
    (0, 0, 0, 2, 1),
    (3, 0, 0, 1, 0),
    (4, 0, 0, 0, 0),
    (2, 0, 0, 0, 5),
    (0, 0, 0, 2, 1),
)


class AttentionGraph(TokenGraph):
    """Attention read as a weighted graph: A_ij is how much token i attends to token j, γ the decay per hop.

    `AttentionGraph(A, gamma)` takes any square, finite, non-negative matrix (N, N), as a tensor or
    array-like, and computes in float64 on its device. `AttentionGraph.from_qk(q, k, gamma)` builds Â from one
    head's queries and keys (N, d), and beyond `max_dense` tokens never stores it. Results carry no gradient.

    * paths: `path_matrix`, `path_scores`, `neumann`, `neumann_scores`
    * absorbing chain: `transition`, `absorption`, `canonical_form`, `fundamental_matrix`, `absorption_times`
    * centralities: `degree`, `katz_in`, `katz_out`, `eigenvector`, `pagerank`, `tokenrank`, `centralities`
    * spectrum: `spectral_radius`, `spectral_ratio`

    γ may be 1 or more as long as γ ρ(A) < 1; whatever needs the path series refuses otherwise with a
    `DivergenceError`. An iteration that does not converge raises `ConvergenceError`.

    The absorbing chain moves by M = γA and stops with probability 1 − Σ_j M_ij. "In" scores say how much a token is
    attended to, "out" scores how much it attends.

    Attributes:
        gamma: the decay γ.
        residuals: relative residual of each result solved for so far, by method name (the eigenvectors as
            `"eigenvector_right"` and `"eigenvector_left"`): ‖b + γAx − x‖ / ‖x‖ for linear systems,
            ‖Av − ρv‖ / ‖ρv‖ for eigenvectors.

    Example:
        >>> graph = AttentionGraph([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], gamma=0.5)
        >>> graph.katz_in()  # the chain 0 -> 1 -> 2: what token 2 receives comes over two hops
        tensor([1.0000, 1.5000, 1.7500], dtype=torch.float64)
        >>> graph.residuals["katz_in"]
        0.0
    """

    # Paths and the absorbing chain

    def path_matrix(self, t: int) -> Tensor:
        """A^t (N, N): total weight of the walks of `t` steps between each pair of tokens."""
        _check_length(t)
        return torch.linalg.matrix_power(self._matrix("path_matrix", "path_scores"), t)

    def path_scores(self, t: int) -> Tensor:
        """c_t = A^t 1 (N,): total weight of the walks of `t` steps that start at each token."""
        _check_length(t)
        scores = self._operator.ones.clone()
        for _ in range(t):
            scores = self._operator.right(scores)
        return scores

    def neumann(self) -> Tensor:
        """Č = Σ_{t≥1} (γA)^t = (I − γA)^{-1} − I, (N, N), from one solve against γA."""
        A = self._matrix("neumann", "neumann_scores")
        return self._solve("neumann", self.gamma * A)

    def neumann_scores(self) -> Tensor:
        """č = Č 1 (N,): decayed weight of all walks that start at each token."""
        return self._solve("neumann_scores", self.gamma * self.path_scores(1))

    def transition(self, rescale: bool = False) -> Tensor:
        """M = γA (N, N): the chance of each move, unchecked; with `rescale` that of `canonical_form(rescale=True)`."""
        A = self._matrix("transition", "absorption and degree")
        return self.gamma * self._row_scale(A.sum(dim=1), rescale) * A

    def absorption(self, rescale: bool = False) -> Tensor:
        """R = 1 − M1 (N,): the chance that a walk ends at each token rather than moves on.

        A Frobenius-normalised Â can have row sums up to √N, and then R_i < 0: this is refused. With
        `rescale`, when γσ > 1 for the largest row sum σ, M = γA/σ instead, so that every R_i >= 1 − γ.
        """
        sums = self.path_scores(1)
        ending = 1 - self.gamma * self._row_scale(sums, rescale) * sums
        worst = int(ending.argmin())
        if float(ending[worst]) <= -tolerance(ending.dtype):
            raise SubstochasticError(
                f"token {worst} has absorption probability {float(ending[worst]):g} "
                f"(gamma times row sum is {self.gamma * float(sums[worst]):g}); pass rescale=True"
            )
        return ending.clamp_min(0)

    def canonical_form(self, rescale: bool = False) -> Tensor:
        """P = [[M, R], [0, 1]] (N+1, N+1): the chain with its absorbing state last; every row sums to 1.

        Refuses a negative R_i and takes `rescale` as `absorption` does.
        """
        A = self._matrix("canonical_form", "absorption")
        n = self.size
        P = A.new_zeros(n + 1, n + 1)
        P[:n, n] = self.absorption(rescale)
        P[:n, :n] = self.transition(rescale)
        P[n, n] = 1
        return P

    def fundamental_matrix(self, rescale: bool = False) -> Tensor:
        """N = (I − M)^{-1} (N, N): expected visits to token j of a walk from token i, start included.

        With `rescale` the chain is that of `canonical_form(rescale=True)`; without, N = Č + I.

        Example:
            >>> graph = AttentionGraph([[0.0, 2.0], [0.0, 0.0]], gamma=0.5)
            >>> graph.fundamental_matrix(rescale=True)[0, 1]
            tensor(1., dtype=torch.float64)
        """
        A = self._matrix("fundamental_matrix", "absorption_times, katz_in or katz_out")
        ones = torch.eye(self.size, dtype=A.dtype, device=A.device)
        return self._solve("fundamental_matrix", ones, scale=self._row_scale(A.sum(dim=1), rescale))

    def absorption_times(self, rescale: bool = False) -> Tensor:
        """N 1 (N,): expected tokens visited by a walk from each token before it is absorbed.

        The number is a time only where `absorption` accepts the graph, or with `rescale`, as in
        `fundamental_matrix`; elsewhere it is still a path sum.
        """
        scale = self._row_scale(self.path_scores(1), rescale)
        return self._solve("absorption_times", self._operator.ones, scale=scale)

    def _row_scale(self, sums: Tensor, rescale: bool) -> float:
        """What to multiply γA by: 1, or 1/σ when `rescale` is asked for and γσ > 1."""
        largest = float(sums.max())
        if not rescale or self.gamma * largest <= 1 + tolerance(sums.dtype):
            return 1.0
        if self.gamma >= 1:
            raise SubstochasticError(
                f"rescale=True needs gamma < 1, got gamma = {self.gamma:g} with a row sum of {largest:g}"
            )
        return 1 / largest

    # Centralities, (N,) each

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


def _check_length(t: int) -> None:
    if isinstance(t, bool) or not isinstance(t, int) or t < 0:
        raise ValueError(f"t must be an integer of at least 0, got {t!r}")


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


def five_token_graph() -> AttentionGraph:
    """Five tokens on which one hop and all hops disagree about the most important one; γ = 0.7.

    Tokens 1, 2 and 3 attend to token 0, which therefore leads at one hop. Token 0 attends to 3 and 3 to 4:
    at two hops, and over all walks, token 4 leads. The paper draws such a graph
    without its weights; these scores, divided by their Frobenius norm √65, are our own.

    Example:
        >>> graph = five_token_graph()
        >>> int(graph.degree("in").argmax()), int(graph.katz_in().argmax())
        (0, 4)
    """
    scores = torch.tensor(FIVE_TOKEN_SCORES, dtype=torch.float64)
    return AttentionGraph(scores / torch.linalg.matrix_norm(scores), gamma=0.7)
