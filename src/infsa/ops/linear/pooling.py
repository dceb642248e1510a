"""Tokens pooled by centrality, before γ and any projection: checks, masks, and the passes over the tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_attention_inputs, shape_of
from ..dispatch import choose_linear
from ..dtypes import accumulation_dtype, as_autocast
from ..masks import resolve_token_masks, zero_masked
from . import reference, register
from .scoring import Scoring

Reduce = Callable[..., Sequence[Tensor]]


class Pooled(NamedTuple):
    """What the tokens of each group receive, before γ and any projection."""

    mean: Tensor  # Σ a_j v_j: (B, H, m, dv), in the accumulation dtype
    mass: Tensor  # Σ a_j: (B, H, m)
    groups: Tensor | None  # the group of each query token, (B or 1, N); None: one group for all


def blocks_of(q: Tensor, query_mask: Tensor | None, count: int) -> Tensor | None:
    """Block ⌊i·m/N⌋ of each query, (B or 1, N); i and N count real tokens, so padding changes nothing."""
    if count > q.shape[2]:
        raise ValueError(f"queries must be at most the number of query tokens {q.shape[2]}, got {count!r}")
    if count == 1:
        return None
    if query_mask is None:
        position = torch.arange(q.shape[2], device=q.device)[None]
        return position * count // q.shape[2]
    position = query_mask.long().cumsum(-1) - 1
    total = query_mask.sum(-1, keepdim=True).clamp_min(1)
    return (position * count // total).clamp(0, count - 1)


def pool(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    scoring: Scoring,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    impl: str,
) -> Pooled:
    """:func:`central_pool` with its options in one."""
    q, k = as_autocast(q, k)
    check_attention_inputs(q, k)
    impl = choose_linear(impl, q)
    scoring.check(q, k)
    q, k, values, key_mask, query_mask = mask_tokens(q, k, values, key_mask, query_mask)
    if scoring.chunk_size is not None:
        position = torch.arange(q.shape[2], device=q.device)[None]
        if key_mask is not None and query_mask is not None:
            real = key_mask | query_mask  # first and in their order, so that padding changes no chunk
            order = (~real).long().argsort(dim=-1, stable=True)
            q, k, values = (_reorder(x, order) for x in (q, k, values))
            position = (real.long().cumsum(-1) - 1).clamp_min(0)
        pooled = _pool_before_each_chunk(q, k, values, scoring, impl)
        return Pooled(*pooled, position // scoring.chunk_size)

    blocks = blocks_of(q, query_mask, scoring.queries)
    if impl == "chunked":
        return pool_by_sums(q, k, values, blocks, scoring)
    weights = reference.linear_weights(q, k, blocks, scoring)
    with torch.autocast(q.device.type, enabled=False):
        return Pooled(weights @ values.to(weights.dtype), weights.sum(-1), blocks)


def mask_tokens(
    q: Tensor, k: Tensor, values: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """q, k and values with masked tokens zeroed, and both masks; tied queries and keys stay one tensor."""
    if values.dim() != 4 or values.shape[1] not in (1, q.shape[1]) or values.shape[2] != k.shape[2]:
        raise ValueError(f"values must be (B, H or 1, N, width) beside k {shape_of(k)}, got {shape_of(values)}")
    key_mask, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    tied = q is k and query_mask is key_mask
    q = zero_masked(q, query_mask)
    k = q if tied else zero_masked(k, key_mask)
    return q, k, zero_masked(values, key_mask), key_mask, query_mask


def pool_by_sums(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    groups: Tensor | None,
    scoring: Scoring,
    reduce: Reduce = lambda *sums: sums,
    project: Callable[[Tensor], Tensor] | None = None,
) -> Pooled:
    """The passes over the tokens: Σ e q gives q̄, Σ S q refines it ``iterations - 1`` times, Σ S v is pooled.

    Tokens meet in the sums only. ``reduce`` adds the sums of a pass to those of tokens elsewhere; ``project``, a linear
    map (B, H, m, width) -> (B, H, m, w), acts on what was pooled here before it is added.
    """
    activation, eps = scoring.activation, scoring.eps
    total, vectors = reduce(*register.linear_energy_sums(q, groups, scoring.queries))
    central = weighted_mean(vectors, total, eps)
    for _ in range(scoring.iterations - 1):
        total, _, vectors = reduce(*register.linear_score_sums(central, k, q, activation))
        central = weighted_mean(vectors, total, eps)
    total, signed, vectors = register.linear_score_sums(central, k, values, activation)
    if project is not None:  # of a mean, not of a sum: it stays in the range of half precision
        weight = (total + eps).unsqueeze(-1)
        vectors = project(vectors / weight).to(total.dtype) * weight
    total, signed, vectors = reduce(total, signed, vectors)
    return Pooled(weighted_mean(vectors, total, eps), signed / (total + eps), groups)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of x (B, H, N, d) in another order (B, N)."""
    return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def weighted_mean(vectors: Tensor, total: Tensor, eps: float) -> Tensor:
    """Σ w u / (Σ|w| + ε)."""
    return vectors / (total + eps).unsqueeze(-1)


def _pool_before_each_chunk(q: Tensor, k: Tensor, values: Tensor, scoring: Scoring, impl: str) -> tuple[Tensor, Tensor]:
    """The chunk-causal sums in O(N): each chunk is summed by itself, the sums are accumulated afterwards."""
    chunk_size, eps = scoring.chunk_size, scoring.eps
    assert chunk_size is not None
    chunks = q.shape[2] // chunk_size + 1  # always one that is not full: one shape rule for every N when compiled

    def split(x: Tensor) -> Tensor:  # (B, H, N, d) -> (B, C, H, chunk_size, d)
        x = torch.nn.functional.pad(x, (0, 0, 0, chunks * chunk_size - x.shape[2]))
        return x.unfold(2, chunk_size, chunk_size).permute(0, 2, 1, 4, 3).contiguous()

    def before(x: Tensor) -> Tensor:  # sums per chunk (B, C, H, 1, ...) -> over the chunks before it, (B, H, C, ...)
        shifted = torch.nn.functional.pad(x.cumsum(1), (0, 0) * (x.dim() - 2) + (1, 0))[:, :-1]
        return shifted.squeeze(3).transpose(1, 2)

    q, k, values = split(q), split(k), split(values)
    with torch.autocast(q.device.type, enabled=False):
        if impl == "reference":
            total, vectors = reference.energy_sums(q)
        else:
            flat: Sequence[Tensor] = register.linear_energy_sums(q.flatten(0, 1), None, 1)
            total, vectors = (x.unflatten(0, (-1, chunks)) for x in flat)
        central = weighted_mean(vectors.cumsum(1), total.cumsum(1), eps)
        if impl == "reference":
            sums: Sequence[Tensor] = reference.score_sums(central, k, values, scoring.activation)
        else:
            flat = register.linear_score_sums(*(x.flatten(0, 1) for x in (central, k, values)), scoring.activation)
            sums = [x.unflatten(0, (-1, chunks)) for x in flat]
        total, signed, vectors = (before(x) for x in sums)
        return weighted_mean(vectors, total, eps), signed / (total + eps)


def spread(rows: Tensor, groups: Tensor | None, query_mask: Tensor | None = None) -> Tensor:
    """Give every token the row of its group: (B, H, m, d) -> (B, H, N, d); without groups, unchanged.

    Rows of masked queries are zero.
    """
    if groups is None:
        return rows
    index = groups[:, None, :, None].expand(rows.shape[0], rows.shape[1], -1, rows.shape[3])
    wide = rows.to(accumulation_dtype(rows.dtype))  # the backward pass sums over tokens
    return zero_masked(wide.gather(2, index).to(rows.dtype), query_mask)
