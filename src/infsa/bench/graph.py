"""The eager model as one CUDA graph: the same kernels, launched once, without a compiler that may rewrite them."""

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 3  # calls before the capture: libraries choose their algorithms and claim their workspaces


def check_device(device: torch.device | str) -> None:
    """Refuse a device that has no CUDA graphs.

    Example:
        >>> check_device("cpu")
        Traceback (most recent call last):
        ValueError: compile='graph' replays a CUDA graph and needs a CUDA device, got 'cpu'
    """
    kind = torch.device(device).type
    if kind != "cuda":
        raise ValueError(f"compile='graph' replays a CUDA graph and needs a CUDA device, got {kind!r}")


def replayed(call: Callable[[], None], device: torch.device | str, cuda: Any = torch.cuda) -> Callable[[], None]:
    """Capture one call, a forward pass or a whole training step, and return what replays it.

    The call must read and write the same tensors every time. ``cuda`` is ``torch.cuda``, or in tests what stands in
    for it.
    """
    check_device(device)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UPS):
            call()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        call()
    return graph.replay
