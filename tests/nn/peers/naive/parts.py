"""Projections, norms, interpolation, convolution and pooling, written out."""

import math

import torch


def linear(layer, x):
    y = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias


def layer_norm(layer, x):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


def softmax(x):
    e = (x - x.max()).exp()
    return e / e.sum()


def by_head(module, *arrays):
    """For each head, its channels of each array (N, D)."""
    d = module.head_dim
    return [tuple(a[:, h * d : (h + 1) * d] for a in arrays) for h in range(module.num_heads)]


def finish(module, heads):
    """Join the heads (N, d) and project."""
    y = torch.cat(heads, -1)
    if module.extra is not None:
        y = linear(module.extra, y)
    return linear(module.proj, y)


def interpolation(size, source, kind):
    """The matrix (size, source) of 1-D interpolation with aligned pixel areas and clamped borders."""
    matrix = torch.zeros(size, source, dtype=torch.float64)
    for i in range(size):
        at = (i + 0.5) * source / size - 0.5
        if kind == "linear":
            at = max(at, 0.0)
            low, t = math.floor(at), at - math.floor(at)
            taps = {low: 1 - t, low + 1: t}
        else:  # the cubic convolution kernel with a = −0.75
            low, taps, a = math.floor(at), {}, -0.75
            for j in range(low - 1, low + 3):
                s = abs(at - j)
                near = (a + 2) * s**3 - (a + 3) * s**2 + 1
                far = a * s**3 - 5 * a * s**2 + 8 * a * s - 4 * a
                taps[j] = near if s <= 1 else far
        for j, weight in taps.items():
            matrix[i, min(max(j, 0), source - 1)] += weight
    return matrix


def resized(table, grid, kind="cubic"):
    """table (..., h0, w0) at another grid."""
    rows = interpolation(grid[0], table.shape[-2], kind)
    columns = interpolation(grid[1], table.shape[-1], kind)
    return rows @ table @ columns.T


def convolved(x, weight, bias, grid, num_prefix):
    """Depthwise convolution of x (N, C) over its patches, weight (C, k, k), zeros outside and for the prefix."""
    (h, w), reach = grid, weight.shape[-1] // 2
    out = [torch.zeros(x.shape[1], dtype=x.dtype) for _ in range(num_prefix)]
    for r in range(h):
        for c in range(w):
            total = torch.zeros(x.shape[1], dtype=x.dtype) if bias is None else bias
            for dr in range(-reach, reach + 1):
                for dc in range(-reach, reach + 1):
                    if 0 <= r + dr < h and 0 <= c + dc < w:
                        patch = x[num_prefix + (r + dr) * w + c + dc]
                        total = total + weight[:, dr + reach, dc + reach] * patch
            out.append(total)
    return torch.stack(out)


def average_pooled(x, grid, num_prefix, size):
    """Adaptive average pooling of the patches of x (N, C): (size0 · size1, C)."""
    (h, w), out = grid, []
    for i in range(size[0]):
        for j in range(size[1]):
            rows = range(i * h // size[0], math.ceil((i + 1) * h / size[0]))
            columns = range(j * w // size[1], math.ceil((j + 1) * w / size[1]))
            out.append(torch.stack([x[num_prefix + r * w + c] for r in rows for c in columns]).mean(0))
    return torch.stack(out)
