"""Linear-InfSA as written, in plain tensor operations: the oracle of the others, and what is exported."""

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..dtypes import accumulation_dtype
from ..pure.reference import safe_sqrt
from .scoring import Scoring


def central_query(q: Tensor, groups: Tensor | None, count: int, eps: float) -> Tensor:
    """q̄ = Σ e_i q_i / (Σ e_i + ε), e_i = ‖q_i‖, over all tokens or per group: (B, H, count, d)."""
    q = q.to(accumulation_dtype(q.dtype))
    energy = safe_sqrt(q.square().sum(-1))  # (B, H, N)
    if groups is None:
        member = energy.new_ones(1, 1, 1, q.shape[2])
    else:
        names = torch.arange(count, device=q.device)
        member = (groups[:, None, None, :] == names[:, None]).to(q.dtype)  # (B or 1, 1, count, N)
    weights = member * energy.unsqueeze(-2)
    return weights @ q / (weights.sum(-1, keepdim=True) + eps)


def centrality(central: Tensor, k: Tensor, activation: str, eps: float) -> Tensor:
    """a_j = S_j / (Σ|S| + ε), S_j = φ(q̄ · k_j): (B, H, m, N)."""
    scores = ACTIVATIONS[activation].value(central @ k.to(central.dtype).mT)
    return scores / (scores.abs().sum(-1, keepdim=True) + eps)


def linear_weights(q: Tensor, k: Tensor, groups: Tensor | None, scoring: Scoring) -> Tensor:
    """The centrality vectors a after ``iterations`` rounds of q̄ ← Σ a_j q_j: (B, H, m, N)."""
    activation, eps = scoring.activation, scoring.eps
    with torch.autocast(q.device.type, enabled=False):
        weights = centrality(central_query(q, groups, scoring.queries, eps), k, activation, eps)
        for _ in range(scoring.iterations - 1):
            weights = centrality(weights @ q.to(weights.dtype), k, activation, eps)
        return weights


def energy_sums(q: Tensor) -> tuple[Tensor, Tensor]:
    """Σ e and Σ e q over the tokens, (..., N, d) -> (..., 1), (..., 1, d).

    Products and sums, not matrix products: those would tie an exported program to one number of chunks.
    """
    q = q.to(accumulation_dtype(q.dtype))
    energy = safe_sqrt(q.square().sum(-1, keepdim=True))
    return energy.sum(-2), (energy * q).sum(-2, keepdim=True)


def score_sums(central: Tensor, k: Tensor, v: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Σ|S|, ΣS and ΣSv, S_j = φ(q̄ · k_j), for one central query (..., 1, d): (..., 1), (..., 1), (..., 1, dv)."""
    k, v = k.to(central.dtype), v.to(central.dtype)
    scores = ACTIVATIONS[activation].value((central * k).sum(-1, keepdim=True))  # (..., N, 1)
    return scores.abs().sum(-2), scores.sum(-2), (scores * v).sum(-2, keepdim=True)
