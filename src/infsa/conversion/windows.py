"""Attention in windows, as Swin and its relatives of three libraries have it: each window is a graph of its own."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .swap import Swapped

ONE_NORM = "parts that a window shift brings together do not attend to each other, but share the norm of their window"


def attend_in_windows(
    layer: Swapped, qkv: tuple[Tensor, ...], bias: Tensor, seen: Tensor | None, dropout: float
) -> Tensor:
    """Pure InfSA on the windows of B images, each of q, k, v (B·windows, H, N, d), joined: (B·windows, N, H·d).

    ``bias`` (1, H, N, N) is added to the scores before φ; only pairs that are ``seen`` (windows, N, N) have edges. The
    windows of an image stand beside its heads, so that their masks need no copy per image.
    """
    bias = bias.to(qkv[0].dtype)
    if seen is None:
        return layer.pure(*qkv, attn_mask=bias, dropout=dropout)
    windows = seen.shape[0]
    edges = torch.where(seen.unsqueeze(1), bias, -torch.inf).flatten(0, 1).unsqueeze(0)  # (1, windows·H, N, N)
    q, k, v = (y.unflatten(0, (-1, windows)).flatten(1, 2) for y in qkv)
    z = layer.pure(q, k, v, attn_mask=edges, dropout=dropout)  # (B, N, windows·H·d)
    return z.unflatten(-1, (windows, -1)).transpose(1, 2).flatten(0, 1)


def cosines(qkv: tuple[Tensor, ...], logit_scale: Tensor) -> tuple[Tensor, ...]:
    """Queries and keys of length one, with a learned scale; φ(q·k/√d) follows, so √d is taken into it."""
    q, k, v = qkv
    scale = logit_scale.clamp(max=math.log(100.0)).exp() * math.sqrt(q.shape[-1])
    return (normalize(q, dim=-1) * scale).type_as(v), normalize(k, dim=-1).type_as(v), v


def continuous_bias(network: nn.Module, offsets: Tensor, places: Tensor, heads: int) -> Tensor:
    """The bias of each pair of tokens in a window that Swin V2's network makes of their offset: (1, H, N, N)."""
    tokens = math.isqrt(places.numel())
    table = network(offsets).view(-1, heads)
    return 16 * table[places.flatten()].view(tokens, tokens, heads).permute(2, 0, 1).sigmoid().unsqueeze(0)


def to_windows(x: Tensor, sides: tuple[int, ...]) -> Tensor:
    """(B, h, w, D) -> (B·windows, tokens of a window, D)."""
    x = x.unflatten(2, (-1, sides[1])).unflatten(1, (-1, sides[0]))
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def from_windows(x: Tensor, sides: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    """Undo :func:`to_windows` for maps of a size (h, w)."""
    x = x.unflatten(1, sides).unflatten(0, (-1, size[0] // sides[0], size[1] // sides[1]))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
