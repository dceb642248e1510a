"""What is measured and how: the settings of the three instruments, kept with every result."""

from dataclasses import dataclass

from ..ops.checks import check_choice
from .alignment import POWER_STEPS
from .fills import FILLS
from .maps import check_methods
from .perturbation import SCORES, level_counts


@dataclass(frozen=True)
class Removal:
    """How MoRF and LeRF are measured; the defaults are this project's conventions.

    Example:
        >>> Removal(fill="tokens").levels
        20
    """

    fill: str = "mean"
    levels: int = 20
    score: str = "probability"  # of the class that the model predicts for the whole image
    methods: tuple[str, ...] = ("last",)
    draws: int = 3  # orders of patches with equal scores; a map without ties has one order
    random_draws: int = 1  # random orders per image: the baseline
    only_correct: bool = True
    min_probability: float = 0.1  # of the intact image
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("fill", self.fill, FILLS)
        check_methods(self.methods)
        level_counts(1, self.levels)
        check_choice("score", self.score, SCORES)
        for name in ("draws", "random_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")


@dataclass(frozen=True)
class Boxes:
    """Which maps are compared with boxes.

    Example:
        >>> Boxes(methods=("last", "rollout")).seed
        0
    """

    methods: tuple[str, ...] = ("last",)
    seed: int = 0

    def __post_init__(self) -> None:
        check_methods(self.methods)


@dataclass(frozen=True)
class Aligning:
    """How alignment with the Perron vector is measured.

    Example:
        >>> Aligning().steps
        200
    """

    steps: int = POWER_STEPS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, got {self.steps}")


Settings = Removal | Boxes | Aligning
