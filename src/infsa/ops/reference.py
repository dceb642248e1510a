"""The equations as written, dense and differentiable by autograd: the oracle of the other implementations.

Memory is N² in the number of tokens. Export (``torch.export``, ONNX) uses this path because it is made of
plain tensor operations only.
"""

import math

import torch
from torch import Tensor

from .activation import ACTIVATIONS
from .checks import accumulation_dtype, exporting
from .masks import allowed_entries, forbids_future


def safe_sqrt(x: Tensor) -> Tensor:
    """√x with gradient zero, not infinity, at x = 0."""
    positive = x != 0
    return torch.where(positive, x, 1).sqrt() * positive


def frobenius_norm(edges: Tensor, prefix: bool | Tensor) -> Tensor:
    """‖R‖_F of each row's scope, (B, H, Nq, 1): the whole matrix, or where ``prefix`` holds its leading block."""
    row_squares = wide(edges).square().sum(-1)  # (B, H, Nq); float32 would overflow from |R| = 1e19
    whole = row_squares.sum(-1, keepdim=True).expand_as(row_squares)
    scope = torch.as_tensor(prefix, device=edges.device)
    return safe_sqrt(torch.where(scope, row_squares.cumsum(-1), whole)).unsqueeze(-1).to(edges.dtype)


def row_norm(edges: Tensor, allowed: Tensor) -> Tensor:
    """‖R_i‖ √n_i, n_i keys that row i may see: (B, H, Nq, 1)."""
    squares = wide(edges).square().sum(-1, keepdim=True)
    return safe_sqrt(squares * allowed.sum(-1, keepdim=True)).to(edges.dtype)


def pure_weights(
    q: Tensor,
    k: Tensor,
    *,
    activation: str,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    causal: str,
    norm: str,
    eps: float,
) -> tuple[Tensor, bool | Tensor]:
    """Â = R / (‖R‖_F + ε), R = φ(q kᵀ / √d), in the accumulation dtype, (B, H, Nq, Nk), and where it is causal.

    ``causal`` is "no", "yes" or "auto" (yes where the mask forbids the whole future).
    """
    dtype = accumulation_dtype(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        scores = q.to(dtype) @ k.to(dtype).mT / math.sqrt(q.shape[-1])
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        prefix: bool | Tensor = causal == "yes"
        if attn_mask is not None:
            allowed = allowed & allowed_entries(attn_mask)
            if attn_mask.is_floating_point():
                scores = scores + torch.where(allowed, attn_mask.to(dtype), 0)
            if causal == "auto":
                prefix = forbids_future(attn_mask, k.shape[2])
        if causal == "yes":
            allowed = allowed.tril()
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        if query_mask is not None:
            allowed = allowed & query_mask[:, None, :, None]
        edges = torch.where(allowed, ACTIVATIONS[activation].value(scores), 0)
        size = row_norm(edges, allowed) if norm == "row" else frobenius_norm(edges, prefix)
        some = size != 0  # no edges, no output, no gradient; NaN stays
        return edges * some / torch.where(some, size + eps, 1), prefix


def wide(x: Tensor) -> Tensor:
    """x in float64 where its squares or a solve need the range; exported programs keep their type."""
    return x if exporting() else x.double()


def _solve(step: Tensor, source: Tensor, prefix: bool | Tensor) -> Tensor:
    """Z = step Z + source; as a triangular system where step is causal."""
    system = torch.eye(step.shape[-1], dtype=step.dtype, device=step.device) - step
    if prefix is False:
        return torch.linalg.solve(system, source)
    causal = torch.linalg.solve_triangular(system.tril(), source, upper=False)
    if prefix is True:
        return causal
    return torch.where(torch.as_tensor(prefix).unsqueeze(-1), causal, torch.linalg.solve(system, source))


def pure_diffusion(weights: Tensor, v: Tensor, gamma: Tensor, hops: float, prefix: bool | Tensor) -> Tensor:
    """Σ_{t=1..hops} (γÂ)^t v for a dense Â; ``hops=inf`` solves (I − γÂ) Z = γÂ v.

    Where Â is causal the system is triangular, and solving it as such keeps the future out to the last bit.
    """
    with torch.autocast(v.device.type, enabled=False):
        step = gamma * weights
        v = v.to(step.dtype)
        z = step @ v
        if hops == math.inf:
            return _solve(wide(step), wide(step) @ wide(v), prefix).to(step.dtype)
        for _ in range(int(hops) - 1):
            z = step @ (v + z)
        return z


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


def linear_weights(
    q: Tensor, k: Tensor, *, activation: str, groups: Tensor | None, count: int, iterations: int, eps: float
) -> Tensor:
    """The centrality vectors a after ``iterations`` rounds of q̄ ← Σ a_j q_j: (B, H, m, N)."""
    with torch.autocast(q.device.type, enabled=False):
        weights = centrality(central_query(q, groups, count, eps), k, activation, eps)
        for _ in range(iterations - 1):
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
