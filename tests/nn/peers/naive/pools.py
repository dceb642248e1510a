"""InfSA and the ways to share one vector."""

import math

import torch

from .parts import by_head, finish, linear, softmax


def infsa_pure(m, x, grid, p):
    q, k, v = linear(m.qkv, x).chunk(3, -1)
    heads = []
    for qh, kh, vh in by_head(m, q, k, v):
        edges = (qh @ kh.T / math.sqrt(m.head_dim)).clamp_min(0)
        heads.append(m.decay() * edges @ vh / (edges.square().sum().sqrt() + 1e-6))
    return finish(m, heads)


def gammas(m):
    """γ of each head."""
    gamma = m.decay()
    return [gamma] * m.num_heads if isinstance(gamma, float) else list(gamma.double())


def shared_by_all(row, x):
    return row.expand(len(x), -1)


def infsa_linear(m, x, grid, p):
    q, v = linear(m.q, x), linear(m.v, x)
    heads = []
    for qh, vh in by_head(m, q, v):
        energy = torch.stack([qi.square().sum().sqrt() for qi in qh])
        central = energy @ qh / (energy.sum() + 1e-6)
        scores = (qh @ central).clamp_min(0)
        heads.append(m.decay() * (scores @ vh / (scores.sum() + 1e-6))[None])
    return shared_by_all(finish(m, heads), x)


def mean(m, x, grid, p):
    v = linear(m.v, x)
    heads = [g * vh.mean(0, keepdim=True) for g, (vh,) in zip(gammas(m), by_head(m, v), strict=True)]
    return shared_by_all(finish(m, heads), x)


def energy(m, x, grid, p):
    q, v = linear(m.q, x), linear(m.v, x)
    heads = []
    for g, (qh, vh) in zip(gammas(m), by_head(m, q, v), strict=True):
        e = torch.stack([qi.square().sum().sqrt() for qi in qh])
        heads.append(g * (e @ vh / (e.sum() + 1e-6))[None])
    return shared_by_all(finish(m, heads), x)


def fastformer(m, x, grid, p):
    q, k = linear(m.q, x), linear(m.k, x)

    def pooled(rows, score):
        parts = []
        for h, (part,) in enumerate(by_head(m, rows)):
            parts.append(softmax(rows @ score.weight[h] / math.sqrt(m.head_dim)) @ part)
        return torch.cat(parts)

    products = k * pooled(q, m.score_q)
    y = q * pooled(products, m.score_k)
    return finish(m, [y]) + q
