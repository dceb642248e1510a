"""The options of Linear-InfSA that travel together."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..checks import check_activation, check_count, check_eps

Causal = Literal["chunk"] | None


@dataclass(frozen=True)
class Scoring:
    """How tokens are scored; the arguments of :func:`linear_attention` with these names."""

    activation: str = "relu"
    iterations: int = 1
    queries: int = 1
    causal: Causal = None
    chunk_size: int | None = None
    eps: float = 1e-6

    def check(self, q: Tensor, k: Tensor) -> None:
        """Refuse what does not exist, or does not fit q and k."""
        check_activation(self.activation)
        check_eps(self.eps)
        check_count(self.iterations, "iterations")
        check_count(self.queries, "queries")
        queries, keys = q.shape[2], k.shape[2]
        if self.iterations > 1 and queries != keys:
            raise ValueError(f"iterations={self.iterations!r} needs as many queries as keys, got {queries} and {keys}")
        if self.causal is None:
            if self.chunk_size is not None:
                raise ValueError(f"chunk_size={self.chunk_size!r} needs causal='chunk'")
            return
        if self.causal != "chunk":
            raise ValueError(f"causal must be None or 'chunk' (exact causality is not O(N)), got {self.causal!r}")
        if self.chunk_size is None:
            raise ValueError("causal='chunk' needs a chunk_size, got None")
        check_count(self.chunk_size, "chunk_size")
        if self.queries != 1 or self.iterations != 1:
            got = f"{self.queries!r} and {self.iterations!r}"
            raise ValueError(f"causal='chunk' needs queries=1 and iterations=1, got {got}")
        if queries != keys:
            raise ValueError(f"causal needs as many queries as keys, got {queries} and {keys}")

    @property
    def rounds(self) -> dict[str, Any]:
        """The options that ask for more than the paper's layer, by name; empty for that."""
        asked = {"iterations": self.iterations, "queries": self.queries, "causal": self.causal}
        return {name: value for name, value in asked.items() if value not in (1, None)}
