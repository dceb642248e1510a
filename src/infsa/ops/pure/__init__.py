"""Pure InfSA: ReLU scores divided by their Frobenius norm, one diffusion step on the token graph."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from ..checks import check_attention_inputs, check_dropout, check_hops, decay_per_head
from ..dispatch import asks_for_kernels, choose_pure
from ..dtypes import as_autocast, cast_output
from ..masks import visible_keys, zero_masked
from . import reference, register
from .rule import Causality, EdgeOptions, Norm, Rule, checked_rule


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
            values are not checked, because that would wait for the device.
        activation: φ, one of ``"relu"``, ``"gelu"`` (exact), ``"abs"``.
        attn_mask: broadcastable to (B, H, Nq, Nk). Boolean: True keeps the edge. Floating: added to the
            scores before φ (differentiable); −100 or less, which softmax takes for −inf, removes the edge.
        key_mask: boolean (B, Nk), True for real tokens. A masked key is a zero column of R.
        query_mask: boolean (B, Nq). A masked query is a zero row, its output zero. Defaults to ``key_mask``
            when Nq = Nk, so padding does not change the result of real tokens.
        is_causal: row i sees columns j <= i and is divided by the norm of the leading block, so that no
            output depends on a later token. ``"auto"`` does so exactly if ``attn_mask`` forbids every later
            token (recognised without waiting for the device). With False, a triangular ``attn_mask`` keeps
            the norm of the whole matrix, which depends on later tokens.
        norm: ``"frobenius"`` is the paper's: all rows share ‖R‖_F, or with ``is_causal`` that of the leading block.
            ``"row"`` divides row i by ‖R_i‖ √n_i, n_i being the number of keys it may see: no output depends on
            another query, so every mask is safe. Where all rows have the same
            norm and see every key, the two are equal.
        hops: K returns Σ_{t=1..K} (γÂ)^t v; ``math.inf`` solves (I − γÂ) Z = γÂ v. 1 is the paper's layer.
        eps: ε.
        dropout_p: dropout on Â, applied whenever it is > 0; only with ``hops=1``.
        impl: ``"reference"`` (dense, N² memory), ``"chunked"`` (memory linear in N, no double backward),
            ``"triton"`` (the same in GPU kernels; no ``attn_mask``, dropout, ``hops=inf`` or float64, widths up to
            128) or ``"auto"``: the kernels where they support the call, on a GPU; the
            reference for export, ``torch.func``, forward-mode derivatives, and ``hops=inf`` up to 512 tokens; else
            chunked. Only the reference can be differentiated twice.

    Returns:
        (B, H, Nq, dv), in the dtype of q. Sums are kept in float32 (float64 for float64 input).

    Example:
        >>> q = k = v = torch.randn(1, 8, 1024, 64)
        >>> infsa.pure_attention(q, k, v, gamma=0.7).shape
        torch.Size([1, 8, 1024, 64])
    """
    if attn_mask is None and key_mask is None and query_mask is None and asks_for_kernels(q, impl):
        from .triton_function import straight_attention

        z = straight_attention(q, k, v, gamma, activation, is_causal, norm, hops, eps, dropout_p, impl)
        if z is not None:
            return z
    q, k, v = as_autocast(q, k, v)
    check_attention_inputs(q, k, v)
    decay = decay_per_head(gamma, q.shape[1], q)
    check_hops(hops)
    check_dropout(dropout_p)
    if dropout_p > 0 and hops != 1:
        raise ValueError(f"dropout_p={dropout_p!r} needs hops=1, got hops={hops!r}")
    rule = checked_rule(q, k, attn_mask, key_mask, query_mask, activation, is_causal, norm, eps)
    if hops != 1 and q.shape[2] != k.shape[2]:
        raise ValueError(f"hops={hops!r} needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
    impl = choose_pure(impl, q, v, rule.attn_mask, hops, dropout_p)
    q, k, v = zero_masked(q, rule.query_mask), zero_masked(k, rule.key_mask), zero_masked(v, rule.key_mask)
    if norm != "row" and (rule.attn_mask is None or not rule.attn_mask.is_floating_point()):
        rule = rule._replace(key_mask=None, query_mask=None)  # zeroed tokens have no edges unless a mask adds them

    if impl == "reference":
        weights, prefix = reference.pure_weights(q, k, rule)
        if dropout_p > 0:
            weights = torch.dropout(weights, dropout_p, train=True)
        return cast_output(reference.pure_diffusion(weights, v, decay, hops, prefix), q.dtype)
    if impl == "triton":
        return _by_kernels(q, k, v, decay if isinstance(gamma, Tensor) else float(gamma), rule, int(hops))
    seed = torch.randint(2**62, ()) if dropout_p > 0 else None
    if hops == math.inf:
        z, _ = register.pure_chunked(q, k, v, decay, *rule, 0.0, None)
        return cast_output(decay * z, q.dtype)
    z, _ = register.pure_chunked(q, k, v, None, *rule, dropout_p, seed)
    for _ in range(int(hops) - 1):
        z, _ = register.pure_chunked(q, k, v + decay * z, None, *rule, 0.0, None)
    return cast_output(decay * z, q.dtype)


def _by_kernels(q: Tensor, k: Tensor, v: Tensor, gamma: float | Tensor, rule: Rule, hops: int) -> Tensor:
    """Z by the Triton kernels, which multiply by γ themselves."""
    from .triton_function import attend

    is_causal, seen = rule.causal == "yes", None
    if rule.norm == "row":
        seen = visible_keys(rule.key_mask, q.shape[2], k.shape[2], is_causal, q.device)
    z = attend(q, k, v, gamma, seen, rule.activation, is_causal, rule.eps)
    for _ in range(hops - 1):
        z = attend(q, k, v + z, gamma, seen, rule.activation, is_causal, rule.eps)
    return z


def packed_attention(qkv: Tensor, *, impl: str = "auto", **options: Any) -> Tensor:
    """:func:`pure_attention` of q, k and v in one (B, N, 3, H, d) tensor, of which the kernels write one gradient."""
    if asks_for_kernels(qkv, impl):
        from .triton_function import straight_attention

        q, k, v = qkv.detach().permute(2, 0, 3, 1, 4).unbind()
        z = straight_attention(q, k, v, impl=impl, packed=qkv, **options)
        if z is not None:
            return z
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
    return pure_attention(q, k, v, impl=impl, **options)


def pure_weights(q: Tensor, k: Tensor, **edges: Unpack[EdgeOptions]) -> Tensor:
    """Â = R / (‖R‖_F + ε) itself, without γ: (B, H, Nq, Nk), dense, for inspection and small N.

    The other arguments are ``activation``, ``attn_mask``, ``key_mask``, ``query_mask``, ``is_causal``, ``norm`` and
    ``eps`` of :func:`pure_attention`.

    Example:
        >>> q = k = torch.randn(1, 8, 196, 64)
        >>> infsa.pure_weights(q, k).shape
        torch.Size([1, 8, 196, 196])
    """
    q, k = as_autocast(q, k)
    check_attention_inputs(q, k)
    rule = checked_rule(q, k, **edges)
    q, k = zero_masked(q, rule.query_mask), zero_masked(k, rule.key_mask)
    return cast_output(reference.pure_weights(q, k, rule)[0], q.dtype)
