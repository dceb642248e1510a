"""The two InfSA layers behind the interface of the compared mechanisms."""

from typing import Any, Unpack

from torch import Tensor

from ...ops import spread
from ..infsa import LinearInfSA, PureInfSA, scale_heads, split_heads, spread_rows
from .base import Attention, Scaffold
from .layout import Grid, Layout


class Options(Scaffold, total=False):
    """The constructor arguments that both layers share."""

    gamma: float
    learn_gamma: bool
    activation: str
    impl: str


class PureOptions(Options, total=False):
    """Those of Pure InfSA."""

    hops: float
    dropout: float


class LinearOptions(Options, total=False):
    """Those of Linear-InfSA."""

    tied: bool
    key_rank: int
    iterations: int
    queries: int


class InfSAAttention(Attention):
    """An InfSA layer among the mechanisms: the class after this one in a list of bases."""

    def __init__(self, dim: int, num_heads: int, *, grid: Grid, num_prefix: int = 1, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self._describe(dim, num_heads, grid, num_prefix)


class PureInfSAAttention(InfSAAttention, PureInfSA):  # type: ignore[misc]
    """:class:`infsa.nn.PureInfSA` called like the other mechanisms. The map is Â, without γ, whatever ``hops`` is.

    Args:
        dim, num_heads, grid, num_prefix: see :class:`Attention`; ``grid`` changes nothing.
        gamma: see :class:`infsa.nn.PureInfSA`, as for all that follow.
        learn_gamma: learn one γ per head.
        activation: with ``"gelu"`` weights can be negative; maps clamp them at zero.
        hops: path lengths summed inside the layer.
        dropout: on the attention weights, in training.
        impl: which implementation runs.

    Example:
        >>> PureInfSAAttention(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "infsa_pure"

    def __init__(self, dim: int, num_heads: int, **options: Unpack[PureOptions]) -> None:
        super().__init__(dim, num_heads, **options)

    def _output(self, x: Tensor, layout: Layout) -> Tensor:
        return PureInfSA.forward(self, x, layout.key_mask)

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        return self._joined(x, layout.key_mask)

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        return PureInfSA.weights(self, x, layout.key_mask)

    def _values(self, x: Tensor) -> Tensor:
        return scale_heads(self._project(x)[2], self.decay())


class LinearInfSAAttention(InfSAAttention, LinearInfSA):  # type: ignore[misc]
    """:class:`infsa.nn.LinearInfSA` called like the other mechanisms. The map is a: one row, or N with ``queries`` > 1.

    Args:
        dim, num_heads, grid, num_prefix: see :class:`Attention`; ``grid`` changes nothing.
        tied: see :class:`infsa.nn.LinearInfSA`, as for all that follow.
        key_rank: rank of the difference between keys and queries.
        gamma: decay.
        learn_gamma: learn one γ per head.
        activation: with ``"gelu"`` weights can be negative; maps clamp them at zero.
        iterations: scoring rounds.
        queries: central queries per head.
        impl: which implementation runs.

    Example:
        >>> LinearInfSAAttention(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "infsa_linear"

    def __init__(self, dim: int, num_heads: int, **options: Unpack[LinearOptions]) -> None:
        super().__init__(dim, num_heads, **options)

    def _output(self, x: Tensor, layout: Layout) -> Tensor:
        return spread_rows(*self._rows(x, layout.key_mask, False))

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        return spread_rows(*self._joined_rows(x, layout.key_mask, False))

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        weights = LinearInfSA.weights(self, x, layout.key_mask)
        if self.queries == 1:
            return weights.unsqueeze(2)
        _, groups = self._rows(x, layout.key_mask, False)
        return spread(weights, groups, layout.key_mask)

    def _values(self, x: Tensor) -> Tensor:
        return scale_heads(split_heads(self.v(x), self.num_heads), self.decay())
