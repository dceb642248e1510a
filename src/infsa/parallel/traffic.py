"""How much a rank sends."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SENT = {  # which argument of an operation holds what a rank hands over
    "allreduce_": 0,
    "send": 0,
    "broadcast_": 0,
    "allgather_": 1,
    "_allgather_base_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
}


class Traffic(TorchDispatchMode):
    """Counts what this rank hands to torch.distributed, per operation: calls and payload bytes.

    What goes over the wire depends on the backend; a ring all-reduce of P ranks sends 2 (P − 1) / P times its payload.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note an operation of torch.distributed and run it."""
        name = func._opname if getattr(func, "namespace", "") == "c10d" else ""  # type: ignore[attr-defined]
        if name in SENT:
            tensors = [leaf for leaf in tree_leaves(args[SENT[name]]) if isinstance(leaf, Tensor)]
            self.calls[name] += 1
            self.bytes[name] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return func(*args, **(kwargs or {}))
