"""The sums of a layer by the kernels of fused Linear-InfSA, for tokens that come some at a time.

Between the two passes the caller adds the sums of all tokens and makes the central query of them. Float16 is left to
plain operations: the kernels keep it in range by a unit that only all tokens together know.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import Projection
from ..dispatch import choose_linear, fused_limit
from ..dtypes import FEW_TOKENS, compute_dtype
from ..triton.layout import on_device

Sums = tuple[Tensor, Tensor, Tensor]  # Σ|w| (B, H, 1), Σ w (B, H, 1), Σ w u (B, H, 1, width)


class Weights(NamedTuple):
    """The projections of a layer, and how it scores."""

    heads: int
    query: Projection
    key: Projection | None  # None: the queries are the keys
    value: Projection
    activation: str
    impl: str


class Aim(NamedTuple):
    """A central query as tokens meet it."""

    u: Tensor  # W_Kᵀ q̄ (B, H, D), in the type of the tokens
    numbers: Tensor  # (5, B, H): q̄ · b_K in the second row, ones elsewhere


def kernels_do(x: Tensor, weights: Weights) -> bool:
    """Whether the kernels take tokens x (B, n, D): without gradients, and if the layer would run them."""
    if torch.is_grad_enabled() or x.shape[1] <= FEW_TOKENS or compute_dtype(x) == torch.float16:
        return False
    projections = (*weights.query, *(weights.key or (None, None)), *weights.value)

    def limit() -> str | None:
        return fused_limit(x, projections, weights.heads, 1.0, {})

    chosen = choose_linear("auto", x, limit) if weights.impl == "auto" else weights.impl
    return chosen == "fused" and limit() is None


def energy_sums(x: Tensor, weights: Weights) -> Sums:
    """Σ e twice and Σ e q of tokens x (B, n, D); the spans of the kernel are added in float64."""
    plan, x, query = _planned(x, weights)
    with on_device(x), torch.autocast(x.device.type, enabled=False):
        totals, vectors = plan.energies(torch.nn.functional.linear(x, *query), x)
        total = totals.sum(1, dtype=torch.float64).unsqueeze(-1)
        return total, total, vectors.sum(1, dtype=torch.float64).unsqueeze(2)


def aim_of(central: Tensor, weights: Weights, like: Tensor) -> Aim:
    """A central query (B, H, 1, d) for tokens like some; asked for once per pass."""
    weight, bias = weights.key or weights.query
    row = central.squeeze(2).to(torch.float32)  # (B, H, d)
    u = row.transpose(0, 1) @ weight.to(torch.float32).unflatten(0, (weights.heads, -1))  # (H, B, D)
    numbers = row.new_ones(5, *row.shape[:2])
    numbers[1] = 0 if bias is None else (row * bias.to(torch.float32).view(weights.heads, -1)).sum(-1)
    return Aim(u.transpose(0, 1).to(compute_dtype(like)).contiguous(), numbers)


def score_sums(x: Tensor, weights: Weights, aim: Aim) -> Sums:
    """Σ|S|, Σ S and Σ S x of tokens x (B, n, D)."""
    plan, x, _ = _planned(x, weights)
    with on_device(x), torch.autocast(x.device.type, enabled=False):
        _, _, sums, pooled = plan.scores(x, aim.u, aim.numbers, x)
        found = sums.sum(2, dtype=torch.float64).unsqueeze(-1)  # Σ S, and Σ|S| where that is another number
        return found[-1], found[0], pooled.unsqueeze(2)


def _planned(x: Tensor, weights: Weights) -> tuple[Any, Tensor, Projection]:
    """The launches, and tokens and queries as they want them."""
    from . import fused

    x = x.to(compute_dtype(x))
    tensors = (x, *weights.query, *(weights.key or (None, None)), *weights.value, None)
    plan = fused.plan_for(tensors, None, weights.heads, weights.activation, 0.0, 1.0)
    x, query, *_ = fused.prepared(plan, tensors)
    return plan, x, query
