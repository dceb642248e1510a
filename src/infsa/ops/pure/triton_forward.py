"""Pure InfSA forward: the launches of ``pure_forward_kernels``."""

import math

import torch
import triton
from torch import Tensor

from ..triton.configs import Config, default_config, padded_width
from ..triton.layout import allow_descriptors, describable, on_device, readable, token_major
from ..triton.parts import NUMBERS
from .triton_forward_kernels import pure_rows, pure_scale


def norms_of(queries: int, is_causal: bool, seen: Tensor | None) -> int:
    """How many norms a head has: one for all rows, or one each."""
    return queries if is_causal or seen is not None else 1


def steps_of(seen: Tensor | None) -> tuple[int, int]:
    """Strides over (B, Nq), zero where all share one number."""
    if seen is None:
        return 0, 0
    batch, row = (0 if size == 1 else step for size, step in zip(seen.shape, seen.stride(), strict=True))
    return batch, row


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    activation: str,
    is_causal: bool,
    eps: float,
    config: Config | None = None,
    seen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Z (B, H, Nq, dv) in the type of q, and the norms F: (B, H, 1); causal or by row (B, H, Nq).

    ``seen``, float64 (B or 1, Nq or 1), asks for the row norm: the number of keys that each query may see.
    """
    q, k, v = readable(q), readable(k), readable(v)
    batch, heads, n_q, width = q.shape
    n_k, value_width = k.shape[2], v.shape[3]
    padded, value_padded = padded_width(width), padded_width(value_width)
    config = config or default_config("forward", max(padded, value_padded), q.dtype, q.device.index)
    blocks = triton.cdiv(n_q, config.block_q)
    z = token_major(q, n_q, value_width)
    row_norm = q.new_empty(batch, heads, n_q, dtype=torch.float32)
    partial = q.new_empty(batch, heads, blocks, dtype=torch.float64)
    norm = row_norm.new_empty(batch, heads, norms_of(n_q, is_causal, seen))
    if batch == 0:
        return z, norm
    tma = config.tma and describable(k, v)
    if tma:
        allow_descriptors(q)
    root_keys = 2.0 ** math.ceil(math.log2(n_k) / 2)  # a power of two, so that taking it back is exact
    grid = (batch * heads * blocks,)
    with on_device(q):
        pure_rows[grid](
            q,
            k,
            v,
            z,
            row_norm,
            partial,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *z.stride()[:3],
            heads,
            n_q,
            n_k,
            1 / math.sqrt(width),
            1 / root_keys,
            HEADROOM=2 ** math.ceil(math.log2(2 * math.sqrt(width))),
            SCALED=q.dtype != torch.bfloat16,
            WIDTH=width,
            VALUE_WIDTH=value_width,
            PADDED=padded,
            VALUE_PADDED=value_padded,
            BLOCK_Q=config.block_q,
            BLOCK_K=config.block_k,
            EVEN=n_k % config.block_k == 0,
            CAUSAL=is_causal,
            ACTIVATION=NUMBERS[activation],
            TMA=tma,
            SPECIALIZE=config.specialize,
            LANES=config.lanes,
            **config.launch,
        )
        pure_scale[grid](
            z,
            row_norm,
            partial,
            gamma,
            norm,
            norm if seen is None else seen,
            *z.stride()[:3],
            0 if gamma.numel() == 1 else 1,
            *steps_of(seen),
            heads,
            n_q,
            root_keys,
            eps,
            VALUE_WIDTH=value_width,
            VALUE_PADDED=value_padded,
            BLOCK_Q=config.block_q,
            CAUSAL=is_causal,
            BY_ROW=seen is not None,
            num_warps=4,
        )
    return z, norm
