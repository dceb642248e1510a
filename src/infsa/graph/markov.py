"""Paths on a token graph and the absorbing chain they form."""

import torch
from torch import Tensor

from .base import TokenGraph
from .errors import SubstochasticError
from .krylov import tolerance


class AbsorbingChain(TokenGraph):
    """Path sums A^t and Σ(γA)^t, and the chain that moves by M = γA and stops with probability 1 − Σ_j M_ij."""

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

    def transition(self) -> Tensor:
        """M = γA (N, N): the chance of each move, before anything is checked or rescaled."""
        return self.gamma * self._matrix("transition", "absorption and degree")

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
        P[:n, :n] = self.gamma * self._row_scale(A.sum(dim=1), rescale) * A
        P[n, n] = 1
        return P

    def fundamental_matrix(self) -> Tensor:
        """N = (I − M)^{-1} = Č + I (N, N): expected visits to token j of a walk from token i, start included."""
        A = self._matrix("fundamental_matrix", "absorption_times, katz_in or katz_out")
        return self._solve("fundamental_matrix", torch.eye(self.size, dtype=A.dtype, device=A.device))

    def absorption_times(self) -> Tensor:
        """N 1 (N,): expected tokens visited by a walk from each token before it is absorbed.

        The number is a time only where `absorption` accepts the graph; elsewhere it is still a path sum.
        """
        return self._solve("absorption_times", self._operator.ones)

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


def _check_length(t: int) -> None:
    if isinstance(t, bool) or not isinstance(t, int) or t < 0:
        raise ValueError(f"t must be an integer of at least 0, got {t!r}")
