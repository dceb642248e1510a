"""Infinite Self-Attention: attention as diffusion on a token graph.

``import infsa`` loads torch and the operators; the other packages load on first use. The models register
with timm as soon as both packages are imported.
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
from .timm_hook import register_when_timm_loads
from .version import __version__

if TYPE_CHECKING:
    from . import bench, data, evaluate, graph, models, nn, ops, parallel, streaming, train
    from .convert import convert, plan_conversion, revert
    from .models import create_model, list_models
    from .streaming import stream

__all__ = [
    "LinearState",
    "PureDecodeState",
    "__version__",
    "bench",
    "convert",
    "create_model",
    "data",
    "evaluate",
    "graph",
    "linear_attention",
    "linear_weights",
    "list_models",
    "models",
    "nn",
    "ops",
    "parallel",
    "plan_conversion",
    "pure_attention",
    "pure_weights",
    "revert",
    "stream",
    "streaming",
    "train",
]

_LAZY_MODULES = frozenset(
    {"bench", "convert", "data", "evaluate", "graph", "models", "nn", "parallel", "streaming", "train"}
)
_LAZY_NAMES = {
    "create_model": "models",
    "list_models": "models",
    "stream": "streaming",
    "plan_conversion": "convert",
    "revert": "convert",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


register_when_timm_loads()
