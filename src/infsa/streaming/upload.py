"""Host memory to the device without stopping it: pinned buffers, a stream for copies, and few tiles under way."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

RING = 3  # tiles whose copies or computation may be under way beside the newest


class Ring:
    """Events of a GPU, of which few are outstanding."""

    def __init__(self) -> None:
        self._under_way: deque[Any] = deque()

    def add(self, stream: Any) -> Any:
        """Mark what a stream has been given so far; wait until what it was given some marks before is done."""
        mark = torch.cuda.Event()
        mark.record(stream)
        self._under_way.append(mark)
        if len(self._under_way) > RING:
            self._under_way.popleft().synchronize()
        return mark


class Upload:
    """Brings host tensors to a device. On the CPU they are there already.

    On a GPU copies run on a stream of their own, beside the computation.

    Args:
        device: where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self.cuda else None
        self._ring = Ring()

    def turn(self) -> None:
        """Called before each tile: the computation may lag only some tiles behind, so that copies fill no memory."""
        if self.cuda:
            self._ring.add(torch.cuda.current_stream(self.device))

    def pinned(self, x: Tensor) -> Tensor:
        """The same in pinned memory if the device is a GPU and x is not there; called by reader threads."""
        if not self.cuda or x.device.type != "cpu" or x.is_pinned():
            return x
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x)  # a part of a band is copied once

    def __call__(self, x: Tensor, after: Any = None) -> Tensor:
        """x on the device; ``after`` is an event that the copy has to wait for."""
        if not self.cuda or x.is_cuda:
            return x.to(self.device)
        main = torch.cuda.current_stream(self.device)
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            moved = x.to(self.device, non_blocking=True)
        main.wait_stream(self._stream)
        moved.record_stream(main)
        return moved


class Download:
    """Brings tensors of a GPU to pinned host memory, beside the computation too."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._ring = Ring()

    def __call__(self, x: Tensor, target: Tensor) -> Any:
        """Start to copy; the event after which the target holds x."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(x.device)
        self._stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self._stream):
            target.copy_(x, non_blocking=True)
        x.record_stream(self._stream)
        return self._ring.add(self._stream)


def pinned_bytes(size: int) -> int:
    """What so many bytes of pinned memory take: the allocator hands out powers of two."""
    return 1 << (size - 1).bit_length() if size else 0
