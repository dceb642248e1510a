"""The two attention layers of the paper, (B, N, D) -> (B, N, D)."""

from typing import Any

import torch
from torch import Tensor, nn

from ..ops import central_pool, linear_weights, projected_values, pure_weights, spread
from ..ops.checks import (
    Projection,
    check_activation,
    check_count,
    check_dropout,
    check_eps,
    check_hops,
    check_norm,
    check_token_mask,
    shape_of,
)
from ..ops.dispatch import check_impl, plain_layers
from ..ops.linear import Pooled
from ..ops.linear.projected import project_pooled, scale_heads, split_heads
from ..ops.pure import Norm, packed_attention
from ..ops.rows import linear
from .decay import Decay


def merge_heads(x: Tensor, gamma: float | Tensor = 1.0) -> Tensor:
    """γ x, joined: (B, H, N, d) -> (B, N, H·d), γ a float or (H,)."""
    return scale_heads(x, gamma).transpose(1, 2).flatten(2)


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the masked tokens of x (B, N, D), so that not even NaN in padding reaches a weight's gradient."""
    if mask is None:
        return x
    check_token_mask(mask, "the mask", x.shape[0], x.shape[1], x.device)
    return x.masked_fill(~mask.unsqueeze(-1), 0)


def check_tokens(x: Tensor, dim: int) -> None:
    """Refuse anything but (B, N, dim)."""
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"x must have shape (B, N, {dim}), got {shape_of(x)}")


def project_values(pooled: Pooled, value: nn.Module, num_heads: int) -> Tensor:
    """``project_pooled`` by a module; what is not a plain ``nn.Linear`` (an adapter, a quantised layer) is called.

    Such a module must be affine: f(Σ a x) − f(0) + (Σ a) f(0), on every head's row, of which that head keeps its part.
    """
    if type(value) is nn.Linear:
        return project_pooled(pooled, value.weight, value.bias, num_heads)
    mean = pooled.mean.to(next(value.parameters()).dtype)
    offset = value(torch.zeros_like(mean[:1, :1, :1]))
    full = value(mean) - offset + pooled.mass.to(mean.dtype).unsqueeze(-1) * offset  # (B, H, m, D)
    return full.unflatten(-1, (num_heads, -1)).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def project_out(x: Tensor, extra: nn.Linear | None, proj: nn.Linear) -> Tensor:
    """The output projection, after the extra one where a layer has it."""
    return linear(x if extra is None else linear(x, extra), proj)


def spread_rows(rows: Tensor, groups: Tensor | None) -> Tensor:
    """Give every token the row of its group: (B, m, D) -> (B, N, D); without groups, unchanged."""
    return rows if groups is None else spread(rows.unsqueeze(1), groups).squeeze(1)


def check_divisible(dim: int, num_heads: int) -> None:
    """Refuse a width that the heads do not divide."""
    check_count(dim, "dim")
    check_count(num_heads, "num_heads")
    if dim % num_heads:
        raise ValueError(f"num_heads must divide dim={dim}, got {num_heads}")


class InfSALayer(nn.Module):
    """What both layers have: heads with a decay, and the projections after them."""

    extra: nn.Linear | None

    def __init__(self, variant: str, dim: int, num_heads: int, activation: str, eps: float, impl: str) -> None:
        super().__init__()
        check_divisible(dim, num_heads)
        check_activation(activation)
        check_eps(eps)
        check_impl(impl, variant)
        self.num_heads, self.activation, self.eps, self.impl = num_heads, activation, eps, impl

    def _add_output(self, dim: int, gamma: float, learn_gamma: bool, extra_proj: bool, **options: Any) -> None:
        """Build what follows the heads, with the ``options`` of a projection; last, so that seeds give the same."""
        self.extra = nn.Linear(dim, dim, **options) if extra_proj else None
        self.proj = nn.Linear(dim, dim, **options)
        self.decay = Decay(self.num_heads, gamma, learn_gamma, device=options["device"], dtype=options["dtype"])


class PureInfSA(InfSALayer):
    """Multi-head Pure InfSA: ReLU scores over their Frobenius norm, times γ.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        gamma: decay, in (0, 1); the starting value if learned.
        learn_gamma: learn one γ per head.
        activation: ``"relu"``, ``"gelu"`` or ``"abs"``.
        norm: ``"frobenius"``, the paper's, or ``"row"``; see :func:`infsa.pure_attention`.
        hops: path lengths summed inside the layer; see :func:`infsa.pure_attention`.
        bias: whether the projections have biases.
        extra_proj: one more D×D projection, ``extra``, between the joined heads and the output projection: the
            paper's parameter count.
        dropout: on the attention weights, in training.
        eps: ε.
        impl: see :func:`infsa.pure_attention`.

    Example:
        >>> layer = infsa.nn.PureInfSA(1024, num_heads=16)
        >>> layer(torch.randn(2, 196, 1024)).shape
        torch.Size([2, 196, 1024])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 16,
        *,
        gamma: float = 0.7,
        learn_gamma: bool = False,
        activation: str = "relu",
        norm: Norm = "frobenius",
        hops: float = 1,
        bias: bool = True,
        extra_proj: bool = False,
        dropout: float = 0.0,
        eps: float = 1e-6,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__("pure", dim, num_heads, activation, eps, impl)
        check_norm(norm)
        check_hops(hops)
        check_dropout(dropout, "dropout")
        if dropout > 0 and hops != 1:
            raise ValueError(f"dropout={dropout!r} needs hops=1, got hops={hops!r}")
        self.norm, self.hops, self.dropout = norm, hops, dropout
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.qkv = nn.Linear(dim, 3 * dim, **options)
        self._add_output(dim, gamma, learn_gamma, extra_proj, **options)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D).

        ``key_mask`` (B, N) is True for real tokens. An ``attn_mask`` that forbids every later token is
        recognised as causal, with the prefix norm, even if ``is_causal`` is not set.
        """
        return project_out(self._joined(x, key_mask, attn_mask, is_causal), self.extra, self.proj)

    def _joined(
        self, x: Tensor, key_mask: Tensor | None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The heads before the output projection, γ included: (B, N, D)."""
        z = packed_attention(
            self._packed(zero_padding(x, key_mask)),
            gamma=self.decay(),
            activation=self.activation,
            attn_mask=attn_mask,
            key_mask=key_mask,
            is_causal=is_causal or "auto",
            norm=self.norm,
            hops=self.hops,
            eps=self.eps,
            dropout_p=self.dropout if self.training else 0.0,
            impl=self.impl,
        )
        return merge_heads(z)

    def weights(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Â for inspection: (B, H, N, N), dense."""
        q, k, _ = self._project(zero_padding(x, key_mask))
        return pure_weights(
            q,
            k,
            activation=self.activation,
            attn_mask=attn_mask,
            key_mask=key_mask,
            is_causal=is_causal or "auto",
            norm=self.norm,
            eps=self.eps,
        )

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v as views of one projection: (B, H, N, d) each."""
        return self._packed(x).permute(2, 0, 3, 1, 4).unbind()

    def _packed(self, x: Tensor) -> Tensor:
        """The projection of q, k and v: (B, N, 3, H, d)."""
        check_tokens(x, self.proj.out_features)
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1))


class LowRank(nn.Module):
    """x Aᵀ Bᵀ with A (rank, D) random and B (D, rank) zero at the start: (B, N, D) -> (B, N, D)."""

    def __init__(
        self, dim: int, rank: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, dim, device=device, dtype=dtype))
        self.up = nn.Parameter(torch.empty(dim, rank, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the map zero again."""
        nn.init.trunc_normal_(self.down, std=self.down.shape[1] ** -0.5)
        nn.init.zeros_(self.up)

    def weight(self) -> Tensor:
        """B A: (D, D)."""
        return self.up @ self.down

    def forward(self, x: Tensor) -> Tensor:
        """Apply B A."""
        return nn.functional.linear(nn.functional.linear(x, self.down), self.up)


class LinearInfSA(InfSALayer):
    """Multi-head Linear-InfSA: tokens pooled by centrality, the result given to every token.

    Tokens are pooled before they are projected, so neither the value nor the output projection runs over N
    tokens. Over tokens the output has rank 1 (at most ``queries``), whatever the number of heads.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        tied: share the query and key projection, as in the paper. Untied heads can die: if every score of a
            head is negative, its output is zero.
        key_rank: untie queries and keys in part: keys are the shared queries plus a learned linear map of the tokens of
            this rank, zero at the start; 0, the default, leaves them tied.
        gamma: decay, in (0, 1); the starting value if learned.
        learn_gamma: learn one γ per head.
        activation: ``"relu"``, ``"gelu"`` or ``"abs"``.
        iterations: scoring rounds; see :func:`infsa.linear_attention`.
        queries: central queries per head; see :func:`infsa.linear_attention`.
        chunk_size: tokens per chunk when called with ``is_causal=True``.
        bias: whether the projections have biases.
        extra_proj: one more D×D projection, ``extra``, between the joined heads and the output projection: the
            paper's parameter count.
        eps: ε.
        impl: see :func:`infsa.linear_attention`.

    Example:
        >>> layer = infsa.nn.LinearInfSA(1024, num_heads=64)
        >>> layer(torch.randn(1, 65536, 1024)).shape
        torch.Size([1, 65536, 1024])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 64,
        *,
        tied: bool = True,
        key_rank: int = 0,
        gamma: float = 0.7,
        learn_gamma: bool = False,
        activation: str = "relu",
        iterations: int = 1,
        queries: int = 1,
        chunk_size: int | None = None,
        bias: bool = True,
        extra_proj: bool = False,
        eps: float = 1e-6,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__("linear", dim, num_heads, activation, eps, impl)
        check_count(iterations, "iterations")
        check_count(queries, "queries")
        check_count(key_rank, "key_rank", at_least=0)
        if key_rank and not tied:
            raise ValueError(f"key_rank={key_rank} needs tied=True, got tied=False")
        if chunk_size is not None:
            check_count(chunk_size, "chunk_size")
            if queries > 1 or iterations > 1:
                raise ValueError(
                    f"chunk_size={chunk_size!r} needs queries=1 and iterations=1, got {queries}, {iterations}"
                )
        self.iterations, self.queries, self.chunk_size = iterations, queries, chunk_size
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q = nn.Linear(dim, dim, **options)
        self.k = None if tied else nn.Linear(dim, dim, **options)
        self.key_difference = LowRank(dim, key_rank, device=device, dtype=dtype) if key_rank else None
        self.v = nn.Linear(dim, dim, **options)
        self._add_output(dim, gamma, learn_gamma, extra_proj, **options)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D).

        ``key_mask`` (B, N) is True for real tokens. With one central query the result is an expanded view
        of one row per image: add it, or copy it before writing to it in place.
        """
        return spread_rows(*self._rows(x, key_mask, is_causal)).expand(-1, x.shape[1], -1)

    def context(self, x: Tensor, key_mask: Tensor | None = None, q: Tensor | None = None) -> Tensor:
        """What every token receives, (B, 1, D), for callers that add it by broadcasting.

        Without gradients the queries ``q`` (B, N, D) may be those of another product, in the type of x.
        """
        if self.queries > 1:
            raise ValueError(f"context needs queries=1, this layer has queries={self.queries}")
        if q is None:
            return self._rows(x, key_mask, False)[0]
        projections = self.projections()
        if projections is None:
            raise ValueError("q is for layers of plain projections, this one has adapters or hooks")
        options = {"gamma": self.decay(), "q": q} | self._scoring(key_mask, False)
        values, _ = projected_values(x, self.num_heads, *projections, **options)
        return project_out(values.reshape(x.shape[0], 1, -1), self.extra, self.proj)

    def weights(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The centrality vectors a: (B, H, N), or (B, H, m, N) with ``queries=m``."""
        q, k = self._project(zero_padding(x, key_mask))
        return linear_weights(
            q,
            k,
            activation=self.activation,
            key_mask=key_mask,
            iterations=self.iterations,
            queries=self.queries,
            eps=self.eps,
        )

    def projections(self) -> tuple[Projection, Projection | None, Projection] | None:
        """Weight and bias of queries, keys (None: the queries) and values; None if a module is not a plain Linear."""
        scored = [self.q] if self.k is None else [self.q, self.k]
        if not plain_layers(*scored) or type(self.v) is not nn.Linear:
            return None
        keys = None if self.k is None else _parameters(self.k)
        if self.key_difference is not None:
            keys = (self.q.weight + self.key_difference.weight(), self.q.bias)
        return _parameters(self.q), keys, _parameters(self.v)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_tokens(x, self.proj.out_features)
        q = split_heads(self.q(x), self.num_heads)
        if self.key_difference is not None:
            return q, q + split_heads(self.key_difference(x), self.num_heads)
        return q, q if self.k is None else split_heads(self.k(x), self.num_heads)

    def _rows(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        """The output of each group of tokens (B, m, D), and the group of each token."""
        rows, groups = self._joined_rows(x, key_mask, is_causal)
        return project_out(rows, self.extra, self.proj), groups

    def _joined_rows(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        """The same before the output projection."""
        values, groups = self._pooled_values(x, key_mask, is_causal)
        one_row = (x.shape[0], 1, self.proj.in_features)
        return values.reshape(one_row) if groups is None else merge_heads(values), groups

    def _pooled_values(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor | None]:
        """γ Σ a_j v_j of each group of tokens (B, H, m, d), and the group of each token."""
        if is_causal and self.chunk_size is None:
            raise ValueError("is_causal=True needs a LinearInfSA built with chunk_size, got chunk_size=None")
        check_tokens(x, self.proj.out_features)
        options = self._scoring(key_mask, is_causal)
        projections = self.projections()
        if projections is not None:
            return projected_values(x, self.num_heads, *projections, gamma=self.decay(), **options)
        x = zero_padding(x, key_mask)
        pooled = central_pool(*self._project(x), x.unsqueeze(1), **options)
        return scale_heads(project_values(pooled, self.v, self.num_heads), self.decay()), pooled.groups

    def _scoring(self, key_mask: Tensor | None, is_causal: bool) -> dict[str, Any]:
        """How tokens are scored, as the operators' options."""
        return {
            "activation": self.activation,
            "key_mask": key_mask,
            "iterations": self.iterations,
            "queries": self.queries,
            "causal": "chunk" if is_causal else None,
            "chunk_size": self.chunk_size if is_causal else None,
            "eps": self.eps,
            "impl": self.impl,
        }


def _parameters(layer: nn.Linear) -> Projection:
    return layer.weight, layer.bias
