"""Linear-InfSA's two passes over the tokens, chunk by chunk, with a recomputing backward.

Only the input tensors are kept for the backward pass; energies and scores are computed again. The passes
return the three sums of ``LinearState``; everything after them is small and left to autograd.

Masked tokens arrive as zero rows of q and k, whose energies and scores are zero.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..dtypes import accumulation_dtype
from .state import LinearState, energies, key_scores

CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**24}  # entries of the largest temporary


def _chunks(tokens: int, per_token: int, device: torch.device) -> Iterator[slice]:
    budget = CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS["cuda"])
    step = max(1, min(tokens, budget // max(per_token, 1)))
    for start in range(0, tokens, step):
        yield slice(start, min(start + step, tokens))


def _members(groups: Tensor | None, count: int, chunk: slice, dtype: torch.dtype) -> Tensor | None:
    """One-hot membership (B or 1, 1, count, n); a product with it is a deterministic scatter."""
    if groups is None:
        return None
    names = torch.arange(count, device=groups.device)
    return (groups[:, None, None, chunk] == names[:, None]).to(dtype)


def energy_sums(q: Tensor, groups: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """First pass: Σ e and Σ e q, e_i = ‖q_i‖, per group of tokens: (B, H, count), (B, H, count, d)."""
    batch, heads, tokens, width = q.shape
    state = LinearState.zero(batch, heads, width, groups=count, dtype=q.dtype, device=q.device)
    for chunk in _chunks(tokens, batch * heads * max(width, count), q.device):
        energy = energies(q[:, :, chunk])
        members = _members(groups, count, chunk, energy.dtype)
        weights = energy if members is None else members * energy.unsqueeze(-2)
        state = state.update(weights, q[:, :, chunk])
    return state.absolute, state.vectors


def energy_gradient(grad_total: Tensor, grad_vectors: Tensor, q: Tensor, groups: Tensor | None, count: int) -> Tensor:
    """dq_i = (g_e + g_q · q_i) q_i / e_i + e_i g_q, with the gradients of token i's group; 0 at q_i = 0."""
    batch, heads, tokens, width = q.shape
    dtype = accumulation_dtype(q.dtype)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    for chunk in _chunks(tokens, batch * heads * max(width, count), q.device):
        part = q[:, :, chunk].to(dtype)
        energy = energies(part).unsqueeze(-1)
        members = _members(groups, count, chunk, dtype)
        if members is None:
            on_total, on_vectors = grad_total.unsqueeze(-1), grad_vectors  # (B, H, 1, 1), (B, H, 1, d)
        else:
            on_total, on_vectors = members.mT @ grad_total.unsqueeze(-1), members.mT @ grad_vectors
        pull = on_total + (on_vectors * part).sum(-1, keepdim=True)
        direction = part / torch.where(energy > 0, energy, 1)
        dq[:, :, chunk] = (pull * direction + energy * on_vectors).to(q.dtype)
    return dq


def score_sums(central: Tensor, k: Tensor, v: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Second pass: Σ|S|, ΣS and ΣSv, S_j = φ(q̄ · k_j): (B, H, m), (B, H, m), (B, H, m, dv).

    v may be shared by the heads, (B, 1, N, dv).
    """
    batch, heads, tokens, width = k.shape
    state = LinearState.zero(batch, heads, v.shape[-1], groups=central.shape[2], dtype=k.dtype, device=k.device)
    per_token = batch * max(heads * max(width, central.shape[2]), v.shape[1] * v.shape[-1])
    for chunk in _chunks(tokens, per_token, k.device):
        state = state.update(key_scores(central, k[:, :, chunk], activation=activation), v[:, :, chunk])
    return state.absolute, state.signed, state.vectors


def score_gradients(
    grad_absolute: Tensor,
    grad_signed: Tensor,
    grad_vectors: Tensor,
    central: Tensor,
    k: Tensor,
    v: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the central queries, the keys and the values."""
    batch, heads, tokens, width = k.shape
    dtype = accumulation_dtype(k.dtype)
    phi, slope = ACTIVATIONS[activation]
    dcentral = torch.zeros_like(central, dtype=dtype)
    dk = torch.empty_like(k, memory_format=torch.contiguous_format)
    dv = torch.empty_like(v, memory_format=torch.contiguous_format)
    per_token = batch * max(heads * max(width, central.shape[2]), v.shape[1] * v.shape[-1])
    for chunk in _chunks(tokens, per_token, k.device):
        keys, values = k[:, :, chunk].to(dtype), v[:, :, chunk].to(dtype)
        raw = central.to(dtype) @ keys.mT  # (B, H, m, n)
        scores = phi(raw)
        grad = grad_absolute.unsqueeze(-1) * scores.sign() + grad_signed.unsqueeze(-1)
        grad = (grad + grad_vectors @ values.mT) * slope(raw)
        dcentral += grad @ keys
        dk[:, :, chunk] = (grad.mT @ central.to(dtype)).to(k.dtype)
        if v.shape[1] == heads:
            dv[:, :, chunk] = (scores.mT @ grad_vectors).to(v.dtype)
        else:  # one value tensor for all heads: contract heads and central queries at once
            dv[:, 0, chunk] = (scores.flatten(1, 2).mT @ grad_vectors.flatten(1, 2)).to(v.dtype)
    return dcentral, dk, dv
