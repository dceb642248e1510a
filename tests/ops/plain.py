"""The operators as anyone would type them in PyTorch: dense, differentiable, in the type of the input.

In float64 their gradients are the gradient oracle. In a smaller type their error is the yardstick that the
library must stay within twice of.
"""

import math

import torch
from torch.nn import functional as F

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "abs": torch.abs}


def root(x):
    """√x with slope 0 at 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1).sqrt(), 0)


def head_gamma(gamma, q):
    return gamma.to(q.dtype).expand(q.shape[1])[:, None, None] if torch.is_tensor(gamma) else gamma


def both_masks(q, k, key_mask, query_mask):
    if query_mask is None and q.shape[2] == k.shape[2]:
        query_mask = key_mask
    ones = [torch.ones(x.shape[0], x.shape[2], dtype=torch.bool) for x in (k, q)]
    return (ones[0] if key_mask is None else key_mask), (ones[1] if query_mask is None else query_mask)


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
    key, query = both_masks(q, k, key_mask, query_mask)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    keep = query[:, None, :, None] & key[:, None, None, :]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        keep = keep & attn_mask
    elif attn_mask is not None:
        keep = keep & (attn_mask != -math.inf)
        scores = scores + attn_mask.masked_fill(attn_mask == -math.inf, 0).to(q.dtype)
    if is_causal:
        keep = keep & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    r = ACTIVATIONS[activation](scores).masked_fill(~keep, 0)
    squares = r.square().sum(-1)
    if norm == "row":
        total = (squares * keep.expand_as(r).sum(-1))[..., None]
    else:
        total = squares.cumsum(-1)[..., None] if is_causal else squares.sum(-1)[..., None, None]
    return r / (root(total) + eps)


def pure_attention(q, k, v, *, gamma=0.7, hops=1, **options):
    step = head_gamma(gamma, q) * pure_weights(q, k, **options)
    if hops == math.inf:
        system, right = torch.eye(q.shape[2], dtype=q.dtype) - step, step @ v
        wide = torch.promote_types(q.dtype, torch.float32)  # torch solves in float32 and float64 only
        return torch.linalg.solve(system.to(wide), right.to(wide)).to(q.dtype)
    walk, out = v, 0
    for _ in range(hops):
        walk = step @ walk
        out = out + walk
    return out


def block_matrix(query, m):
    """(B, m, N): 1 where a token belongs to a block; blocks count the real tokens only."""
    place = query.long().cumsum(-1) - 1
    block = place * m // query.long().sum(-1, keepdim=True).clamp(min=1)
    return (block[:, None] == torch.arange(m)[:, None]) & query[:, None]


def linear_rows(q, k, activation, key_mask, query_mask, iterations, queries, eps):
    """a (B, H, m, Nk) and the matrix of blocks (B, 1, m, Nq)."""
    key, query = both_masks(q, k, key_mask, query_mask)
    member = block_matrix(query, queries)[:, None].to(q.dtype)
    energy = root(q.square().sum(-1))[:, :, None] * member
    centre = energy @ q / (energy.sum(-1, keepdim=True) + eps)
    for _ in range(iterations):
        s = ACTIVATIONS[activation](centre @ k.mT) * key[:, None, None]
        a = s / (s.abs().sum(-1, keepdim=True) + eps)
        if iterations > 1:
            centre = a @ (q * query[:, None, :, None])
    return a, member


def linear_attention(
    q,
    k,
    v,
    *,
    gamma=0.7,
    activation="relu",
    key_mask=None,
    query_mask=None,
    iterations=1,
    queries=1,
    causal=None,
    chunk_size=None,
    eps=1e-6,
):
    gamma = head_gamma(gamma, q)
    if causal is not None:
        return gamma * chunk_causal(q, k, v, activation, key_mask, query_mask, chunk_size, eps)
    a, member = linear_rows(q, k, activation, key_mask, query_mask, iterations, queries, eps)
    rows = gamma * (a @ v)
    return rows if queries == 1 else member.mT @ rows


def chunk_causal(q, k, v, activation, key_mask, query_mask, chunk_size, eps):
    key, query = both_masks(q, k, key_mask, query_mask)
    chunk = ((key.bool() | query.bool()).long().cumsum(-1) - 1) // chunk_size  # (B, N), counting real tokens
    upto = (chunk[:, None, None, :] <= chunk[:, None, :, None]).to(q.dtype)  # tokens of the chunks up to mine
    before = (chunk[:, None, None, :] < chunk[:, None, :, None]).to(q.dtype)
    energy = (root(q.square().sum(-1)) * query[:, None])[..., None]
    centre = upto @ (energy * q) / (upto @ energy + eps)  # (B, H, N, d): the q̄ of my chunk
    s = (ACTIVATIONS[activation]((centre * k).sum(-1)) * key[:, None])[..., None]
    mass = before @ s.abs()
    seen = mass > 0  # a first chunk has none; 0 / ε has a slope that float16 cannot hold
    out = torch.where(seen, before @ (s * v) / (torch.where(seen, mass, 1) + eps), 0)
    return out * query[:, None, :, None]
