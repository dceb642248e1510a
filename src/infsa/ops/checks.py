"""Checks on what users pass in: each failure is one line that names the value and what would be accepted."""

import math
from typing import Any

import torch
from torch import Tensor

from .activation import ACTIVATIONS
from .dtypes import accumulation_dtype

NORMS = ("frobenius", "row")
INTEGERS = (int, torch.SymInt)
Projection = tuple[Tensor, Tensor | None]  # weight (H d, D) and bias (H d,)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The shape as a plain tuple, for error messages."""
    return tuple(tensor.shape)


def check_heads(**tensors: Tensor) -> None:
    """Refuse anything but floating (B, H, N, d) tensors of one dtype and device, N >= 1 and d >= 1."""
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor of shape (B, H, N, d), got {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have shape (B, H, N, d), got {shape_of(tensor)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be a floating tensor, got {tensor.dtype}")
        if tensor.dtype != first.dtype:
            raise TypeError(f"{first_name} and {name} must share one dtype, got {first.dtype} and {tensor.dtype}")
        if tensor.device != first.device:
            raise ValueError(f"{first_name} and {name} must be on one device, got {first.device} and {tensor.device}")
        if tensor.shape[:2] != first.shape[:2]:
            raise ValueError(
                f"{first_name} and {name} must share B and H, got {shape_of(first)} and {shape_of(tensor)}"
            )
        if tensor.shape[1] == 0 or tensor.shape[2] == 0 or tensor.shape[3] == 0:
            raise ValueError(f"{name} needs at least one head, token and channel, got shape {shape_of(tensor)}")


def check_attention_inputs(q: Tensor, k: Tensor, v: Tensor | None = None) -> None:
    """Refuse q, k (and v) that do not fit each other."""
    check_heads(q=q, k=k) if v is None else check_heads(q=q, k=k, v=v)
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must share the head width, got {q.shape[3]} and {k.shape[3]}")
    if v is not None and v.shape[2] != k.shape[2]:
        raise ValueError(f"k and v must have the same number of tokens, got {k.shape[2]} and {v.shape[2]}")


def check_token_mask(mask: Tensor | None, name: str, batch: int, tokens: int, device: torch.device) -> None:
    """Refuse a key or query mask that is not boolean, (B, N) and on the tokens' device."""
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a boolean tensor of shape (B, N), got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean (True = real token), got {mask.dtype}")
    if shape_of(mask) != (batch, tokens):
        raise ValueError(f"{name} must have shape (B, N) = {(batch, tokens)}, got {shape_of(mask)}")
    _check_device(mask, name, device)


def _check_device(mask: Tensor, name: str, device: torch.device) -> None:
    if mask.device != device:
        raise ValueError(f"{name} must be on {device} like the tokens, got {mask.device}")


def check_attn_mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the mask as a 4-D view that broadcasts to (B, H, Nq, Nk), or refuse it."""
    if mask is None:
        return None
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask must be a tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"attn_mask must be boolean (True = allowed) or floating (added), got {mask.dtype}")
    fits = mask.dim() <= 4 and all(
        size in (1, full) for size, full in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"attn_mask must broadcast to (B, H, Nq, Nk) = {shape}, got {shape_of(mask)}")
    _check_device(mask, "attn_mask", q.device)
    return mask[(None,) * (4 - mask.dim())]


def check_activation(activation: str) -> None:
    """Refuse an activation that does not exist."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")


def check_norm(norm: str) -> None:
    """Refuse a norm that does not exist."""
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {list(NORMS)}, got {norm!r}")


def check_eps(eps: float) -> None:
    """Refuse an ε that is negative or not finite."""
    if isinstance(eps, bool) or not isinstance(eps, int | float | torch.SymFloat) or not 0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and >= 0, got {eps!r}")


def check_count(value: Any, name: str, at_least: int = 1) -> None:
    """Refuse anything but an integer >= ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, INTEGERS) or value < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}")


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse a value that is not among the choices."""
    known = list(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def check_gamma(gamma: float) -> None:
    """Refuse a float decay outside (0, 1)."""
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"gamma must be a float in (0, 1), got {gamma!r}")
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must lie strictly between 0 and 1, got {gamma!r}")


def decay_per_head(gamma: float | Tensor, heads: int, like: Tensor) -> Tensor:
    """γ as an accumulation-dtype tensor that broadcasts over (B, H, N, d): shape (1 or H, 1, 1).

    A float is validated; a tensor is not, because reading its value would wait for the device.
    """
    dtype = accumulation_dtype(like.dtype)
    if not isinstance(gamma, Tensor):
        check_gamma(gamma)
        return torch.full((1, 1, 1), gamma, dtype=dtype, device=like.device)
    if not gamma.is_floating_point():
        raise TypeError(f"gamma must be a floating tensor, got {gamma.dtype}")
    if gamma.dim() > 1 or gamma.numel() not in (1, heads):
        raise ValueError(f"gamma must broadcast to (H,) = {(heads,)}, got shape {shape_of(gamma)}")
    return gamma.to(device=like.device, dtype=dtype).reshape(-1, 1, 1)


def backward_schema(operator: str, kept: str, wanted: str, returns: str) -> str:
    """The schema of an operator's gradient: ∂L/∂result, its tensors, what is ``kept``, its options, and ``wanted``.

    The operator's tensors come first among its arguments.
    """
    namespace, name = operator.split("::")
    schema = str(getattr(getattr(torch.ops, namespace), name).default._schema)
    arguments = schema.partition("(")[2].partition(") ->")[0].split(", ")
    options = next(place for place, argument in enumerate(arguments) if not argument.startswith("Tensor"))
    return f"({', '.join(['Tensor grad', *arguments[:options], kept, *arguments[options:], wanted])}) -> {returns}"


def refuse_second_derivatives(*operators: str) -> None:
    """Let the backward passes of custom operators say who can be differentiated twice."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("this implementation has no second derivatives; impl='reference' has")

    for operator in operators:
        torch.library.register_autograd(operator, refuse)


def check_dropout(dropout: float, name: str = "dropout_p") -> None:
    """Refuse a dropout rate outside [0, 1)."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float | torch.SymFloat) or not 0 <= dropout < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {dropout!r}")


def check_hops(hops: float) -> None:
    """Refuse anything but a positive integer or infinity."""
    if hops != math.inf:
        check_count(hops, "hops (or math.inf)")
