"""Linear-InfSA over tokens that are spread over ranks: two small sums are all that travels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import Pooled, spread
from ..ops.checks import check_attention_inputs, decay_per_head, shape_of
from ..ops.dtypes import cast_output
from ..ops.linear.pooling import mask_tokens, pool_by_sums
from ..ops.linear.scoring import Scoring
from ..ops.masks import resolve_token_masks
from .ranks import Group, Ranks


def central_pool(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    *,
    group: Group,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    project: Callable[[Tensor], Tensor] | None = None,
    **options: Any,
) -> Pooled:
    """:func:`infsa.ops.central_pool` of the tokens of all ranks; every rank receives the same result.

    Each rank brings its own tokens (any number, none included) and their masks. One all-reduce of H m (d + 1) numbers
    per image forms q̄ (``iterations - 1`` more of H m (d + 2) refine it), one of H m (width + 2) the pool. ``project``,
    a linear map (B, H, m, width) -> (B, H, m, w), acts on what each rank pooled before it is sent: the value projection
    of a layer, W_V without its bias, makes that H m (d + 2) too. The other options are those of the function in one
    process, without ``causal``.
    """
    ranks, scoring = Ranks.of(group), Scoring(**options)
    check_shards(q, k)
    scoring.check(q, k)
    if scoring.causal is not None:
        raise ValueError(f"causal={scoring.causal!r} is not supported for Linear-InfSA over several ranks")
    q, k, values, _, query_mask = mask_tokens(q, k, values, key_mask, query_mask)
    blocks = _blocks(ranks, q, query_mask, scoring.queries) if scoring.queries > 1 else None
    return pool_by_sums(q, k, values, blocks, scoring, ranks.add, project)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group,
    gamma: float | Tensor = 0.7,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """:func:`infsa.linear_attention` of tokens that are spread over ranks, in rank order.

    Returns (B, H, 1, dv), the same on every rank; with ``queries > 1`` the rows of this rank's queries, (B, H, N, dv).
    """
    check_shards(q, k, v)
    decay = decay_per_head(gamma, q.shape[1], q)
    _, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    pooled = central_pool(q, k, v, group=group, key_mask=key_mask, query_mask=query_mask, **options)
    return spread(cast_output(decay * pooled.mean, q.dtype), pooled.groups, query_mask)


def check_shards(q: Tensor, k: Tensor, v: Tensor | None = None) -> None:
    """The checks of :mod:`infsa.ops`, except that a rank may have no tokens."""
    if v is not None and v.shape[2:3] != k.shape[2:3]:
        raise ValueError(f"k and v must have the same number of tokens, got {shape_of(k)} and {shape_of(v)}")
    check_attention_inputs(_filled(q), _filled(k), None if v is None else _filled(v))


def _filled(x: Tensor) -> Tensor:
    """One token in place of none."""
    return nn.functional.pad(x, (0, 0, 0, 1)) if x.dim() == 4 and x.shape[2] == 0 else x


def _blocks(ranks: Ranks, q: Tensor, query_mask: Tensor | None, count: int) -> Tensor:
    """Block ⌊i·m/N⌋ of each of this rank's queries, (B, N); i and N count the real tokens of all ranks."""
    tokens = sum(found for (found,) in ranks.exchange([q.shape[2]]))
    if count > tokens:
        raise ValueError(f"queries must be at most the {tokens} query tokens of all ranks, got {count}")
    real = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if query_mask is None else query_mask
    counts = ranks.gather(real.sum(-1))  # (P, B)
    before, total = counts[: ranks.rank].sum(0), counts.sum(0).clamp_min(1)
    position = before[:, None] + real.long().cumsum(-1) - 1
    return (position * count // total[:, None]).clamp(0, count - 1)
