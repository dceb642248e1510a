"""Linear-InfSA: one centrality vector and one pooled value per head, in O(N)."""

from typing import Any

from torch import Tensor

from ..checks import check_attention_inputs, decay_per_head
from ..dtypes import as_autocast, cast_output
from ..masks import resolve_token_masks, zero_masked
from . import reference
from .pooling import Pooled, blocks_of, pool, spread
from .projected import projected_values
from .scoring import Causal, Scoring
from .state import LinearState, energies, key_scores

__all__ = [
    "LinearState",
    "Pooled",
    "central_pool",
    "energies",
    "key_scores",
    "linear_attention",
    "linear_weights",
    "projected_values",
    "spread",
]


def central_pool(
    q: Tensor,
    k: Tensor,
    values: Tensor,
    *,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    impl: str = "auto",
    **options: Any,
) -> Pooled:
    """Pool tokens by centrality: the core of Linear-InfSA, before γ and before any value projection.

    ``values`` is (B, H, N, dv), or (B, 1, N, D) shared by the heads. Layers pass their input x there and
    project the pooled rows only: Σ a_j (x_j W + b) = (Σ a_j x_j) W + (Σ a_j) b. The other options are ``activation``,
    ``iterations``, ``queries``, ``causal``, ``chunk_size`` and ``eps`` of :func:`linear_attention`.

    Example:
        >>> x = torch.randn(1, 1, 4096, 512)
        >>> q = torch.randn(1, 8, 4096, 64)
        >>> infsa.ops.central_pool(q, q, x).mean.shape
        torch.Size([1, 8, 1, 512])
    """
    return pool(q, k, values, Scoring(**options), key_mask, query_mask, impl)


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
    is_causal: bool = False,
) -> Tensor:
    """Pool values by token centrality in O(N): h = γ Σ_j a_j v_j, one vector per head.

        q̄ = Σ ‖q_i‖ q_i / (Σ ‖q_i‖ + ε)      S_j = φ(q̄ · k_j)      a_j = S_j / (Σ|S| + ε)

    Every token of a head receives the same vector: over tokens the output has rank 1 (at most m with
    ``queries=m``). The paper ties k = q; then a head always has a positive score.

    Args:
        q: queries (B, H, Nq, d).
        k: keys (B, H, Nk, d).
        v: values (B, H, Nk, dv).
        gamma: decay, a float in (0, 1) or a differentiable tensor broadcastable to (H,), not checked.
        activation: φ, one of ``"relu"``, ``"gelu"`` (exact), ``"abs"``.
        key_mask: boolean (B, Nk), True for real tokens. There is no mask over pairs of tokens.
        query_mask: boolean (B, Nq); defaults to ``key_mask`` when Nq = Nk.
        iterations: how often the keys are scored; between two times q̄ ← Σ a_j q_j.
        queries: m central queries. Token i belongs to block ⌊i·m/N⌋, whose energies form its q̄, and receives
            what that q̄ pools. i and N count real tokens.
        causal: ``"chunk"``: keys of a chunk are scored with the q̄ of the chunks up to it, and its tokens
            receive what the chunks before it pooled (the first chunk receives 0). Chunks count real tokens.
            Exact causality is not O(N) here and not supported.
        chunk_size: tokens per chunk.
        eps: ε.
        impl: ``"reference"`` (as written), ``"chunked"`` (recomputes in the backward pass) or ``"auto"``.
        is_causal: must be False; see ``causal``.

    Returns:
        (B, H, 1, dv), which broadcasts over the tokens; (B, H, Nq, dv) if ``queries > 1`` or causal, with
        zero rows for masked queries. In the dtype of q; sums are kept in float32 (float64 for float64).

    Example:
        >>> q = k = v = torch.randn(1, 64, 65536, 16)
        >>> infsa.linear_attention(q, k, v).shape
        torch.Size([1, 64, 1, 16])
    """
    if is_causal is not False:
        raise TypeError("linear_attention has no exact causal form, so no is_causal: use causal='chunk' and chunk_size")
    q, k, v = as_autocast(q, k, v)
    check_attention_inputs(q, k, v)
    decay = decay_per_head(gamma, q.shape[1], q)
    _, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    scoring = Scoring(activation, iterations, queries, causal, chunk_size, eps)
    pooled = pool(q, k, v, scoring, key_mask, query_mask, impl)
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
        >>> infsa.linear_weights(q, q).shape
        torch.Size([1, 64, 4096])
    """
    q, k = as_autocast(q, k)
    check_attention_inputs(q, k)
    scoring = Scoring(activation, iterations, queries, eps=eps)
    scoring.check(q, k)
    key_mask, query_mask = resolve_token_masks(q, k, key_mask, query_mask)
    q, k = zero_masked(q, query_mask), zero_masked(k, key_mask)
    weights = reference.linear_weights(q, k, blocks_of(q, query_mask, queries), scoring)
    return cast_output(weights if queries > 1 else weights.squeeze(2), q.dtype)
