"""Mechanisms between projections: what they share beyond the interface."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.dtypes import accumulation_dtype, cast_output
from ..infsa import project_out, split_heads
from .base import Attention, Scaffold
from .layout import Grid, Layout


class CoreAttention(Attention):
    """A mechanism that mixes tokens before an output projection ``proj`` (and ``extra``, if asked for)."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: Grid,
        num_prefix: int = 1,
        bias: bool = True,
        extra_proj: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._describe(dim, num_heads, grid, num_prefix)
        self.extra = nn.Linear(dim, dim, bias=bias, device=device, dtype=dtype) if extra_proj else None
        self.proj = nn.Linear(dim, dim, bias=bias, device=device, dtype=dtype)

    def _output(self, x: Tensor, layout: Layout) -> Tensor:
        y = project_out(self._mix(x, layout), self.extra, self.proj)
        return cast_output(y, y.dtype)  # saturates in float16, as the core did


class QKVAttention(CoreAttention):
    """A mechanism whose queries, keys and values are three projections, kept as one."""

    def __init__(self, dim: int, num_heads: int, **scaffold: Unpack[Scaffold]) -> None:
        super().__init__(dim, num_heads, **scaffold)
        self.qkv = nn.Linear(dim, 3 * dim, **linear_options(scaffold))

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v: (B, H, N, d) each, views."""
        return tuple(split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, -1))

    def _values(self, x: Tensor) -> Tensor:
        weight = self.qkv.weight[2 * self.dim :]
        bias = None if self.qkv.bias is None else self.qkv.bias[2 * self.dim :]
        return split_heads(F.linear(x, weight, bias), self.num_heads)


def linear_options(scaffold: Scaffold) -> dict[str, Any]:
    """What the projections of a mechanism are built with."""
    return {"bias": scaffold.get("bias", True), **factory(scaffold)}


def factory(scaffold: Scaffold) -> dict[str, Any]:
    """What its tensors are built with."""
    return {"device": scaffold.get("device"), "dtype": scaffold.get("dtype")}


def depthwise_kernel(channels: int, size: int, scaffold: Scaffold, *, bias: bool = True) -> nn.Conv2d:
    """A convolution of each channel by itself, the size of the image kept."""
    if size < 1 or size % 2 == 0:
        raise ValueError(f"kernel_size must be odd, got {size!r}")
    return nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels, bias=bias, **factory(scaffold))


def upcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the accumulation dtype of the first."""
    dtype = accumulation_dtype(tensors[0].dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def exact(x: Tensor) -> torch.autocast:
    """A context in which autocast does not bring half precision back."""
    return torch.autocast(x.device.type, enabled=False)
