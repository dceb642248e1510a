"""Pure InfSA forward: the launches of ``triton_forward_kernels`` for one kind of call."""

import functools
import math
from typing import Any

import torch
import triton
from torch import Tensor

from ..triton.configs import Config, default_config, padded_width, split_width
from ..triton.launch import Launch
from ..triton.layout import describable, on_device
from ..triton.parts import NUMBERS
from .triton_forward_kernels import pure_rows, pure_scale

PLANS = 512  # kinds of calls whose launches are kept
CACHE = 2**23  # bytes of keys and values that causal programs of several heads may share: a part of the L2 cache
Strides = tuple[int, ...]
Inputs = tuple[Tensor, Tensor, Tensor, float | Tensor, Tensor | None]  # q, k, v, γ, and for the row norm ``seen``


class Forward:
    """What a repeated call need not ask again: sizes, tiles, grids, compiled kernels."""

    def __init__(
        self,
        q: torch.Size,
        k: torch.Size,
        v: torch.Size,
        strides: tuple[Strides, Strides, Strides],
        dtype: torch.dtype,
        device: torch.device,
        aligned: bool,
        gamma: int | None,
        seen: tuple[int, int] | None,
        activation: str,
        is_causal: bool,
        eps: float,
        config: Config | None,
    ) -> None:
        batch, self.heads, self.n_q, self.width = q
        self.n_k, self.value_width = k[2], v[3]
        self.strides, self.dtype, self.device, self.aligned = strides, dtype, device, aligned
        self.gamma, self.seen, self.activation, self.is_causal, self.eps = (
            gamma,
            seen,
            activation,
            is_causal,
            float(eps),
        )
        self.items = batch * self.heads
        widths = [(width, *split_width(width)) for width in (self.width, self.value_width)]
        self.widest, self.unit = max(tile + rest for _, tile, rest in widths), 1 / math.sqrt(self.width)
        self.sizes = {"VALUE_WIDTH": self.value_width, "VALUE_PADDED": padded_width(self.value_width)}
        self.widths = {"WIDTHS": widths[0], "VALUE_WIDTHS": widths[1], "ACTIVATION": NUMBERS[activation]}
        head_bytes = self.n_k * (self.width + self.value_width) * dtype.itemsize
        self.group = max(1, min(self.items, CACHE // head_bytes)) if is_causal else 1  # heads whose blocks take turns
        self.decay = {"LEARNED": gamma is not None}

        config = config or default_config("forward", self.widest, dtype, device.index, is_causal)
        blocks = triton.cdiv(self.n_q, config.block_q)
        tokens = self.items * self.n_q
        self.scratch = (
            tokens + tokens % 2 + 2 * self.items * blocks
        )  # norms of rows, then float64 sums of their squares
        self.norms = (batch, self.heads, self.n_q if is_causal or seen is not None else 1)
        self.z_shape = (batch, self.heads, self.n_q, self.value_width)
        beside = self.heads * self.value_width  # heads lie beside each other: merging them is a view
        self.z_strides = (self.n_q * beside, self.value_width, beside, 1)
        root_keys = 2.0 ** math.ceil(math.log2(self.n_k) / 2)  # a power of two, so that taking it back is exact
        steps = [step for x in (*strides, self.z_strides) for step in x[:3]]
        tma = config.tma and aligned and describable(dtype, *strides[1:])
        tiles = {"BLOCK_Q": config.block_q, "BLOCK_K": config.block_k, "EVEN": self.n_k % config.block_k == 0}
        ways = {"TMA": tma, "SPECIALIZE": config.specialize, "LANES": config.lanes, "CAUSAL": is_causal}
        range_ = {"HEADROOM": 2 ** math.ceil(math.log2(2 * math.sqrt(self.width))), "SCALED": dtype != torch.bfloat16}
        grid = (self.items * blocks,)
        numbers = (*steps, self.heads, self.group, self.n_q, self.n_k, self.unit, 1 / root_keys)
        self.rows = Launch(pure_rows, grid, numbers, range_ | self.widths | tiles | ways | config.launch, device, tma)
        numbers = (*self.z_strides[:3], gamma or 0, *(seen or (0, 0)), self.heads, self.n_q, root_keys, self.eps)
        blocked = {"BLOCK_Q": config.block_q, "CAUSAL": is_causal, "BY_ROW": seen is not None, "num_warps": 4}
        self.scale = Launch(pure_scale, grid, numbers, self.sizes | blocked | self.decay, device)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, seen: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Z (B, H, Nq, dv) in the type of q, and the norms F: (B, H, 1); causal or by row (B, H, Nq).

        γ is a number or float32, 1 or H of them. ``seen``, float64 (B or 1, Nq or 1), asks for the row norm: the number
        of keys that each query may see. Channels must lie beside each other in memory.
        """
        z = torch.empty_strided(self.z_shape, self.z_strides, dtype=self.dtype, device=self.device)
        norm = torch.empty(self.norms, dtype=torch.float32, device=self.device)
        if self.items == 0:
            return z, norm
        scratch = torch.empty(self.scratch, dtype=torch.float32, device=self.device)
        decay, number = place_and_number(gamma, norm)
        with on_device(q):
            self.rows(q, k, v, z, scratch)
            self.scale(z, scratch, decay, norm, norm if seen is None else seen, numbers=number)
        return z, norm


forward_plan = functools.lru_cache(PLANS)(Forward)


def gamma_steps(gamma: float | Tensor) -> int | None:
    """The stride over heads of a γ in memory, None for a number."""
    return None if not isinstance(gamma, Tensor) else 0 if gamma.numel() == 1 else gamma.stride(0)


def place_and_number(gamma: float | Tensor, other: Tensor) -> tuple[Tensor, tuple[float]]:
    """γ as kernels take it: where it lies and what it is; of a number and a tensor only one is read."""
    return (gamma, (0.0,)) if isinstance(gamma, Tensor) else (other, (gamma,))


def seen_steps(seen: Tensor | None) -> tuple[int, int] | None:
    """Strides over (B, Nq), zero where all share one number."""
    if seen is None:
        return None
    batch, row = (0 if size == 1 else step for size, step in zip(seen.shape, seen.stride(), strict=True))
    return batch, row


def plan_for(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: float | Tensor,
    seen: Tensor | None,
    *options: Any,
    config: Config | None = None,
) -> Forward:
    """The plan of a call; ``options`` are activation, causality and ε."""
    strides = (q.stride(), k.stride(), v.stride())
    aligned = (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15 == 0
    fixed = (q.dtype, q.device, aligned, gamma_steps(gamma), seen_steps(seen))
    return forward_plan(q.shape, k.shape, v.shape, strides, *fixed, *options, config)
