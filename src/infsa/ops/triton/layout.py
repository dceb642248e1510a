"""What the launches share: layouts of inputs and outputs, and the device."""

import contextlib
from typing import Any

import torch
from torch import Tensor


def token_major(like: Tensor, tokens: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty (B, H, N, width) whose heads lie beside each other in memory, so that merging them is a view."""
    return like.new_empty(like.shape[0], tokens, like.shape[1], width, dtype=dtype).transpose(1, 2)


def readable(x: Tensor) -> Tensor:
    """x itself if its channels lie beside each other in memory, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def mask_bytes(mask: Tensor | None, like: Tensor) -> Tensor:
    """A boolean mask as kernels read it; without one, any tensor to stand in its place."""
    return like if mask is None else mask.contiguous().view(torch.uint8)


def describable(dtype: torch.dtype, *strides: tuple[int, ...]) -> bool:
    """Whether tensors of these strides fit tensor descriptors: steps of 16 bytes; so must their addresses."""
    return all(step > 0 and step * dtype.itemsize % 16 == 0 for steps in strides for step in steps[:-1])


def on_device(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Launch on the GPU that holds x."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else contextlib.nullcontext()
