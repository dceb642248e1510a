"""Training: recipes, a Lightning engine, and checkpoints that survive crashes."""

import importlib
from typing import TYPE_CHECKING, Any

from .recipe import RECIPES, WEIGHT_DECAYS, Recipe, read_recipe

if TYPE_CHECKING:
    from .ablate import PAPER_SWEEPS, Study, run_study
    from .checkpoint import DamagedCheckpoint, list_checkpoints, newest_checkpoint, read_checkpoint
    from .fit import Run, train

__all__ = [
    "PAPER_SWEEPS",
    "RECIPES",
    "WEIGHT_DECAYS",
    "DamagedCheckpoint",
    "Recipe",
    "Run",
    "Study",
    "list_checkpoints",
    "newest_checkpoint",
    "read_checkpoint",
    "read_recipe",
    "run_study",
    "train",
]

_LAZY = {  # a recipe needs no torch, a checkpoint no Lightning
    "PAPER_SWEEPS": "ablate",
    "Study": "ablate",
    "run_study": "ablate",
    "DamagedCheckpoint": "checkpoint",
    "list_checkpoints": "checkpoint",
    "newest_checkpoint": "checkpoint",
    "read_checkpoint": "checkpoint",
    "Run": "fit",
    "train": "fit",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"training needs the package {error.name}: pip install '.[train]' in a checkout") from error
