"""Pure InfSA over ranks: queries stay, blocks of keys and values travel around the ring.

Every rank adds R v and Σ R² of its rows, block by block; nothing needs rescaling on the way, so one all-reduce of
Σ R² (per image and head) ends the forward pass. The backward pass sends the blocks around once more, each followed by
its gradient, which comes home after a full turn. While one block is worked on, the next is under way.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..ops.checks import check_activation, check_count, check_eps, decay_per_head
from ..ops.dtypes import accumulation_dtype, cast_output
from ..ops.masks import resolve_token_masks, zero_masked
from ..ops.pure.chunked import EdgeMatrix, add_gradients, add_sums, inverse_norm, no_sums, norm_of, share_gradient
from .linear import check_shards
from .ranks import Group, Ranks, Shift


def pure_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group,
    tokens: Sequence[int] | None = None,
    gamma: float | Tensor = 0.7,
    activation: str = "relu",
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    is_causal: bool = False,
    hops: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """:func:`infsa.pure_attention` of tokens that are spread over ranks, in rank order.

    Args:
        q: this rank's queries (B, H, Nq, d); ranks may hold different numbers of tokens, or none.
        k: this rank's keys (B, H, Nk, d).
        v: this rank's values (B, H, Nk, dv).
        group: a process group, a mesh dimension, or None for all processes.
        tokens: the number of keys of every rank, if it is known; otherwise ranks tell each other.
        gamma: see :func:`infsa.pure_attention`, as for all that follow.
        activation: φ.
        key_mask: boolean (B, Nk) of this rank's keys.
        query_mask: boolean (B, Nq); defaults to ``key_mask`` when Nq = Nk.
        is_causal: row i sees no later token, of any rank, and is divided by the norm of its leading block.
        hops: K, finite; each further hop is one more turn of the ring.
        eps: ε.

    Returns:
        The rows of this rank's queries, (B, H, Nq, dv).
    """
    ranks = Ranks.of(group)
    check_shards(q, k, v)
    decay = decay_per_head(gamma, q.shape[1], q)
    check_activation(activation)
    check_eps(eps)
    if hops == math.inf:
        raise ValueError("hops=inf is not supported over several ranks; a finite number of hops is")
    check_count(hops, "hops")
    if q.shape[2] != k.shape[2] and (is_causal or hops > 1):
        raise ValueError(f"causal attention and hops need as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    if tokens is None:
        tokens = [count for (count,) in ranks.exchange([k.shape[2]])]
    if len(tokens) != ranks.size or tokens[ranks.rank] != k.shape[2]:
        raise ValueError(f"tokens must count the keys of {ranks.size} ranks, here {k.shape[2]}, got {list(tokens)}")
    key_mask, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    q, k, v = zero_masked(q, query_mask), zero_masked(k, key_mask), zero_masked(v, key_mask)
    ring = Ring(ranks, tuple(tokens), activation, is_causal, eps)
    z = _Turn.apply(ring, q, k, v)
    for _ in range(int(hops) - 1):
        z = _Turn.apply(ring, q, k, v + decay * z)
    return cast_output(decay * z, q.dtype)


@dataclass(frozen=True)
class Ring:
    """R over the tokens of all ranks: this rank's rows, visited one rank's columns at a time."""

    ranks: Ranks
    tokens: tuple[int, ...]  # columns of every rank
    activation: str
    is_causal: bool
    eps: float

    def diffuse(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Ẑ = Â v in the accumulation dtype, (B, H, Nq, dv), and the norm that divided each row, (B, H, Nq or 1)."""
        sums, row_squares = no_sums(q, v)
        for source, k_block, v_block in self._blocks(k, v):
            if (matrix := self._matrix(source, q, k_block)) is not None:
                add_sums(matrix, v_block, sums, row_squares)
        norm = norm_of(self._scope_sum(row_squares), sums.dtype)
        return sums * inverse_norm(norm, self.eps).unsqueeze(-1), norm

    def gradients(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, z: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dQ, dK, dV of this rank's tokens."""
        dtype = accumulation_dtype(q.dtype)
        grad, shared = share_gradient(grad.to(dtype), z, norm, self.eps)
        weight = self._scope_sum(shared.double(), reverse=True).to(dtype).expand(shared.shape).unsqueeze(-1)
        dq = q.new_zeros(q.shape, dtype=dtype)
        moving: Shift | None = None  # brings what the ranks before this one added to the gradients of a block
        came: list[Tensor] = []
        for source, k_block, v_block in self._blocks(k, v):
            dk, dv = (x.new_zeros(x.shape, dtype=dtype) for x in (k_block, v_block))
            if (matrix := self._matrix(source, q, k_block)) is not None:
                add_gradients(matrix, v_block, grad, weight, (dq, dk, dv))
            if moving is not None:
                moving.wait()
                dk, dv = dk.add_(came[0]), dv.add_(came[1])
            came = [dk, dv] if self.ranks.size == 1 else self._room(source - 1, [dk, dv])
            moving = None if self.ranks.size == 1 else self.ranks.shift([dk, dv], came)
        if moving is not None:
            moving.wait()  # home again
        return dq, came[0], came[1]

    def _blocks(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Every rank's (number, k, v), the own one first; the next block travels while one is used."""
        block = [k.contiguous(), v.contiguous()]
        for step in range(self.ranks.size):
            source = (self.ranks.rank - step) % self.ranks.size
            if step == self.ranks.size - 1:
                yield source, block[0], block[1]
                return
            following = self._room(source - 1, block)
            moving = self.ranks.shift(block, following)
            yield source, block[0], block[1]
            moving.wait()
            block = following

    def _room(self, source: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Empty tensors for the block of a rank."""
        tokens = self.tokens[source % self.ranks.size]
        return [x.new_empty(*x.shape[:2], tokens, x.shape[3]) for x in like]

    def _matrix(self, source: int, q: Tensor, k: Tensor) -> EdgeMatrix | None:
        """R between this rank's queries and the keys of another; None where it is empty."""
        if q.shape[2] == 0 or k.shape[2] == 0 or (self.is_causal and source > self.ranks.rank):
            return None
        diagonal = self.is_causal and source == self.ranks.rank
        return EdgeMatrix(q, k, None, None, None, self.activation, diagonal)

    def _scope_sum(self, per_row: Tensor, reverse: bool = False) -> Tensor:
        """Sum (B, H, N) over the rows of all ranks, (B, H, 1); if causal, up to (from, if reverse) each row."""
        own = per_row.sum(-1)
        if not self.is_causal:
            return self.ranks.add(own)[0].unsqueeze(-1)
        totals = self.ranks.gather(own)  # (P, B, H)
        others = totals[self.ranks.rank + 1 :] if reverse else totals[: self.ranks.rank]
        running = per_row.flip(-1).cumsum(-1).flip(-1) if reverse else per_row.cumsum(-1)
        return running + others.sum(0).unsqueeze(-1)


class _Turn(torch.autograd.Function):
    """One turn of the ring, and another one for the gradients."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            z, norm = ring.diffuse(q, k, v)
        ctx.save_for_backward(q, k, v, z, norm)
        ctx.ring = ring
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        q, k, v, z, norm = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            dq, dk, dv = ctx.ring.gradients(grad, q, k, v, z, norm)
        return None, dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
