"""The options of Pure InfSA that travel together."""

from typing import Literal, NamedTuple, TypedDict

from torch import Tensor

from ..checks import check_activation, check_attn_mask, check_eps, check_norm
from ..masks import resolve_token_masks

Causality = bool | Literal["auto"]
Norm = Literal["frobenius", "row"]


class EdgeOptions(TypedDict, total=False):
    """The arguments of :func:`infsa.pure_attention` that say which edges exist, and what divides them."""

    activation: str
    attn_mask: Tensor | None
    key_mask: Tensor | None
    query_mask: Tensor | None
    is_causal: Causality
    norm: Norm
    eps: float


class Rule(NamedTuple):
    """Which edges exist, and what divides a row of them."""

    key_mask: Tensor | None  # (B, Nk)
    query_mask: Tensor | None  # (B, Nq)
    attn_mask: Tensor | None  # 4-D, broadcasts to (B, H, Nq, Nk)
    activation: str
    causal: str  # "no", "yes", or "auto": yes where the mask forbids the whole future
    norm: str
    eps: float


def checked_rule(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    activation: str = "relu",
    is_causal: Causality = False,
    norm: str = "frobenius",
    eps: float = 1e-6,
) -> Rule:
    """The rule for q and k, after every argument has been checked."""
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
    return Rule(*resolve_token_masks(q, k, key_mask, query_mask), attn_mask, activation, causal, norm, eps)
