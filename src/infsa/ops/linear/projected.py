"""Pool-first Linear-InfSA from tokens and projection weights: the value projection acts on what was pooled."""

from typing import Any

import torch
from torch import Tensor

from ..checks import Projection, check_activation, check_count, check_eps, check_token_mask, shape_of
from ..dispatch import choose_linear, fused_limit
from ..dtypes import compute_dtype
from .pooling import Pooled, pool
from .scoring import Scoring


def projected_values(
    x: Tensor,
    num_heads: int,
    query: Projection,
    key: Projection | None,
    value: Projection,
    *,
    gamma: float | Tensor = 1.0,
    key_mask: Tensor | None = None,
    impl: str = "auto",
    q: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Pool x (B, N, D) and project what was pooled: γ Σ a_j v_j of each group (B, H, m, d), and each token's group.

    ``query``, ``key`` and ``value`` are the weight (H d, D) and bias (H d,) or None of a projection; without ``key``
    the keys are the queries. Equal to projecting all tokens, splitting heads and :func:`infsa.linear_attention`, whose
    ``activation``, ``iterations``, ``queries``, ``causal``, ``chunk_size`` and ``eps`` are the other options. ``gamma``
    is a number or a tensor (H,), not checked. Here ``impl`` may also be ``"fused"``: GPU kernels for one group. Without
    gradients the queries ``q`` (B, N, H d) may be those of another product, in the type of x.

    Example:
        >>> q, v = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)
        >>> x = torch.randn(1, 4096, 512)
        >>> infsa.ops.projected_values(x, 8, (q.weight, q.bias), None, (v.weight, v.bias))[0].shape
        torch.Size([1, 8, 1, 64])
    """
    scoring = Scoring(**options)
    check_count(num_heads, "num_heads")
    if x.dim() != 3 or query[0].shape[1:] != x.shape[2:] or query[0].shape[0] % num_heads:
        raise ValueError(
            f"x must be (B, N, D) and the query weight (H d, D) with H = {num_heads}, "
            f"got {shape_of(x)} and {shape_of(query[0])}"
        )
    if x.shape[1] == 0:
        raise ValueError(f"x needs at least one token, got shape {shape_of(x)}")
    check_token_mask(key_mask, "key_mask", x.shape[0], x.shape[1], x.device)
    check_activation(scoring.activation)
    check_eps(scoring.eps)
    projections = (*query, *(key or (None, None)), *value)
    if q is not None and torch.is_grad_enabled():
        raise ValueError("q is taken without gradients only: call under torch.no_grad()")
    if q is not None and (q.shape != (*x.shape[:2], query[0].shape[0]) or q.dtype != x.dtype):
        raise ValueError(f"q must be (B, N, H d) in the type of x, got {shape_of(q)} {q.dtype} for x {shape_of(x)}")
    impl = choose_linear(impl, x, lambda: fused_limit(x, projections, num_heads, gamma, scoring.rounds))
    if key_mask is not None:
        x = x.masked_fill(~key_mask.unsqueeze(-1), 0)
    if impl == "fused":
        from .fused import fused_values

        x, q = x.to(compute_dtype(x)), None if q is None else q.to(compute_dtype(x))
        options = {"gamma": gamma, "mask": key_mask, "activation": scoring.activation, "eps": scoring.eps}
        return fused_values(x, num_heads, query, key, value, **options, q=q), None
    given, q = q, _project(x, query, num_heads) if q is None else split_heads(q, num_heads)
    k = q if key is None and given is None else _project(x, key or query, num_heads)
    pooled = pool(q, k, x.unsqueeze(1), scoring, key_mask, None, impl)
    return scale_heads(project_pooled(pooled, *value, num_heads), gamma), pooled.groups


def plain_values(
    x: Tensor,
    num_heads: int,
    query: Projection,
    key: Projection | None,
    value: Projection,
    gamma: float | Tensor,
    key_mask: Tensor | None,
    activation: str,
    eps: float,
) -> Tensor:
    """The same for one group in plain operations, and in the type of x."""
    query, value = _cast(query, x.dtype), _cast(value, x.dtype)
    key = None if key is None else _cast(key, x.dtype)
    options: dict[str, Any] = {"activation": activation, "eps": eps, "impl": "reference"}
    return projected_values(x, num_heads, query, key, value, gamma=gamma, key_mask=key_mask, **options)[0]


def scale_heads(x: Tensor, gamma: float | Tensor) -> Tensor:
    """γ x for x (B, H, m, d) and γ a float or (H,), in the type of x."""
    if isinstance(gamma, Tensor):
        return x * gamma.to(x.dtype).view(-1, 1, 1)
    return x if gamma == 1.0 else x * gamma


def project_pooled(pooled: Pooled, weight: Tensor, bias: Tensor | None, num_heads: int) -> Tensor:
    """Apply a value projection after pooling: (Σ a x) Wᵀ + (Σ a) b, head by head.

    Exact, and it touches one row per head instead of N: (B, H, m, D_in) -> (B, H, m, d).
    """
    per_head = weight.unflatten(0, (num_heads, -1))  # (H, d, D_in)
    rows = pooled.mean.to(weight.dtype).transpose(0, 1)  # heads first: a weight per head, none copied per image
    values = (rows.flatten(1, 2) @ per_head.mT).unflatten(1, rows.shape[1:3]).transpose(0, 1)
    if bias is not None:
        values = values + pooled.mass.to(bias.dtype).unsqueeze(-1) * bias.view(num_heads, 1, -1)
    return values


def _cast(projection: Projection, dtype: torch.dtype) -> Projection:
    weight, bias = projection
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _project(x: Tensor, projection: Projection, num_heads: int) -> Tensor:
    return split_heads(torch.nn.functional.linear(x, *projection), num_heads)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, H d) -> (B, H, N, d), a view."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
