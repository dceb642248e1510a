"""What a conversion is asked for: the variant, its parameters, and how deep the change may go."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..nn.multihead import check_variant
from ..ops.checks import check_activation, check_eps, check_gamma
from ..ops.dispatch import check_impl

Variant = Literal["pure", "linear"]
Level = Literal["swap", "surgery"]
Norm = Literal["auto", "frobenius", "row"]


@dataclass(frozen=True)
class Settings:
    """The options of :func:`infsa.convert`, checked.

    Attributes:
        variant: ``"pure"`` or ``"linear"``.
        norm: for Pure. ``"frobenius"`` is the paper's norm, which all queries of a call share (causal ones: all up to
            theirs); ``"row"`` divides each query's weights by their own norm, and couples nothing. ``"auto"`` takes
            the paper's norm for the layers that it is safe in, the row norm for the others; the plan says which.
        pool_queries: for Linear: allow cross-attention where queries may have to be independent of each other. Every
            query of a call then enters every output.
        gamma: decay, in (0, 1); the starting value if learned.
        learn_gamma: learn one γ per head.
        activation: ``"relu"``, ``"gelu"`` or ``"abs"``.
        level: ``"swap"`` keeps every projection. ``"surgery"``, for Linear self-attention, folds the query and key
            projections into one, the form of the paper, which changes the scores.
        chunk_size: tokens per chunk of causal Linear-InfSA; without it causal calls are refused.
        eps: ε.
        impl: see :func:`infsa.pure_attention`.

    Example:
        >>> Settings("linear", gamma=0.9).variant
        'linear'
    """

    variant: Variant = "pure"
    norm: Norm = "auto"
    pool_queries: bool = False
    gamma: float = 0.7
    learn_gamma: bool = False
    activation: str = "relu"
    level: Level = "swap"
    chunk_size: int | None = None
    eps: float = 1e-6
    impl: str = "auto"

    def __post_init__(self) -> None:
        check_variant(self.variant, self.norm, self.pool_queries, self.chunk_size)
        if self.level not in ("swap", "surgery"):
            raise ValueError(f"level must be 'swap' or 'surgery', got {self.level!r}")
        if self.level == "surgery" and self.variant == "pure":
            raise ValueError(f"level='surgery' (--surgery) needs variant='linear', got variant={self.variant!r}")
        check_gamma(self.gamma)
        check_activation(self.activation)
        check_eps(self.eps)
        check_impl(self.impl, self.variant)

    @classmethod
    def saved(cls, fields: dict[str, Any]) -> "Settings":
        """The settings that a file holds; one that names no norm was written when there was the paper's only.

        Example:
            >>> Settings.saved({"variant": "pure", "gamma": 0.9}).norm
            'frobenius'
        """
        older = {"norm": "frobenius"} if fields.get("variant", "pure") == "pure" else {}
        return cls(**{**older, **fields})

    @property
    def formula(self) -> dict[str, Any]:
        """What the operators take of the settings, and their functions for weights too."""
        norm = {"norm": "row" if self.norm == "row" else "frobenius"} if self.variant == "pure" else {}
        return {"activation": self.activation, "eps": self.eps, **norm}

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        return asdict(self)
