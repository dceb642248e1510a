"""Infinite Self-Attention: attention as diffusion on a token graph.

``import infsa`` loads torch and the operators; ``infsa.nn`` and ``infsa.graph`` load on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .ops import (
    LinearState,
    PureDecodeState,
    linear_attention,
    linear_weights,
    pure_attention,
    pure_weights,
)
from .version import __version__

if TYPE_CHECKING:
    from . import graph, nn, ops

__all__ = [
    "LinearState",
    "PureDecodeState",
    "__version__",
    "graph",
    "linear_attention",
    "linear_weights",
    "nn",
    "ops",
    "pure_attention",
    "pure_weights",
]

_LAZY = frozenset({"graph", "nn"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
