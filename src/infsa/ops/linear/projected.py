"""Pool-first Linear-InfSA from tokens and projection weights: neither queries nor keys need to exist for all tokens."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..activation import ACTIVATIONS
from ..checks import check_activation, check_count, check_eps, check_token_mask, choose_implementation, shape_of
from ..rows import by_sums, linear_by_sums
from ..triton.support import DTYPES, FEW_TOKENS, LARGEST_WIDTH, Projection, pool_limit
from . import Causal, Pooled, central_pool, weighted_mean

PLAIN = (Tensor, nn.Parameter)
FUSED = (torch.bfloat16,)  # sums over tokens by products are rounded like it; float16 would need units of its own


def projected_values(
    x: Tensor,
    num_heads: int,
    query: Projection,
    key: Projection | None,
    value: Projection,
    *,
    gamma: float | Tensor = 1.0,
    activation: str = "relu",
    key_mask: Tensor | None = None,
    eps: float = 1e-6,
    impl: str = "auto",
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Pool x (B, N, D) and project what was pooled: γ Σ a_j v_j of each group (B, H, m, d), and each token's group.

    ``gamma`` is a number or a tensor (H,), not checked. The other options are those of :func:`projected_pool`, whose
    result this is after the value projection.

    Example:
        >>> q, v = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)
        >>> x = torch.randn(1, 4096, 512)
        >>> infsa.ops.projected_values(x, 8, (q.weight, q.bias), None, (v.weight, v.bias))[0].shape
        torch.Size([1, 8, 1, 64])
    """
    _check(x, num_heads, query, key_mask, activation, eps)
    if impl == "auto" and _is_one_row(**options):
        values = straight_values(x, num_heads, query, key, value, gamma, key_mask, activation, eps)
        if values is not None:
            return values, None
    options |= {"activation": activation, "key_mask": key_mask, "eps": eps, "impl": impl}
    pooled = projected_pool(x, num_heads, query, key, **options)
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
    options: dict[str, Any] = {"activation": activation, "key_mask": key_mask, "eps": eps, "impl": "reference"}
    return projected_values(x, num_heads, query, key, value, gamma=gamma, **options)[0]


def scale_heads(x: Tensor, gamma: float | Tensor) -> Tensor:
    """γ x for x (B, H, m, d) and γ a float or (H,), in the type of x."""
    if isinstance(gamma, Tensor):
        return x * gamma.to(x.dtype).view(-1, 1, 1)
    return x if gamma == 1.0 else x * gamma


def _cast(projection: Projection, dtype: torch.dtype) -> Projection:
    weight, bias = projection
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _is_one_row(iterations: int = 1, queries: int = 1, causal: Causal = None, chunk_size: int | None = None) -> bool:
    return iterations == 1 and queries == 1 and causal is None and chunk_size is None


def straight_values(
    x: Tensor,
    num_heads: int,
    query: Projection,
    key: Projection | None,
    value: Projection,
    gamma: float | Tensor,
    key_mask: Tensor | None,
    activation: str,
    eps: float,
) -> Tensor | None:
    """``projected_values`` by one function with few launches, for one group on a GPU; None where it is not for that.

    Whatever it does not know, and whatever is wrong, is left to the way of plain operations.
    """
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or type(x) not in PLAIN:
        return None
    cast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if cast else x.dtype
    tensors = (x, *query, *(key or (None, None)), *value)
    kinds = tuple([None if y is None else (type(y), y.dtype, y.device, y.shape) for y in tensors])
    if not _fits(kinds, dtype, cast, num_heads, activation, eps) or choose_implementation("auto", x, None) != "triton":
        return None
    if isinstance(gamma, Tensor) and (type(gamma) not in PLAIN or gamma.device != x.device):
        return None
    if key_mask is not None:
        check_token_mask(key_mask, "key_mask", x.shape[0], x.shape[1], x.device)
        x = x.masked_fill(~key_mask.unsqueeze(-1), 0)
    from .fused import fused_values

    x = x if x.dtype is dtype else x.to(dtype)
    return fused_values(x, num_heads, query, key, value, gamma, key_mask, activation, eps)


@functools.lru_cache(512)
def _fits(
    kinds: tuple[tuple[type, torch.dtype, torch.device, torch.Size] | None, ...],
    dtype: torch.dtype,
    cast: bool,
    heads: int,
    activation: str,
    eps: float,
) -> bool:
    """Whether tokens and projections of these types, devices and shapes are for one function, in ``dtype``."""
    x, query, value = kinds[0], kinds[1], kinds[5]
    if x is None or query is None or value is None:
        return False
    if len(x[3]) != 3 or activation not in ACTIVATIONS or not 0 <= eps < math.inf:
        return False
    batch, n, dim = x[3]
    if not batch or n <= FEW_TOKENS or dtype not in FUSED or x[1] not in DTYPES or query[1] not in DTYPES:
        return False
    rows, columns = query[3][0], value[3][0]
    for kind, shape in zip(kinds[1:], ((rows, dim), (rows,)) * 2 + ((columns, dim), (columns,)), strict=True):
        if kind is not None and (kind[0] not in PLAIN or kind[1:] != (query[1], x[2], shape)):
            return False
    if not cast and x[1] != query[1]:
        return False
    return rows % heads == 0 and columns % heads == 0 and max(rows, columns) <= LARGEST_WIDTH * heads


def project_pooled(pooled: Pooled, weight: Tensor, bias: Tensor | None, num_heads: int) -> Tensor:
    """Apply a value projection after pooling: (Σ a x) Wᵀ + (Σ a) b, head by head.

    Exact, and it touches one row per head instead of N: (B, H, m, D_in) -> (B, H, m, d).
    """
    per_head = weight.unflatten(0, (num_heads, -1))  # (H, d, D_in)
    mean = pooled.mean.to(weight.dtype)
    if by_sums(mean[:, 0], weight):
        values = linear_by_sums(mean, per_head.unsqueeze(1), None)
    else:
        rows = mean.transpose(0, 1)  # heads first: a weight per head, none copied per image
        values = (rows.flatten(1, 2) @ per_head.mT).unflatten(1, rows.shape[1:3]).transpose(0, 1)
    if bias is not None:
        values = values + pooled.mass.to(bias.dtype).unsqueeze(-1) * bias.view(num_heads, 1, -1)
    return values


def projected_pool(
    x: Tensor,
    num_heads: int,
    query: Projection,
    key: Projection | None = None,
    *,
    activation: str = "relu",
    key_mask: Tensor | None = None,
    iterations: int = 1,
    queries: int = 1,
    causal: Causal = None,
    chunk_size: int | None = None,
    eps: float = 1e-6,
    impl: str = "auto",
) -> Pooled:
    """Pool x (B, N, D) by the centrality of its own queries and keys, of which the kernels write neither.

    ``query`` and ``key`` are the weight (D, D) and bias (D,) or None of a projection; without ``key`` the keys are the
    queries. Equal to projecting, splitting heads and :func:`central_pool` with x as the values.

    Example:
        >>> layer = torch.nn.Linear(512, 512)
        >>> infsa.ops.projected_pool(torch.randn(1, 4096, 512), 8, (layer.weight, layer.bias)).mean.shape
        torch.Size([1, 8, 1, 512])
    """
    _check(x, num_heads, query, key_mask, activation, eps)
    limit = pool_limit(x, query[0].shape[0] // num_heads, iterations, queries, causal)
    chosen = choose_implementation(impl, x, limit)
    products = impl == "auto" and chosen != "reference" and limit is None and _products_pay(x)
    if key_mask is not None:
        x = x.masked_fill(~key_mask.unsqueeze(-1), 0)
    if products or chosen == "triton":
        energies = _energies_of_queries if chosen == "triton" else _energies_by_products
        sums = (energies, _scores_by_products) if products else _kernels()
        return _pool_from_tokens(x, num_heads, query, key or query, activation, key_mask, eps, *sums)
    q = _project(x, query, num_heads)
    return central_pool(
        q,
        q if key is None else _project(x, key, num_heads),
        x.unsqueeze(1),
        activation=activation,
        key_mask=key_mask,
        iterations=iterations,
        queries=queries,
        causal=causal,
        chunk_size=chunk_size,
        eps=eps,
        impl=chosen,
    )


def _check(x: Tensor, num_heads: int, query: Projection, key_mask: Tensor | None, activation: str, eps: float) -> None:
    check_count(num_heads, "num_heads")
    if x.dim() != 3 or query[0].shape[1:] != x.shape[2:] or query[0].shape[0] % num_heads:
        raise ValueError(
            f"x must be (B, N, D) and the query weight (H d, D) with H = {num_heads}, "
            f"got {shape_of(x)} and {shape_of(query[0])}"
        )
    if x.shape[1] == 0:
        raise ValueError(f"x needs at least one token, got shape {shape_of(x)}")
    check_token_mask(key_mask, "key_mask", x.shape[0], x.shape[1], x.device)
    check_activation(activation)
    check_eps(eps)


def _project(x: Tensor, projection: Projection, num_heads: int) -> Tensor:
    return torch.nn.functional.linear(x, *projection).unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _compute_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _products_pay(x: Tensor) -> bool:
    """Whether matrix products in the type of x are the best way: bfloat16, whose range holds every sum, on a GPU."""
    return x.is_cuda and _compute_dtype(x) == torch.bfloat16


def _pool_from_tokens(
    x: Tensor,
    heads: int,
    query: Projection,
    key: Projection,
    activation: str,
    mask: Tensor | None,
    eps: float,
    energy_sums: Callable[..., tuple[Tensor, Tensor]],
    score_sums: Callable[..., tuple[Tensor, Tensor, Tensor]],
) -> Pooled:
    """Σ a x from two sums over tokens: the scores come from x too, S_j = φ((W_Kᵀ q̄) · x_j + q̄ · b_K)."""
    dtype = torch.float32 if x.shape[1] <= FEW_TOKENS else _compute_dtype(x)
    x, (weight, bias) = x.to(dtype), (None if y is None else y.to(dtype) for y in query)
    with torch.autocast(x.device.type, enabled=False):
        total, vectors = energy_sums(x, weight, bias, mask, heads)
        central = weighted_mean(vectors, total, eps)  # (B, H, d)
        weight, bias = key
        per_head = weight.unflatten(0, (heads, -1))  # (H, d, D)
        if by_sums(x[:, 0], weight):
            u = (central.unsqueeze(-1) * per_head.float()).sum(2)
        else:
            kept = x.dtype if score_sums is _scores_by_products else torch.float32  # the former rounds u to it anyway
            u = (central.to(kept).transpose(0, 1) @ per_head.to(kept)).transpose(0, 1)
        offset = torch.zeros_like(total) if bias is None else (central * bias.float().view(heads, -1)).sum(-1)
        absolute, signed, pooled = score_sums(x, u, offset, mask, activation)
        return Pooled(weighted_mean(pooled, absolute, eps).unsqueeze(2), (signed / (absolute + eps)).unsqueeze(2), None)


def _kernels() -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor, Tensor]]]:
    from .triton_register import energy_sums, score_sums

    return energy_sums, score_sums


def _energies_by_products(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """Σ e (B, H) and Σ e q (B, H, d) in float32; q is the only product over tokens."""
    q = torch.nn.functional.linear(x, weight, bias).unflatten(-1, (heads, -1)).float()  # (B, N, H, d)
    energy = torch.linalg.vector_norm(q, dim=-1)
    if mask is not None:
        energy = energy.masked_fill(~mask.unsqueeze(-1), 0)
    return energy.sum(1), (energy.unsqueeze(-1) * q).sum(1)


def _energies_of_queries(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """The same, with a kernel that reads q once."""
    from .triton_register import query_sums

    return query_sums(torch.nn.functional.linear(x, weight, bias), mask, heads)


def _scores_by_products(
    x: Tensor, u: Tensor, offset: Tensor, mask: Tensor | None, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ|S|, Σ S (B, H) and Σ S x (B, H, D) in float32; S is rounded to the type of x before any sum, Σ S x after it."""
    raw = (x @ u.to(x.dtype).mT).float() + offset.unsqueeze(1)  # (B, N, H)
    scores = ACTIVATIONS[activation].value(raw).to(x.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(-1), 0)
    signed = scores.sum(1, dtype=torch.float32)
    absolute = scores.abs().sum(1, dtype=torch.float32) if activation == "gelu" else signed
    return absolute, signed, (scores.mT @ x).float()
