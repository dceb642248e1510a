"""Replace the attention of existing models by InfSA, and say exactly what changed."""

from .convert import convert, converted_layers, revert
from .families import Family, LayerPlan
from .infvit import as_infvit
from .plan import ConversionPlan, plan_conversion
from .settings import Settings
from .store import load_converted, open_model, save_converted

__all__ = [
    "ConversionPlan",
    "Family",
    "LayerPlan",
    "Settings",
    "as_infvit",
    "convert",
    "converted_layers",
    "load_converted",
    "open_model",
    "plan_conversion",
    "revert",
    "save_converted",
]
