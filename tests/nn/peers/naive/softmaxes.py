"""Softmax attention and its shortcuts."""

import math

import torch

from .parts import average_pooled, by_head, convolved, finish, linear, resized, softmax


def softmax_attention(m, x, grid, p):
    q, k, v = linear(m.qkv, x).chunk(3, -1)
    heads = []
    for qh, kh, vh in by_head(m, q, k, v):
        heads.append(torch.stack([softmax(kh @ qi / math.sqrt(m.head_dim)) @ vh for qi in qh]))
    return finish(m, heads)


def linformer(m, x, grid, p):
    q, k, v = linear(m.qkv, x).chunk(3, -1)

    def compression(e):
        table = e[p:].T.reshape(m.rank, *m.grid)
        scale = m.grid[0] * m.grid[1] / (grid[0] * grid[1])
        return torch.cat([e[:p], resized(table, grid).reshape(m.rank, -1).T * scale])

    e = compression(m.compress_k)
    f = e if m.compress_v is None else compression(m.compress_v)
    heads = []
    for qh, kh, vh in by_head(m, q, k, v):
        short_k, short_v = e.T @ kh, f.T @ vh
        heads.append(torch.stack([softmax(short_k @ qi / math.sqrt(m.head_dim)) @ short_v for qi in qh]))
    return finish(m, heads)


def agent(m, x, grid, p):
    q, k, v = linear(m.qkv, x).chunk(3, -1)
    local = convolved(v, m.conv.weight[:, 0], m.conv.bias, grid, p)

    def bias(module, h):
        if module is None:
            return torch.zeros(m.side**2, len(x), dtype=x.dtype)
        patches = (
            resized(module.table[h], grid, "linear")
            + resized(module.rows[h], (grid[0], 1), "linear")
            + resized(module.columns[h], (1, grid[1]), "linear")
        ).flatten(1)
        return patches if p == 0 else torch.cat([module.prefix[h], patches], 1)

    heads, scale = [], math.sqrt(m.head_dim)
    for h, (qh, kh, vh, local_h) in enumerate(by_head(m, q, k, v, local)):
        agents = average_pooled(qh, grid, p, (m.side, m.side))
        b1, b2 = bias(m.bias_k, h), bias(m.bias_q, h)
        values = torch.stack([softmax(kh @ a / scale + b) @ vh for a, b in zip(agents, b1, strict=True)])
        rows = [softmax(agents @ qi / scale + b) @ values for qi, b in zip(qh, b2.T, strict=True)]
        heads.append(torch.stack(rows) + local_h)
    return finish(m, heads)
