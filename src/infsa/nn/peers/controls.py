"""Controls for the claim that Linear-InfSA is more than pooling: simpler ways to share one vector."""

import math
from typing import Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from ...ops import Pooled, energies
from ...ops.dtypes import cast_output
from ..decay import Decay
from ..infsa import merge_heads, project_values, scale_heads, split_heads
from .base import Scaffold
from .core import CoreAttention, exact, factory, linear_options, upcast
from .layout import Layout, affine, masked_softmax


class Pooling(Scaffold, total=False):
    """The constructor arguments of every mechanism below that pools tokens."""

    gamma: float
    learn_gamma: bool


class PoolAttention(CoreAttention):
    """γ Σ_j a_j v_j given to every token; the subclasses say what a is.

    Tokens are pooled first and projected afterwards, one row per head.
    """

    def __init__(
        self, dim: int, num_heads: int, *, gamma: float = 0.7, learn_gamma: bool = False, **scaffold: Unpack[Scaffold]
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        self.v = nn.Linear(dim, dim, **linear_options(scaffold))
        self.decay = Decay(num_heads, gamma, learn_gamma, **factory(scaffold))

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        weights = self._weights(x, layout)  # (B, H or 1, 1, N)
        with exact(x):
            pooled = Pooled(weights @ upcast(x)[0].unsqueeze(1), weights.sum(-1), None)
        values = project_values(pooled, self.v, self.num_heads)  # (B, H, 1, d)
        return merge_heads(values, self.decay())

    def _values(self, x: Tensor) -> Tensor:
        return scale_heads(split_heads(self.v(x), self.num_heads), self.decay())


class MeanPool(PoolAttention):
    """y = γ mean_j v_j for every token.

    Args:
        dim, num_heads, **scaffold: see :class:`Attention`; ``grid`` changes nothing.
        gamma: decay, in (0, 1); the starting value if learned.
        learn_gamma: learn one γ per head.

    Example:
        >>> MeanPool(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "mean"

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        with exact(x):
            ones = layout.zero_masked(upcast(x.new_ones(x.shape[0], x.shape[1], 1))[0]).mT.unsqueeze(1)
            return (ones / layout.count(ones.mT)).expand(-1, self.num_heads, -1, -1)


class EnergyPool(PoolAttention):
    """y = γ Σ_j a_j v_j for every token, a_j = ‖q_j‖ / (Σ ‖q‖ + ε).

    Args:
        dim, num_heads, **scaffold: see :class:`Attention`; ``grid`` changes nothing.
        gamma: decay, in (0, 1); the starting value if learned.
        learn_gamma: learn one γ per head.
        eps: ε.

    Example:
        >>> EnergyPool(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "energy"

    def __init__(self, dim: int, num_heads: int, *, eps: float = 1e-6, **pooling: Unpack[Pooling]) -> None:
        super().__init__(dim, num_heads, **pooling)
        self.eps = eps
        self.q = nn.Linear(dim, dim, **linear_options(pooling))

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        energy = energies(split_heads(self.q(x), self.num_heads), layout.key_mask).unsqueeze(2)
        return energy / (energy.sum(-1, keepdim=True) + self.eps)


class Fastformer(CoreAttention):
    """y_i = W (g_k ⊙ q_i) + q_i: two rounds of additive attention pool queries, then queries times keys.

        g_q = Σ_j softmax_j(w_q q_j / √d) q_j      p_j = g_q ⊙ k_j      g_k = Σ_j softmax_j(w_k p_j / √d) p_j

    w_q and w_k give one score per head from all D channels; softmax runs over tokens. Products of three
    projections leave the range of float16, so W is applied in float32. The scores have no bias: it would
    cancel.

    Args:
        dim, num_heads, **scaffold: see :class:`Attention`; ``grid`` changes nothing.

    Example:
        >>> Fastformer(192, 3, grid=(14, 14))(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "fastformer"
    no_map = "a query multiplies the pooled keys channel by channel"

    def __init__(self, dim: int, num_heads: int, **scaffold: Unpack[Scaffold]) -> None:
        super().__init__(dim, num_heads, **scaffold)
        self.q = nn.Linear(dim, dim, **linear_options(scaffold))
        self.k = nn.Linear(dim, dim, **linear_options(scaffold))
        self.score_q = nn.Linear(dim, num_heads, bias=False, **factory(scaffold))
        self.score_k = nn.Linear(dim, num_heads, bias=False, **factory(scaffold))

    def _output(self, x: Tensor, layout: Layout) -> Tensor:
        q, k = self.q(x), self.k(x)
        dtype = q.dtype
        with exact(q):
            q, k = upcast(q, k)
            p = self._pool(q, self.score_q, layout) * k
            y = self._pool(p, self.score_k, layout) * q
            if self.extra is not None:
                y = _linear(y, self.extra)
            return cast_output(_linear(y, self.proj) + q, dtype)

    def _pool(self, x: Tensor, score: nn.Linear, layout: Layout) -> Tensor:
        """Σ_j softmax_j(score(x_j) / √d) x_j, head by head: (B, N, D) -> (B, 1, D)."""
        scores = _linear(x, score).mT.unsqueeze(2) / math.sqrt(self.head_dim)  # (B, H, 1, N)
        return merge_heads(masked_softmax(scores, layout.real_keys()) @ split_heads(x, self.num_heads))


def _linear(x: Tensor, linear: nn.Linear) -> Tensor:
    """The layer in the type of x; one that is not a plain ``nn.Linear`` (an adapter, say) is called as it is."""
    if type(linear) is not nn.Linear:
        return linear(x.to(next(linear.parameters()).dtype)).to(x.dtype)
    return F.linear(x, *affine(linear, x.dtype))
