"""Pure InfSA backward: the launches of ``pure_backward_kernels``."""

import math

import torch
import triton
from torch import Tensor

from ..triton.configs import Config, default_config, padded_width
from ..triton.layout import allow_descriptors, describable, on_device, readable, token_major
from ..triton.parts import NUMBERS
from .triton_backward_kernels import pure_keys, pure_row_dots
from .triton_backward_queries import pure_queries

ROWS_PER_DOT = 64


def row_factors(
    dots: Tensor,
    grad: Tensor,
    v: Tensor,
    gamma: Tensor,
    norm: Tensor,
    is_causal: bool,
    unit: float,
    eps: float,
    seen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The factors of ∂L/∂Z · v, of R' in dS and of R' in dV, (3, B, H, Nq), and those of dQ, dK and of dV, (2, B, H).

    In float16 they place dS and the weights of dV high in its range, by bounds that hold for every pair of tokens.
    """
    dead = norm == 0
    wide_norm = norm.double()
    inverse = torch.where(dead, 0, 1 / (wide_norm + eps))
    shared = dots * inverse * torch.where(dead, 0, 1 / wide_norm)  # c_i / (s_i F_i)
    if seen is not None:
        weight = shared * seen.unsqueeze(1)
        norm = norm * seen.unsqueeze(1).clamp_min(1).rsqrt().float()  # ‖R_i‖, which no edge exceeds
    else:
        weight = shared.flip(-1).cumsum(-1).flip(-1) if is_causal else shared.sum(-1, keepdim=True)
    weight = weight.float().expand_as(dots)
    scale = (gamma.view(-1, 1) * inverse).float().expand_as(dots)  # a_i
    out = dots.new_ones(2, *dots.shape[:2])
    if grad.dtype == torch.float16:
        size = torch.linalg.vector_norm(grad, dim=-1, dtype=torch.float32)
        longest = torch.linalg.vector_norm(v, dim=-1, dtype=torch.float32).amax(-1)
        bound = torch.maximum((scale * size).amax(-1) * longest, (weight * norm).abs().amax(-1))
        out[0] = torch.exp2(torch.ceil(torch.log2(bound.clamp_min(1e-30))) - 14)
        out[1] = 2.0**-14
    rows = torch.stack([scale / out[0, ..., None], weight * unit / out[0, ..., None], scale * unit / out[1, ..., None]])
    out[0] *= unit
    return rows, out


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    z: Tensor,
    norm: Tensor,
    activation: str,
    is_causal: bool,
    eps: float,
    keys_config: Config | None = None,
    queries_config: Config | None = None,
    seen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV in the type of the inputs, and c: (B, H, Nq), whose sum over rows and batch is γ ∂L/∂γ."""
    grad, q, k, v, z = (readable(x) for x in (grad, q, k, v, z))
    batch, heads, n_q, width = q.shape
    n_k, value_width = k.shape[2], v.shape[3]
    padded, value_padded = padded_width(width), padded_width(value_width)
    widest = max(padded, value_padded)
    keys_config = keys_config or default_config("keys", widest, q.dtype, q.device.index)
    queries_config = queries_config or default_config("queries", widest, q.dtype, q.device.index)
    dot_blocks = triton.cdiv(n_q, ROWS_PER_DOT)
    dots = q.new_empty(batch, heads, n_q, dtype=torch.float32)
    partial = q.new_empty(batch, heads, dot_blocks, dtype=torch.float64)
    dq, dk, dv = token_major(q, n_q, width), token_major(k, n_k, width), token_major(v, n_k, value_width)
    items = batch * heads
    if items == 0:
        return dq, dk, dv, dots
    sizes = {"VALUE_WIDTH": value_width, "VALUE_PADDED": value_padded}
    with on_device(q):
        pure_row_dots[(items * dot_blocks,)](
            grad,
            z,
            dots,
            partial,
            *grad.stride()[:3],
            *z.stride()[:3],
            heads,
            n_q,
            BLOCK_Q=ROWS_PER_DOT,
            **sizes,
            num_warps=4,
        )
        unit = 1 / math.sqrt(width)
        rowwise = is_causal or seen is not None or q.dtype == torch.float16
        rows, out = dots, dots
        if rowwise:
            rows, out = row_factors(dots, grad, v, gamma, norm, is_causal, unit, eps, seen)
        sizes |= {"WIDTH": width, "PADDED": padded, "CAUSAL": is_causal, "ROWWISE": rowwise}
        sizes |= {"ACTIVATION": NUMBERS[activation]}
        strides = [s for x in (q, k, v, grad) for s in x.stride()[:3]]
        counts = (0 if gamma.numel() == 1 else 1, items, heads, n_q, n_k, dot_blocks, unit, eps)
        shared = (norm, partial, gamma, rows, out, *strides)
        for config, kernel, results, looped, length, step in (
            (keys_config, pure_keys, (dk, dv), (q, grad), n_k, keys_config.block_k),
            (queries_config, pure_queries, (dq,), (k, v), n_q, queries_config.block_q),
        ):
            tma = config.tma and describable(*looped)
            if tma:
                allow_descriptors(q)
            inner = config.block_q if kernel is pure_keys else config.block_k
            kernel[(items * triton.cdiv(length, step),)](
                q,
                k,
                v,
                grad,
                *results,
                *shared,
                *(s for x in results for s in x.stride()[:3]),
                *counts,
                BLOCK_Q=config.block_q,
                BLOCK_K=config.block_k,
                EVEN=looped[0].shape[2] % inner == 0,
                TMA=tma,
                SPECIALIZE=config.specialize,
                **sizes,
                **config.launch,
            )
    return dq, dk, dv, dots
