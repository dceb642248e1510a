"""Replace the attention of existing models by InfSA, and say exactly what changed.

The package is itself the function: ``infsa.convert(model)``.
"""

import sys
from types import ModuleType
from typing import Any

from torch import nn

from .convert import convert, converted_layers, revert
from .families import Family
from .plan import ConversionPlan, LayerPlan, plan_conversion
from .settings import Settings
from .store import load_converted, open_model, save_converted

__all__ = [
    "ConversionPlan",
    "Family",
    "LayerPlan",
    "Settings",
    "convert",
    "converted_layers",
    "load_converted",
    "open_model",
    "plan_conversion",
    "revert",
    "save_converted",
]


class _Package(ModuleType):
    """A package that is called as its main function."""

    def __call__(self, model: nn.Module, *arguments: Any, **options: Any) -> nn.Module:
        return convert(model, *arguments, **options)


sys.modules[__name__].__class__ = _Package
