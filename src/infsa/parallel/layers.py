"""The two attention layers with their tokens spread over ranks: same parameters, same names, another forward."""

from torch import Tensor, nn

from ..nn.infsa import LinearInfSA, PureInfSA, merge_heads, project_out, project_values, scale_heads, zero_padding
from ..nn.peers.infsa import LinearInfSAAttention, PureInfSAAttention
from ..ops import Pooled
from .linear import central_pool
from .ranks import Group, Ranks
from .ring import pure_attention
from .strips import Strips


class ShardedLinearInfSA(LinearInfSA):
    """:class:`infsa.nn.LinearInfSA` on this rank's tokens; made by :func:`shard_layers`."""

    ranks: Ranks

    def _pooled_values(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        """γ Σ a_j v_j over the tokens of all ranks, each of which projects what it pooled before it sends it."""
        if is_causal:
            raise ValueError("is_causal=True is supported over several ranks for Pure InfSA only, not for Linear-InfSA")
        x = zero_padding(x, key_mask)
        q, k = self._project(x)
        pooled = central_pool(
            q,
            k,
            x.unsqueeze(1),
            group=self.ranks,
            activation=self.activation,
            key_mask=key_mask,
            iterations=self.iterations,
            queries=self.queries,
            eps=self.eps,
            project=lambda mean: self._project_pooled(mean, mean.new_zeros(mean.shape[:3])),
        )
        bias = self._project_pooled(x.new_zeros(*pooled.mass.shape, x.shape[2]), pooled.mass)
        return scale_heads(pooled.mean.to(bias.dtype) + bias, self.decay()), pooled.groups

    def _project_pooled(self, mean: Tensor, mass: Tensor) -> Tensor:
        """mean W_Vᵀ + mass b_V, head by head."""
        return project_values(Pooled(mean, mass, None), self.v, self.num_heads)


class ShardedPureInfSA(PureInfSA):
    """:class:`infsa.nn.PureInfSA` on this rank's tokens; made by :func:`shard_layers`."""

    ranks: Ranks

    def _joined(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        tokens: tuple[int, ...] | None = None,
    ) -> Tensor:
        """The heads before the output projection for x (B, N, D), N this rank's tokens, which may be none."""
        if attn_mask is not None:
            raise ValueError("attn_mask is not supported over several ranks; key_mask and is_causal are")
        if self.norm != "frobenius":
            raise ValueError(f"only norm='frobenius' is supported over several ranks, got norm={self.norm!r}")
        if self.training and self.dropout > 0:
            raise ValueError(f"dropout on attention weights is not supported over several ranks, got {self.dropout}")
        q, k, v = self._project(zero_padding(x, key_mask))
        z = pure_attention(
            q,
            k,
            v,
            group=self.ranks,
            tokens=tokens,
            gamma=self.decay(),
            activation=self.activation,
            key_mask=key_mask,
            is_causal=is_causal,
            hops=int(self.hops),
            eps=self.eps,
        )
        return merge_heads(z)


class ShardedLinearAttention(ShardedLinearInfSA, LinearInfSAAttention):  # type: ignore[misc]
    """The mechanism ``infsa_linear`` of a model on this rank's strip; made by :func:`infsa.parallel.shard_model`."""

    def forward(self, x: Tensor, grid: Strips, num_prefix: int = 1, key_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Attend: x (B, N, D) -> (B, N, D), N = the tokens of this rank's strip."""
        return ShardedLinearInfSA.forward(self, x, key_mask)


class ShardedPureAttention(ShardedPureInfSA, PureInfSAAttention):  # type: ignore[misc]
    """The mechanism ``infsa_pure`` of a model on this rank's strip; made by :func:`infsa.parallel.shard_model`."""

    def forward(self, x: Tensor, grid: Strips, num_prefix: int = 1, key_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Attend: x (B, N, D) -> (B, N, D), N = the tokens of this rank's strip."""
        return project_out(self._joined(x, key_mask, tokens=grid.tokens), self.extra, self.proj)


SHARDED: dict[type[nn.Module], type[nn.Module]] = {
    LinearInfSA: ShardedLinearInfSA,
    PureInfSA: ShardedPureInfSA,
    LinearInfSAAttention: ShardedLinearAttention,
    PureInfSAAttention: ShardedPureAttention,
}


def shard_layers(module: nn.Module, group: Group) -> nn.Module:
    """Make every InfSA layer inside your own module attend to the tokens of all ranks; changes it in place.

    Other layers must process tokens independently. Parameters and their names stay. For an InfViT, whose positions and
    pooling depend on the whole image, use :func:`infsa.parallel.shard_model`.
    """
    layers = [layer for layer in module.modules() if type(layer) in (LinearInfSA, PureInfSA)]
    if not layers:
        raise ValueError(f"{type(module).__name__} holds no LinearInfSA or PureInfSA layer")
    shard_each(layers, Ranks.of(group))
    return module


def shard_each(layers: list[nn.Module], ranks: Ranks) -> None:
    """Give each layer its sharded class, after all have been checked."""
    for layer in layers:
        if layer.impl not in ("auto", "chunked"):
            raise ValueError(f"impl must be 'auto' or 'chunked' over several ranks, got {layer.impl!r}")
        if getattr(layer, "hops", 1) == float("inf"):
            raise ValueError("hops=inf is not supported over several ranks; a finite number of hops is")
    for layer in layers:
        layer.ranks = ranks  # type: ignore[assignment]
        layer.__class__ = SHARDED[type(layer)]  # as torch's fully_shard does: hooks, names and parameters stay
