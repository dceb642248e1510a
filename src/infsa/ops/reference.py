"""The equations as written, dense and differentiable by autograd: the oracle of the other implementations.

Memory is N² in the number of tokens. Export (``torch.export``, ONNX) uses this path because it is made of
plain tensor operations only.
"""

import math

import torch
from torch import Tensor

from .activation import ACTIVATIONS
from .masking import allowed_entries
from .validate import accumulation_dtype


def safe_sqrt(x: Tensor) -> Tensor:
    """√x with gradient zero, not infinity, at x = 0."""
    positive = x > 0
    return torch.where(positive, x, 1).sqrt() * positive


def frobenius_norm(edges: Tensor, prefix: bool | Tensor) -> Tensor:
    """‖R‖_F of each row's scope, (B, H, Nq, 1): the whole matrix, or with ``prefix`` its leading block."""
    row_squares = edges.square().sum(-1)  # (B, H, Nq)
    whole = row_squares.sum(-1, keepdim=True).expand_as(row_squares)
    leading = row_squares.cumsum(-1)
    squares = torch.where(prefix, leading, whole) if isinstance(prefix, Tensor) else leading if prefix else whole
    return safe_sqrt(squares).unsqueeze(-1)


def pure_weights(
    q: Tensor,
    k: Tensor,
    *,
    activation: str,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    attn_mask: Tensor | None,
    causal: str,
    eps: float,
) -> Tensor:
    """Â = R / (‖R‖_F + ε), R = φ(q kᵀ / √d), in the accumulation dtype: (B, H, Nq, Nk).

    ``causal`` is "no", "yes" or "auto" (yes if the mask forbids the whole future).
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
                prefix = ~allowed.triu(1).any()
        if causal == "yes":
            allowed = allowed.tril()
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        if query_mask is not None:
            allowed = allowed & query_mask[:, None, :, None]
        edges = torch.where(allowed, ACTIVATIONS[activation].value(scores), 0)
        norm = frobenius_norm(edges, prefix)
        return edges / torch.where(norm > 0, norm + eps, 1)


def pure_diffusion(weights: Tensor, v: Tensor, gamma: Tensor, hops: float) -> Tensor:
    """Σ_{t=1..hops} (γÂ)^t v for a dense Â; ``hops=inf`` solves (I − γÂ) Z = γÂ v."""
    with torch.autocast(v.device.type, enabled=False):
        step = gamma * weights
        v = v.to(step.dtype)
        if hops == math.inf:
            identity = torch.eye(step.shape[-1], dtype=step.dtype, device=step.device)
            return torch.linalg.solve(identity - step, step @ v)
        z = step @ v
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


def linear_chunk_causal(
    q: Tensor, k: Tensor, v: Tensor, *, activation: str, chunk_size: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Per chunk, ΣSv / (Σ|S| + ε) and ΣS / (Σ|S| + ε) over the chunks before it.

    Keys of chunk c are scored with the central query of chunks <= c: (B, H, C, d), (B, H, C).
    """
    dtype = accumulation_dtype(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        total = torch.zeros(q.shape[0], q.shape[1], 1, 1, dtype=dtype, device=q.device)
        signed, pooled = torch.zeros_like(total), total.expand(-1, -1, -1, v.shape[-1])
        means, masses = [], []
        for start in range(0, k.shape[2], chunk_size):
            means.append(pooled / (total + eps))
            masses.append(signed / (total + eps))
            stop = start + chunk_size
            central = central_query(q[:, :, :stop], None, 1, eps)
            scores = ACTIVATIONS[activation].value(central @ k[:, :, start:stop].to(dtype).mT)
            total = total + scores.abs().sum(-1, keepdim=True)
            signed = signed + scores.sum(-1, keepdim=True)
            pooled = pooled + scores @ v[:, :, start:stop].to(dtype)
        return torch.cat(means, -2), torch.cat(masses, -2).squeeze(-1)
