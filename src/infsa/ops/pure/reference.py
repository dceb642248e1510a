"""Pure InfSA as written, dense and differentiable by autograd: the oracle of the other implementations.

Memory is N² in the number of tokens. Export (``torch.export``, ONNX) uses this path because it is made of
plain tensor operations only.
"""

import math

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..dtypes import accumulation_dtype
from ..masks import allowed_entries, forbids_future
from ..tracing import exporting
from .rule import Rule


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


def pure_weights(q: Tensor, k: Tensor, rule: Rule) -> tuple[Tensor, bool | Tensor]:
    """Â = R / (‖R‖_F + ε), R = φ(q kᵀ / √d), in the accumulation dtype, (B, H, Nq, Nk), and where it is causal."""
    key_mask, query_mask, attn_mask, activation, causal, norm, eps = rule
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
