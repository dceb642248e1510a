"""Linear-InfSA: one centrality vector and one pooled value per head, in O(N)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import library, reference
from ..checks import (
    accumulation_dtype,
    as_autocast,
    cast_output,
    check_activation,
    check_attention_inputs,
    check_count,
    check_eps,
    choose_implementation,
    decay_per_head,
    shape_of,
)
from ..masks import resolve_token_masks, zero_masked

Causal = Literal["chunk"] | None


class Pooled(NamedTuple):
    """What the tokens of each group receive, before γ and any projection."""

    mean: Tensor  # Σ a_j v_j: (B, H, m, dv), in the accumulation dtype
    mass: Tensor  # Σ a_j: (B, H, m)
    groups: Tensor | None  # the group of each query token, (B or 1, N); None: one group for all


def _blocks(q: Tensor, query_mask: Tensor | None, count: int) -> Tensor:
    """Block ⌊i·m/N⌋ of each query, (B or 1, N); i and N count real tokens, so padding changes nothing."""
    if query_mask is None:
        position = torch.arange(q.shape[2], device=q.device)[None]
        return position * count // q.shape[2]
    position = query_mask.long().cumsum(-1) - 1
    total = query_mask.sum(-1, keepdim=True).clamp_min(1)
    return (position * count // total).clamp(0, count - 1)


def _check(
    q: Tensor,
    k: Tensor,
    activation: str,
    iterations: int,
    queries: int,
    causal: Causal,
    chunk_size: int | None,
    eps: float,
) -> None:
    check_activation(activation)
    check_eps(eps)
    check_count(iterations, "iterations")
    check_count(queries, "queries")
    if queries > q.shape[2]:
        raise ValueError(f"queries must be at most the number of query tokens {q.shape[2]}, got {queries!r}")
    if iterations > 1 and q.shape[2] != k.shape[2]:
        raise ValueError(f"iterations={iterations!r} needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    if causal is None:
        if chunk_size is not None:
            raise ValueError(f"chunk_size={chunk_size!r} needs causal='chunk'")
        return
    if causal != "chunk":
        raise ValueError(f"causal must be None or 'chunk' (exact causality is not O(N)), got {causal!r}")
    if chunk_size is None:
        raise ValueError("causal='chunk' needs a chunk_size, got None")
    check_count(chunk_size, "chunk_size")
    if queries != 1 or iterations != 1:
        raise ValueError(f"causal='chunk' needs queries=1 and iterations=1, got {queries!r} and {iterations!r}")
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"causal needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")


def central_pool(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    *,
    activation: str = "relu",
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    iterations: int = 1,
    queries: int = 1,
    causal: Causal = None,
    chunk_size: int | None = None,
    eps: float = 1e-6,
    impl: str = "auto",
) -> Pooled:
    """Pool tokens by centrality: the core of Linear-InfSA, before γ and before any value projection.

    ``values`` is (B, H, N, dv), or (B, 1, N, D) shared by the heads. Layers pass their input x there and
    project the pooled rows only: Σ a_j (x_j W + b) = (Σ a_j x_j) W + (Σ a_j) b.

    Example:
        >>> x = torch.randn(1, 1, 4096, 512)
        >>> q = torch.randn(1, 8, 4096, 64)
        >>> infsa.ops.central_pool(q, q, x).mean.shape
        torch.Size([1, 8, 1, 512])
    """
    q, k = as_autocast(q, k)
    check_attention_inputs(q, k)
    if values.dim() != 4 or values.shape[1] not in (1, q.shape[1]) or values.shape[2] != k.shape[2]:
        raise ValueError(f"values must be (B, H or 1, N, width) beside k {shape_of(k)}, got {shape_of(values)}")
    impl = choose_implementation(impl, q, "takes tokens before their projection: use infsa.ops.projected_pool")
    _check(q, k, activation, iterations, queries, causal, chunk_size, eps)
    key_mask, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    tied = q is k and query_mask is key_mask
    q = zero_masked(q, query_mask)
    k = q if tied else zero_masked(k, key_mask)
    values = zero_masked(values, key_mask)

    if chunk_size is not None:
        position = torch.arange(q.shape[2], device=q.device)[None]
        if key_mask is not None and query_mask is not None:
            real = key_mask | query_mask  # first and in their order, so that padding changes no chunk
            order = (~real).long().argsort(dim=-1, stable=True)
            q, k, values = (_reorder(x, order) for x in (q, k, values))
            position = (real.long().cumsum(-1) - 1).clamp_min(0)
        pooled = _pool_before_each_chunk(q, k, values, activation, chunk_size, eps, impl)
        return Pooled(*pooled, position // chunk_size)

    blocks = _blocks(q, query_mask, queries) if queries > 1 else None
    if impl == "reference":
        weights = reference.linear_weights(
            q, k, activation=activation, groups=blocks, count=queries, iterations=iterations, eps=eps
        )
        with torch.autocast(q.device.type, enabled=False):
            return Pooled(weights @ values.to(weights.dtype), weights.sum(-1), blocks)

    total, vectors = library.linear_energy_sums(q, blocks, queries)
    central = weighted_mean(vectors, total, eps)
    for _ in range(iterations - 1):
        total, _, vectors = library.linear_score_sums(central, k, q, activation)
        central = weighted_mean(vectors, total, eps)
    total, signed, vectors = library.linear_score_sums(central, k, values, activation)
    return Pooled(weighted_mean(vectors, total, eps), signed / (total + eps), blocks)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of x (B, H, N, d) in another order (B, N)."""
    return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def weighted_mean(vectors: Tensor, total: Tensor, eps: float) -> Tensor:
    """Σ w u / (Σ|w| + ε)."""
    return vectors / (total + eps).unsqueeze(-1)


def _pool_before_each_chunk(
    q: Tensor, k: Tensor, values: Tensor, activation: str, chunk_size: int, eps: float, impl: str
) -> tuple[Tensor, Tensor]:
    """The chunk-causal sums in O(N): each chunk is summed by itself, the sums are accumulated afterwards."""
    batch = q.shape[0]
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
            total, vectors = (
                x.unflatten(0, (batch, chunks)) for x in library.linear_energy_sums(q.flatten(0, 1), None, 1)
            )
        central = weighted_mean(vectors.cumsum(1), total.cumsum(1), eps)
        if impl == "reference":
            sums = reference.score_sums(central, k, values, activation)
        else:
            flat = library.linear_score_sums(*(x.flatten(0, 1) for x in (central, k, values)), activation)
            sums = tuple(x.unflatten(0, (batch, chunks)) for x in flat)
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


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: float | Tensor = 0.7,
    activation: str = "relu",
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    iterations: int = 1,
    queries: int = 1,
    causal: Causal = None,
    chunk_size: int | None = None,
    eps: float = 1e-6,
    impl: str = "auto",
) -> Tensor:
    """Pool values by token centrality in O(N): h = γ Σ_j a_j v_j, one vector per head.

        q̄ = Σ ‖q_i‖ q_i / (Σ ‖q_i‖ + ε)      S_j = φ(q̄ · k_j)      a_j = S_j / (Σ|S| + ε)

    Every token of a head receives the same vector: over tokens the output has rank 1 (at most m with
    ``queries=m``). The paper ties k = q; then a head cannot die.

    Args:
        q: queries (B, H, Nq, d).
        k: keys (B, H, Nk, d).
        v: values (B, H, Nk, dv).
        gamma: decay, a float in (0, 1) or a differentiable tensor broadcastable to (H,), not checked.
        activation: φ, one of ``"relu"``, ``"gelu"`` (exact), ``"abs"``.
        key_mask: boolean (B, Nk), True for real tokens. Masks over pairs of tokens do not exist here.
        query_mask: boolean (B, Nq); defaults to ``key_mask`` when Nq = Nk.
        iterations: how often the keys are scored; before each further time q̄ ← Σ a_j q_j.
        queries: m central queries. Token i belongs to block ⌊i·m/N⌋, whose energies form its q̄, and receives
            what that q̄ pools. i and N count real tokens.
        causal: ``"chunk"``: keys of a chunk are scored with the q̄ of the chunks up to it, and its tokens
            receive what the chunks before it pooled (the first chunk receives 0). Chunks count real tokens.
            Nothing else is offered: exact causality is not O(N) here.
        chunk_size: tokens per chunk.
        eps: ε.
        impl: ``"reference"`` (as written), ``"chunked"`` (recomputes in the backward pass) or ``"auto"``.

    Returns:
        (B, H, 1, dv), which broadcasts over the tokens; (B, H, Nq, dv) if ``queries > 1`` or causal, with
        zero rows for masked queries. In the type of q; sums are kept in float32 (float64 for float64).

    Example:
        >>> q = k = v = torch.randn(1, 64, 65536, 16)
        >>> infsa.linear_attention(q, k, v).shape
        torch.Size([1, 64, 1, 16])
    """
    q, k, v = as_autocast(q, k, v)
    check_attention_inputs(q, k, v)
    decay = decay_per_head(gamma, q.shape[1], q)
    _, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    pooled = central_pool(
        q,
        k,
        v,
        activation=activation,
        key_mask=key_mask,
        query_mask=query_mask,
        iterations=iterations,
        queries=queries,
        causal=causal,
        chunk_size=chunk_size,
        eps=eps,
        impl=impl,
    )
    return spread(cast_output(decay * pooled.mean, q.dtype), pooled.groups, query_mask)


def linear_weights(
    q: Tensor,
    k: Tensor,
    *,
    activation: str = "relu",
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    iterations: int = 1,
    queries: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """The centrality vector a, without γ: (B, H, Nk); (B, H, m, Nk) if ``queries=m`` > 1.

    The arguments are those of :func:`linear_attention`.

    Example:
        >>> q = torch.randn(1, 64, 4096, 16)
        >>> infsa.linear_weights(q, q).sum(-1)  # just below 1 per head
    """
    q, k = as_autocast(q, k)
    check_attention_inputs(q, k)
    _check(q, k, activation, iterations, queries, None, None, eps)
    key_mask, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    q, k = zero_masked(q, query_mask), zero_masked(k, key_mask)
    weights = reference.linear_weights(
        q,
        k,
        activation=activation,
        groups=_blocks(q, query_mask, queries) if queries > 1 else None,
        count=queries,
        iterations=iterations,
        eps=eps,
    )
    return cast_output(weights if queries > 1 else weights.squeeze(2), q.dtype)
