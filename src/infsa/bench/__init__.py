"""Speed, memory, energy and multiply-adds of the compared mechanisms."""

from .cases import NINE, VARIANTS, Case
from .flops import count, flop_crossover, formula
from .memory import largest
from .presets import PRESETS
from .results import read_results
from .settings import Settings
from .suite import run_plan

__all__ = [
    "NINE",
    "PRESETS",
    "VARIANTS",
    "Case",
    "Settings",
    "count",
    "flop_crossover",
    "formula",
    "largest",
    "read_results",
    "run_plan",
]
