"""Float64 oracles of the attention operators: scalar loops over one head at a time, no tricks.

They share no code with the library and none with `plain.py`; `test_oracles.py` compares the two.
Inputs are torch tensors or arrays, outputs are NumPy float64 arrays.
"""

import math
from collections.abc import Callable

import numpy as np
import torch

ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda s: s if s > 0 else 0.0,
    "gelu": lambda s: 0.5 * s * (1 + math.erf(s / math.sqrt(2))),
    "abs": lambda s: s if s > 0 else -s,
}


def array(x):
    """A tensor or array as NumPy; floating types become float64, booleans stay boolean."""
    if isinstance(x, torch.Tensor):
        x = x.detach()
        x = (x.double() if x.is_floating_point() else x).cpu().numpy()
    return np.asarray(x)


def per_head_gamma(gamma, heads):
    return np.broadcast_to(array(gamma).astype(float), (heads,))


def token_masks(key_mask, query_mask, batch, n_q, n_k):
    """Both masks as (B, n) arrays; the query mask defaults to the key mask where the lengths agree."""
    if query_mask is None and key_mask is not None and n_q == n_k:
        query_mask = key_mask
    key = np.ones((batch, n_k), bool) if key_mask is None else array(key_mask)
    query = np.ones((batch, n_q), bool) if query_mask is None else array(query_mask)
    return key, query


def pure_scores(q, k, attn_mask=None):
    """S = q kᵀ / √d plus the finite part of attn_mask, and where attn_mask allows a pair."""
    q, k = array(q), array(k)
    batch, heads, n_q, width = q.shape
    shape = (batch, heads, n_q, k.shape[2])
    allowed, bias = np.ones(shape, bool), np.zeros(shape)
    if attn_mask is not None:
        mask = np.broadcast_to(array(attn_mask), shape)
        if mask.dtype == bool:
            allowed = mask
        else:
            allowed = mask != -np.inf
            bias = np.where(allowed, mask, 0.0)
    scores = np.zeros(shape)
    for b, h, i, j in np.ndindex(shape):
        scores[b, h, i, j] = sum(q[b, h, i, c] * k[b, h, j, c] for c in range(width)) / math.sqrt(width)
        scores[b, h, i, j] += bias[b, h, i, j]
    return scores, allowed


def pure_weights(
    q,
    k,
    *,
    activation="relu",
    attn_mask=None,
    key_mask=None,
    query_mask=None,
    is_causal=False,
    norm="frobenius",
    eps=1e-6,
):
    """Â (B, H, Nq, Nk): R over the Frobenius norm, of the leading block for causal rows, or over each row's own."""
    scores, allowed = pure_scores(q, k, attn_mask)
    batch, heads, n_q, n_k = scores.shape
    key, query = token_masks(key_mask, query_mask, batch, n_q, n_k)
    phi = ACTIVATIONS[activation]

    weights = np.zeros_like(scores)
    for b, h in np.ndindex(batch, heads):
        r, visible = np.zeros((n_q, n_k)), np.zeros(n_q)
        for i, j in np.ndindex(n_q, n_k):
            real = allowed[b, h, i, j] and query[b, i] and key[b, j]
            if real and not (is_causal and j > i):
                r[i, j] = phi(scores[b, h, i, j])
                visible[i] += 1
        for i in range(n_q):
            seen = r[i] if norm == "row" else r[: i + 1] if is_causal else r
            size = math.sqrt(sum(x * x for x in seen.ravel()) * (visible[i] if norm == "row" else 1))
            weights[b, h, i] = r[i] / (size + eps) if size > 0 else 0.0
    return weights


def pure_attention(q, k, v, *, gamma=0.7, hops=1, **options):
    """Σ_{t=1..hops} (γÂ)^t v, and its limit for hops = inf: (B, H, Nq, dv)."""
    weights, v = pure_weights(q, k, **options), array(v)
    batch, heads, n_q, _ = weights.shape
    gamma = per_head_gamma(gamma, heads)
    out = np.zeros((batch, heads, n_q, v.shape[3]))
    for b, h in np.ndindex(batch, heads):
        step = gamma[h] * weights[b, h]
        if hops == math.inf:
            out[b, h] = np.linalg.solve(np.eye(n_q) - step, step @ v[b, h])
        else:
            walk = v[b, h]
            for _ in range(hops):
                walk = step @ walk
                out[b, h] += walk
    return out


def blocks(query_mask, queries):
    """The block of every token, ⌊i·m/n⌋ counted over the n real tokens; None for padding."""
    n_real = int(sum(query_mask))
    answer, seen = [], 0
    for real in query_mask:
        answer.append(math.floor(seen * queries / n_real) if real else None)
        seen += bool(real)
    return answer


def central_query(q, tokens, eps):
    """The mean of q over `tokens`, each weighted by its own length: (d,)."""
    total, mass = np.zeros(q.shape[1]), 0.0
    for i in tokens:
        energy = math.sqrt(sum(x * x for x in q[i]))
        total += energy * q[i]
        mass += energy
    return total / (mass + eps)


def key_scores(centre, k, tokens, phi):
    """φ(q̄ · k_j) for j in `tokens`, 0 for the others: (Nk,)."""
    scores = np.zeros(len(k))
    for j in tokens:
        scores[j] = phi(sum(a * b for a, b in zip(centre, k[j], strict=True)))
    return scores


def head_weights(q, k, key, query, m, iterations, phi, eps):
    """a for the m blocks of one head: (m, Nk)."""
    block = blocks(query, m)
    keys = [j for j in range(len(k)) if key[j]]
    weights = np.zeros((m, len(k)))
    for r in range(m):
        centre = central_query(q, [i for i in range(len(q)) if block[i] == r], eps)
        for _ in range(iterations):
            scores = key_scores(centre, k, keys, phi)
            weights[r] = scores / (sum(abs(scores)) + eps)
            if iterations > 1:
                centre = sum(weights[r, j] * q[j] * query[j] for j in range(len(k)))
    return weights


def linear_weights(q, k, *, activation="relu", key_mask=None, query_mask=None, iterations=1, queries=1, eps=1e-6):
    """a (B, H, m, Nk), one row for each of the m = `queries` blocks."""
    q, k = array(q), array(k)
    batch, heads, n_q, _ = q.shape
    key, query = token_masks(key_mask, query_mask, batch, n_q, k.shape[2])
    weights = np.zeros((batch, heads, queries, k.shape[2]))
    for b, h in np.ndindex(batch, heads):
        weights[b, h] = head_weights(
            q[b, h], k[b, h], key[b], query[b], queries, iterations, ACTIVATIONS[activation], eps
        )
    return weights


def linear_attention(q, k, v, *, gamma=0.7, causal=None, chunk_size=None, **options):
    """h for every token: (B, H, 1, dv) where all tokens share it, else (B, H, Nq, dv)."""
    if causal is not None:
        return chunk_causal(q, k, v, gamma=gamma, chunk_size=chunk_size, **options)
    weights, v = linear_weights(q, k, **options), array(v)
    batch, heads, m, n_k = weights.shape
    gamma = per_head_gamma(gamma, heads)
    rows = np.zeros((batch, heads, m, v.shape[3]))
    for b, h, r, j in np.ndindex(batch, heads, m, n_k):
        rows[b, h, r] += gamma[h] * weights[b, h, r, j] * v[b, h, j]
    if m == 1:
        return rows
    n_q = q.shape[2]
    _, query = token_masks(options.get("key_mask"), options.get("query_mask"), batch, n_q, n_k)
    out = np.zeros((batch, heads, n_q, v.shape[3]))
    for b in range(batch):
        for i, block in enumerate(blocks(query[b], m)):
            if block is not None:
                out[b, :, i] = rows[b, :, block]
    return out


def chunk_causal(q, k, v, *, gamma=0.7, chunk_size, activation="relu", key_mask=None, query_mask=None, eps=1e-6):
    """Linear-InfSA over earlier chunks: keys scored by the q̄ of all chunks up to their own: (B, H, N, dv).

    Chunks count real tokens, so padding on either side changes nothing.
    """
    q, k, v = array(q), array(k), array(v)
    batch, heads, n, _ = q.shape
    key, query = token_masks(key_mask, query_mask, batch, n, n)
    gamma = per_head_gamma(gamma, heads)
    phi = ACTIVATIONS[activation]
    out = np.zeros((batch, heads, n, v.shape[3]))
    for b, h in np.ndindex(batch, heads):
        scores = np.zeros(n)
        chunk = (np.cumsum(key[b] | query[b]) - 1) // chunk_size
        for j in range(n):
            centre = central_query(q[b, h], [i for i in range(n) if query[b, i] and chunk[i] <= chunk[j]], eps)
            if key[b, j]:
                scores[j] = key_scores(centre, k[b, h], [j], phi)[j]
        for i in range(n):
            if query[b, i]:
                seen = [j for j in range(n) if chunk[j] < chunk[i]]
                total = sum((scores[j] * v[b, h, j] for j in seen), np.zeros(v.shape[3]))
                out[b, h, i] = gamma[h] * total / (sum(abs(scores[seen])) + eps)
    return out
