"""What the launches share: layouts of inputs and outputs, the device, memory for descriptors."""

import contextlib
from typing import Any

import torch
import triton
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


def describable(*tensors: Tensor) -> bool:
    """Whether the tensors' layouts fit tensor descriptors: addresses and strides in steps of 16 bytes."""
    return all(
        x.data_ptr() % 16 == 0 and all(s > 0 and s * x.element_size() % 16 == 0 for s in x.stride()[:-1])
        for x in tensors
    )


def on_device(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Launch on the GPU that holds x."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else contextlib.nullcontext()


def allow_descriptors(x: Tensor) -> None:
    """Give Triton the scratch memory that descriptors built on the GPU need."""
    device = x.device  # Triton keeps the function, which must not keep x
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=device))
