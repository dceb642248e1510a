"""Infinite Self-Attention: attention as diffusion on a token graph.

Everything loads on first use: ``import infsa`` alone loads not even torch, ``infsa.pure_attention`` loads torch and the
operators. The models register with timm as soon as both packages are imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .timm_hook import register_when_timm_loads
from .version import __version__

if TYPE_CHECKING:
    from . import bench, cohort, conversion, data, evaluate, graph, models, nn, ops, parallel, streaming, train
    from .conversion import convert, plan_conversion, revert
    from .models import create_model, list_models
    from .ops import LinearState, PureDecodeState, linear_attention, linear_weights, pure_attention, pure_weights
    from .streaming import stream

__all__ = [
    "LinearState",
    "PureDecodeState",
    "__version__",
    "bench",
    "cohort",
    "conversion",
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

_NAMES = {  # public names and the packages that define them
    "LinearState": "ops",
    "PureDecodeState": "ops",
    "linear_attention": "ops",
    "linear_weights": "ops",
    "pure_attention": "ops",
    "pure_weights": "ops",
    "create_model": "models",
    "list_models": "models",
    "stream": "streaming",
    "convert": "conversion",
    "plan_conversion": "conversion",
    "revert": "conversion",
}
_PACKAGES = frozenset(__all__) - {"__version__", *_NAMES}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value  # found at once from here on
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


register_when_timm_loads()
