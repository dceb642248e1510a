"""Host memory to the device without stopping it: pinned buffers, a stream for copies, and few tiles under way."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

RING = 3  # tiles whose copies or computation may be under way at once


class Upload:
    """Brings host tensors to a device. On the CPU they are there already.

    On a GPU copies run on a stream of their own, beside the computation. Before a copy starts the host waits until the
    tile three before it is computed, so that copies never fill the device's memory.

    Args:
        device: where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self.cuda else None
        self._under_way: deque[Any] = deque()

    def pinned(self, x: Tensor) -> Tensor:
        """The same in pinned memory if the device is a GPU and x is not there; called by reader threads."""
        return x.contiguous().pin_memory() if self.cuda and x.device.type == "cpu" and not x.is_pinned() else x

    def __call__(self, x: Tensor, after: Any = None) -> Tensor:
        """x on the device; ``after`` is an event that the copy has to wait for."""
        if not self.cuda:
            return x.to(self.device)
        main = torch.cuda.current_stream(self.device)
        mark = torch.cuda.Event()
        mark.record(main)  # all tiles before this one
        self._under_way.append(mark)
        if len(self._under_way) > RING:
            self._under_way.popleft().synchronize()
        if x.is_cuda:
            return x
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            moved = x.to(self.device, non_blocking=True)
        main.wait_stream(self._stream)
        moved.record_stream(main)
        return moved
