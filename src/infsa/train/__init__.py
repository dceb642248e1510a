"""Training: recipes, a Lightning engine, and checkpoints that survive anything."""

import importlib
from typing import TYPE_CHECKING, Any

from .checkpoint import DamagedCheckpoint, list_checkpoints, newest_checkpoint, read_checkpoint
from .recipe import RECIPES, WEIGHT_DECAYS, Recipe, read_recipe

if TYPE_CHECKING:
    from .ablate import PAPER_SWEEPS, Study, run_study
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

_ENGINE = {"Run": "fit", "train": "fit", "PAPER_SWEEPS": "ablate", "Study": "ablate", "run_study": "ablate"}


def __getattr__(name: str) -> Any:  # the engine needs Lightning, recipes do not
    if name not in _ENGINE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_ENGINE[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"training needs the package {error.name}: pip install 'infsa[train]'") from error
