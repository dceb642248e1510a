"""The sums that tokens share in Linear-InfSA: a commutative monoid under ``merge``.

A layer makes two passes over the tokens, and both keep the same three sums of weights w and vectors u:

    Σ|w|, Σ w, Σ w u        first pass: w = ‖q_i‖, u = q_i        second pass: w = φ(q̄ · k_j), u = v_j or x_j

Any split of the tokens, in any order, on any number of machines, therefore gives the same layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..checks import check_activation, check_eps, check_token_mask, shape_of
from ..dtypes import accumulation_dtype


def energies(q: Tensor, mask: Tensor | None = None) -> Tensor:
    """e_i = ‖q_i‖₂, the weights of the first pass, zero where ``mask`` (B, N) is False.

    q (B, H, N, d) -> (B, H, N), in the accumulation dtype.
    """
    check_token_mask(mask, "mask", q.shape[0], q.shape[2], q.device)
    energy = torch.linalg.vector_norm(q, dim=-1, dtype=accumulation_dtype(q.dtype))
    return energy if mask is None else energy.masked_fill(~mask[:, None], 0)


def key_scores(central_query: Tensor, k: Tensor, mask: Tensor | None = None, activation: str = "relu") -> Tensor:
    """S_j = φ(q̄ · k_j), the weights of the second pass, zero where ``mask`` (B, N) is False.

    central_query (B, H, m, d), k (B, H, N, d) -> (B, H, m, N), in the accumulation dtype.
    """
    check_activation(activation)
    check_token_mask(mask, "mask", k.shape[0], k.shape[2], k.device)
    dtype = accumulation_dtype(k.dtype)
    scores = ACTIVATIONS[activation].value(central_query.to(dtype) @ k.to(dtype).mT)
    return scores if mask is None else scores.masked_fill(~mask[:, None, None], 0)


@dataclass(frozen=True)
class LinearState:
    """Σ|w|, Σ w and Σ w u of the tokens seen so far, for m groups of weights per head.

    ```python
    first = LinearState.zero(B, H, d)
    for q in tiles_of_q:                          # (B, H, n, d) each, any split, any order
        first = first.update(energies(q), q)
    central_query = first.finish()                # (B, H, 1, d)
    second = LinearState.zero(B, H, d)
    for k, v in tiles_of_k_and_v:
        second = second.update(key_scores(central_query, k), v)
    context = gamma * second.finish()             # (B, H, 1, d): linear_attention(q, k, v)
    ```
    """

    absolute: Tensor  # (B, H, m)
    signed: Tensor  # (B, H, m)
    vectors: Tensor  # (B, H, m, width)

    @classmethod
    def zero(
        cls,
        batch: int,
        heads: int,
        width: int,
        *,
        groups: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> "LinearState":
        """The state of no tokens; ``dtype`` is raised to the accumulation dtype."""
        dtype = accumulation_dtype(dtype)
        shape = (batch, heads, groups)
        return cls(*(torch.zeros(*shape, *more, dtype=dtype, device=device) for more in ((), (), (width,))))

    @classmethod
    def of(cls, weights: Tensor, values: Tensor) -> "LinearState":
        """The state of some tokens: weights (B, H, m, N), values (B, H or 1, N, width)."""
        batch, heads, groups = weights.shape[:3]
        options = {"dtype": values.dtype, "device": values.device}
        return cls.zero(batch, heads, values.shape[-1], groups=groups, **options).update(weights, values)  # type: ignore[arg-type]

    def update(self, weights: Tensor, values: Tensor) -> "LinearState":
        """Add tokens: weights (B, H, N) or (B, H, m, N), values (B, H, N, width) or (B, 1, N, width)."""
        if weights.dim() == 3:
            weights = weights.unsqueeze(-2)
        batch, heads, groups, width = self.vectors.shape
        tokens = weights.shape[-1]
        if shape_of(weights) != (batch, heads, groups, tokens) or shape_of(values) not in (
            (batch, heads, tokens, width),
            (batch, 1, tokens, width),
        ):
            raise ValueError(
                f"a state {shape_of(self.vectors)} (B, H, m, width) takes weights (B, H, m, N) and values "
                f"(B, H or 1, N, width), got {shape_of(weights)} and {shape_of(values)}"
            )
        weights, values = weights.to(self.vectors.dtype), values.to(self.vectors.dtype)
        if values.shape[1] == heads:
            sums = weights @ values
        else:  # shared by the heads: one product, no copies per head
            sums = (weights.flatten(1, 2) @ values.squeeze(1)).unflatten(1, (heads, groups))
        return LinearState(self.absolute + weights.abs().sum(-1), self.signed + weights.sum(-1), self.vectors + sums)

    def merge(self, other: "LinearState") -> "LinearState":
        """The state of both sets of tokens."""
        if self.vectors.shape != other.vectors.shape or self.vectors.dtype != other.vectors.dtype:
            raise ValueError(
                f"cannot merge states {shape_of(self.vectors)} {self.vectors.dtype} "
                f"and {shape_of(other.vectors)} {other.vectors.dtype}"
            )
        return LinearState(self.absolute + other.absolute, self.signed + other.signed, self.vectors + other.vectors)

    def finish(self, eps: float = 1e-6) -> Tensor:
        """The weighted mean Σ w u / (Σ|w| + ε): (B, H, m, width)."""
        check_eps(eps)
        return self.vectors / (self.absolute + eps).unsqueeze(-1)

    def mass(self, eps: float = 1e-6) -> Tensor:
        """The weights' sum Σ w / (Σ|w| + ε), slightly below 1 for non-negative weights: (B, H, m)."""
        return self.signed / (self.absolute + eps)
