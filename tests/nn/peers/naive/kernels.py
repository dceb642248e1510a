"""Kernels instead of softmax."""

import math

import torch
from torch.nn.functional import elu, gelu, silu, softplus

from .parts import average_pooled, by_head, convolved, finish, layer_norm, linear, resized


def performer(m, x, grid, p):
    q, k, v = linear(m.qkv, x).chunk(3, -1)
    w = m.directions
    heads = []
    for qh, kh, vh in by_head(m, q, k, v):
        qh, kh = qh / m.head_dim**0.25, kh / m.head_dim**0.25
        key_peak = (kh @ w.T).max().detach()

        def phi(row, peak, w=w):
            along = w @ row
            peak = along.max().detach() if peak is None else peak
            return ((along - row @ row / 2 - peak).exp() + m.eps) / math.sqrt(len(w))

        phi_k = torch.stack([phi(row, key_peak) for row in kh])
        rows = []
        for row in qh:
            weights = phi_k @ phi(row, None)
            rows.append(weights @ vh / weights.sum())
        heads.append(torch.stack(rows))
    return finish(m, heads)


class NewtonInverse(torch.autograd.Function):
    """Y ← 2Y − YAY, with the gradient of an exact inverse."""

    @staticmethod
    def forward(ctx, a, start, steps):
        y = start
        for _ in range(steps):
            y = 2 * y - y @ a @ y
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -y.T @ g @ y.T, None, None


def soft(m, x, grid, p):
    q, v = linear(m.q, x) / m.head_dim**0.25, linear(m.v, x)
    conv = m.landmark_conv
    (kh, kw), (ph, pw) = conv.weight.shape[-2:], m.pooled
    heads = []
    for number, (qh, vh) in enumerate(by_head(m, q, v)):
        image = average_pooled(qh, grid, p, m.pooled).reshape(ph, pw, -1)
        corners = [(i, j) for i in range(0, ph, kh) for j in range(0, pw, kw)]
        windows = torch.stack([image[i : i + kh, j : j + kw] for i, j in corners])
        rows = torch.einsum("mhwc,ochw->mo", windows, conv.weight) + conv.bias
        marks = gelu(layer_norm(m.landmark_norm, rows))

        def gauss(a, b):
            return (-(a[:, None] - b[None]).square().sum(-1) / 2).exp()

        k1, k2 = gauss(qh, marks), gauss(marks, marks)
        a = k2 + 0.01 * torch.eye(len(k2), dtype=k2.dtype)
        start = 1.8 / k2.sum(1).max().detach() ** 2 * a.detach()
        inverse = NewtonInverse.apply(a, start, m.newton_steps)
        if m.normalize:
            degree = k2.sum(1)
            inverse = inverse / (degree[:, None] * degree[None]).sqrt()
        kernel = m.conv.weight[number].expand(m.head_dim, -1, -1)
        heads.append(k1 @ inverse @ k1.T @ vh + convolved(vh, kernel, None, grid, p))
    return finish(m, heads)


def flatten(m, x, grid, p):
    q, k, v = linear(m.qkv, x).chunk(3, -1)
    position = resized(m.position, grid).reshape(m.dim, -1).T
    k = torch.cat([k[:p], k[p:] + position])

    def focus(rows):
        out = []
        for row in rows:
            u = (row.clamp_min(0) + 1e-6) / softplus(m.scale)
            sharp = u**m.power
            out.append(u.square().sum().sqrt() * sharp / sharp.square().sum().sqrt())
        return torch.stack(out)

    heads = []
    for qh, kh, vh in by_head(m, focus(q), focus(k), v):
        rows = [(kh @ qi / len(x)) @ vh / (qi @ kh.mean(0) + 1e-6) for qi in qh]
        local = convolved(vh, m.conv.weight[:, 0], m.conv.bias, grid, p)
        heads.append(torch.stack(rows) + local)
    return finish(m, heads)


def turned(x, grid, p):
    """RoPE over all channels of x (N, D): the first half of the pairs by row, the second half by column."""
    quarter, out = x.shape[1] // 4, []
    for i, token in enumerate(x):
        row, column = (0, 0) if i < p else divmod(i - p, grid[1])
        pairs = []
        for t in range(2 * quarter):
            angle = (row if t < quarter else column) * 10000 ** (-(t % quarter) / quarter)
            a, b = token[2 * t], token[2 * t + 1]
            pairs += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
        out.append(torch.stack(pairs))
    return torch.stack(out)


def mlla_mix(m, x, grid, p):
    q, k = (elu(part) + 1 for part in linear(m.qk, x).chunk(2, -1))
    local = convolved(x, m.conv.weight[:, 0], m.conv.bias, grid, p)
    heads = []
    for qh, kh, tq, tk, vh, local_h in by_head(m, q, k, turned(q, grid, p), turned(k, grid, p), x, local):
        rows = [(tk @ b / len(x)) @ vh / (a @ kh.mean(0) + 1e-6) for a, b in zip(qh, tq, strict=True)]
        heads.append(torch.stack(rows) + local_h)
    return heads


def mlla(m, x, grid, p):
    return finish(m, mlla_mix(m, x, grid, p))


def mlla_block(m, x, grid, p):
    def conv(layer, rows):
        return convolved(rows, layer.weight[:, 0], layer.bias, grid, p)

    x = x + conv(m.position_1, x)
    n = layer_norm(m.norm_1, x)
    gate, entered = silu(linear(m.gate, n)), linear(m.enter, n)
    u = silu(torch.cat([entered[:p], conv(m.conv, entered)[p:]]))
    y = torch.cat(mlla_mix(m.core, u, grid, p), -1) * gate
    x = x + linear(m.core.proj, y if m.core.extra is None else linear(m.core.extra, y))
    x = x + conv(m.position_2, x)
    return x + linear(m.mlp[2], gelu(linear(m.mlp[0], layer_norm(m.norm_2, x))))
