"""q, k and v whose memory is laid out as users have it: views, transposes, steps, expansions."""

import torch

from .helpers import BATCH, HEADS, generator, tokens


def qkv_views(n, width):
    """q, k and v as views of one (B, N, 3, H, d) projection."""
    qkv = torch.randn(BATCH, n, 3, HEADS, width, generator=generator(8), dtype=torch.float64)
    return qkv.permute(2, 0, 3, 1, 4).unbind(0)


def transposed(n, width):
    return tuple(x.mT.contiguous().mT for x in tokens(8, n, width=width))


def every_second_token(n, width):
    return tuple(x[:, :, ::2, ::2] for x in tokens(8, 2 * n, width=2 * width))


def expanded(n, width):
    return tuple(x[:1, :1].expand(BATCH, HEADS, n, width) for x in tokens(8, n, width=width))
