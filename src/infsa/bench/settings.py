"""How long and how often a run measures."""

from dataclasses import dataclass
from typing import Any

from .energy import WINDOW


@dataclass(frozen=True)
class Settings:
    """How long and how often rows are measured.

    Example:
        >>> Settings(budget=280).rounds
        3
    """

    seconds: float = 0.25  # of timed calls per row and round
    rounds: int = 3
    window: float = WINDOW  # seconds of an energy window
    row_limit: float = 180.0  # seconds after which a row is given up
    budget: float | None = None  # seconds after which no further row is started
    cap: int | None = None  # bytes of memory in limit rows; None: all there is
    limit_seconds: float = 10.0  # that a call may take in limit rows
    tolerance: float = 0.03  # of the side, in limit rows
    most: int = 65536  # pixels: no larger side is tried in limit rows
    retry: bool = False  # measure failed rows again

    def __post_init__(self) -> None:
        for name in ("seconds", "window", "row_limit", "limit_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if self.rounds < 1:
            raise ValueError(f"rounds must be 1 or more, got {self.rounds!r}")
        if self.budget is not None and not self.budget >= 0:
            raise ValueError(f"budget must be 0 or more seconds, got {self.budget!r}")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"a memory cap must be positive, got {self.cap / 2**30:g} GiB")

    @property
    def terms(self) -> dict[str, Any]:
        """What a search depends on."""
        return {"cap_bytes": self.cap, "limit_seconds": self.limit_seconds}
