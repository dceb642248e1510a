"""Pure InfSA: ReLU scores divided by their Frobenius norm, one diffusion step on the token graph."""

import math
from typing import Literal

import torch
from torch import Tensor

from .. import library, reference
from ..checks import (
    as_autocast,
    cast_output,
    check_activation,
    check_attention_inputs,
    check_attn_mask,
    check_dropout,
    check_eps,
    check_hops,
    check_norm,
    choose_implementation,
    decay_per_head,
)
from ..masks import resolve_token_masks, visible_keys, zero_masked
from ..triton.support import pure_limit

DENSE_SOLVE = 512  # up to this many tokens, impl="auto" solves hops=inf with a dense factorisation

Causality = bool | Literal["auto"]
Norm = Literal["frobenius", "row"]


def _prepare(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    activation: str,
    is_causal: Causality,
    norm: str,
    eps: float,
) -> tuple[str, Tensor | None, Tensor | None, Tensor | None]:
    """Check what attention and its weights share.

    Returns causality as "no", "yes" or "auto", the attention mask as 4-D, the key mask and the query mask.
    """
    check_activation(activation)
    check_norm(norm)
    check_eps(eps)
    if not isinstance(is_causal, bool) and is_causal != "auto":
        raise ValueError(f"is_causal must be True, False or 'auto', got {is_causal!r}")
    if is_causal is True and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"is_causal needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}; "
            "use PureDecodeState to continue a sequence"
        )
    causal = "yes" if is_causal is True else "auto" if is_causal and q.shape[2] == k.shape[2] else "no"
    attn_mask = check_attn_mask(attn_mask, q, k)
    return causal, attn_mask, *resolve_token_masks(q, k, key_mask, query_mask)


def pure_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: float | Tensor = 0.7,
    activation: str = "relu",
    attn_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    is_causal: Causality = False,
    norm: Norm = "frobenius",
    hops: float = 1,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    """Diffuse values over the token graph: Z = γ R v / (‖R‖_F + ε), R = φ(q kᵀ / √d).

    Under autocast the inputs are cast as those of torch's attention are.

    Args:
        q: queries (B, H, Nq, d).
        k: keys (B, H, Nk, d).
        v: values (B, H, Nk, dv).
        gamma: decay, a float in (0, 1) or a tensor broadcastable to (H,). A tensor is differentiable and its
            values are not checked, because that would stall the device.
        activation: φ, one of ``"relu"``, ``"gelu"`` (exact), ``"abs"``.
        attn_mask: broadcastable to (B, H, Nq, Nk). Boolean: True lets an edge exist. Floating: added to the
            scores before φ (differentiable); −100 or less, which softmax takes for −inf, removes the edge.
        key_mask: boolean (B, Nk), True for real tokens. A masked key is a zero column of R.
        query_mask: boolean (B, Nq). A masked query is a zero row, its output zero. Defaults to ``key_mask``
            when Nq = Nk, so the real tokens of a padded batch give what they give alone.
        is_causal: row i sees columns j <= i and is divided by the norm of the leading block, so that no
            output depends on a later token. ``"auto"`` does so exactly if ``attn_mask`` forbids every later
            token (recognised without stalling the device). With False, a triangular ``attn_mask`` keeps
            the norm of the whole matrix, which later tokens enter.
        norm: ``"frobenius"`` is the paper's: all rows share ‖R‖_F, or with ``is_causal`` that of the leading block.
            ``"row"`` divides row i by ‖R_i‖ √n_i, n_i being the number of keys it may see: no output depends on
            another query, so every mask is safe, and a query gives what it gives alone. Where all rows have the same
            norm and see every key, the two are equal.
        hops: K returns Σ_{t=1..K} (γÂ)^t v; ``math.inf`` solves (I − γÂ) Z = γÂ v. 1 is the paper's layer.
        eps: ε.
        dropout_p: dropout on Â, applied whenever it is > 0; only with ``hops=1``.
        impl: ``"reference"`` (dense, N² memory), ``"chunked"`` (memory linear in N, no double backward),
            ``"triton"`` (the same in GPU kernels; no ``attn_mask``, dropout, ``hops=inf`` or float64, widths up to
            128) or ``"auto"``: the kernels where they can do the call, on a GPU; the
            reference for export, ``torch.func``, forward-mode derivatives, and ``hops=inf`` up to 512 tokens; else
            chunked. Only the reference can be differentiated twice.

    Returns:
        (B, H, Nq, dv), in the type of q. Sums are kept in float32 (float64 for float64 input).

    Example:
        >>> q = k = v = torch.randn(1, 8, 1024, 64)
        >>> infsa.pure_attention(q, k, v, gamma=0.7).shape
        torch.Size([1, 8, 1024, 64])
    """
    q, k, v = as_autocast(q, k, v)
    check_attention_inputs(q, k, v)
    decay = decay_per_head(gamma, q.shape[1], q)
    check_hops(hops)
    check_dropout(dropout_p)
    if dropout_p > 0 and hops != 1:
        raise ValueError(f"dropout_p={dropout_p!r} needs hops=1, got hops={hops!r}")
    causal, attn_mask, key_mask, query_mask = _prepare(
        q, k, attn_mask, key_mask, query_mask, activation, is_causal, norm, eps
    )
    impl = _choose(impl, q, k, hops, pure_limit(q, v, attn_mask, hops, dropout_p))
    q, k, v = zero_masked(q, query_mask), zero_masked(k, key_mask), zero_masked(v, key_mask)
    if norm != "row" and (attn_mask is None or not attn_mask.is_floating_point()):
        key_mask = query_mask = None  # zeroed tokens have no edges unless an additive mask adds them

    if impl == "reference":
        weights, prefix = reference.pure_weights(
            q,
            k,
            activation=activation,
            key_mask=key_mask,
            query_mask=query_mask,
            attn_mask=attn_mask,
            causal=causal,
            norm=norm,
            eps=eps,
        )
        if dropout_p > 0:
            weights = torch.dropout(weights, dropout_p, train=True)
        return cast_output(reference.pure_diffusion(weights, v, decay, hops, prefix), q.dtype)

    if impl == "triton":
        row = visible_keys(key_mask, q.shape[2], k.shape[2], causal == "yes", q.device) if norm == "row" else None
        return _by_kernels(q, k, v, decay, row, activation, causal == "yes", eps, int(hops))
    masks = (key_mask, query_mask, attn_mask)
    if hops == math.inf:
        z, _ = library.pure_resolvent(q, k, v, decay, *masks, activation, causal, norm, eps)
        return cast_output(decay * z, q.dtype)
    seed = torch.randint(2**62, ()) if dropout_p > 0 else None
    z, _ = library.pure_chunked(q, k, v, *masks, activation, causal, norm, eps, dropout_p, seed)
    for _ in range(int(hops) - 1):
        source = v + decay * z
        z, _ = library.pure_chunked(q, k, source, *masks, activation, causal, norm, eps, 0.0, None)
    return cast_output(decay * z, q.dtype)


def _choose(impl: str, q: Tensor, k: Tensor, hops: float, limit: str | None) -> str:
    """Resolve ``impl``; ``limit`` says why the Triton kernels cannot do this call."""
    if hops != 1 and q.shape[2] != k.shape[2]:
        raise ValueError(f"hops={hops!r} needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    chosen = choose_implementation(impl, q, limit)
    small = impl == "auto" and chosen == "chunked" and hops == math.inf and q.shape[2] <= DENSE_SOLVE
    return "reference" if small else chosen


def _by_kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    seen: Tensor | None,
    activation: str,
    is_causal: bool,
    eps: float,
    hops: int,
) -> Tensor:
    """Z by the Triton kernels, which multiply by γ themselves; ``seen`` asks for the row norm."""
    from .triton_register import pure

    z, _ = pure(q, k, v, decay, seen, activation, is_causal, eps)
    for _ in range(hops - 1):
        z, _ = pure(q, k, v + z, decay, seen, activation, is_causal, eps)
    return z


def pure_weights(
    q: Tensor,
    k: Tensor,
    *,
    activation: str = "relu",
    attn_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    is_causal: Causality = False,
    norm: Norm = "frobenius",
    eps: float = 1e-6,
) -> Tensor:
    """Â = R / (‖R‖_F + ε) itself, without γ: (B, H, Nq, Nk), dense, for inspection and small N.

    The arguments are those of :func:`pure_attention`.

    Example:
        >>> q = k = torch.randn(1, 8, 196, 64)
        >>> infsa.pure_weights(q, k).square().sum((-2, -1))  # Frobenius norm 1 per head
    """
    q, k = as_autocast(q, k)
    check_attention_inputs(q, k)
    causal, attn_mask, key_mask, query_mask = _prepare(
        q, k, attn_mask, key_mask, query_mask, activation, is_causal, norm, eps
    )
    weights, _ = reference.pure_weights(
        zero_masked(q, query_mask),
        zero_masked(k, key_mask),
        activation=activation,
        key_mask=key_mask,
        query_mask=query_mask,
        attn_mask=attn_mask,
        causal=causal,
        norm=norm,
        eps=eps,
    )
    return cast_output(weights, q.dtype)
