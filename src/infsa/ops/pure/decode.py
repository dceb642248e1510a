"""Causal Pure InfSA one step at a time."""

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..checks import (
    accumulation_dtype,
    as_autocast,
    cast_output,
    check_activation,
    check_attention_inputs,
    check_eps,
    check_gamma,
    check_norm,
    check_token_mask,
    decay_per_head,
    shape_of,
)
from ..masks import visible_keys, zero_masked
from . import Norm
from .chunked import inverse_norm, norm_of

STEP_ROWS = 128  # a long prefill is worked off in blocks of this many rows


class PureDecodeState:
    """Keys, values and one running ΣR² per batch row and head: all that causal Pure InfSA remembers.

    Feeding a sequence in steps of any size equals ``pure_attention(..., is_causal=True)`` over the whole, with either
    norm; for ``norm="row"`` it remembers which keys are real instead of ΣR².
    For inference: the outputs carry no gradient.

    Example:
        >>> state = infsa.PureDecodeState(gamma=0.7)
        >>> prompt = state.step(q, k, v)            # (B, H, t, d) each: t tokens at once
        >>> token = state.step(q1, k1, v1)          # (B, H, 1, d) each: one more
        >>> len(state)
    """

    def __init__(
        self, *, gamma: float | Tensor = 0.7, activation: str = "relu", norm: Norm = "frobenius", eps: float = 1e-6
    ) -> None:
        check_activation(activation)
        check_norm(norm)
        check_eps(eps)
        if not isinstance(gamma, Tensor):
            check_gamma(gamma)
        self.gamma, self.activation, self.norm, self.eps = gamma, activation, norm, eps
        self._length = 0
        self._keys: Tensor | None = None  # (B, H, capacity, d)
        self._values: Tensor | None = None  # (B, H, capacity, dv)
        self._squares: Tensor | None = None  # ΣR² so far, (B, H), float64
        self._real: Tensor | None = None  # how many keys so far are real, (B, 1), float64

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> Tensor:
        """The keys so far: (B, H, N, d)."""
        return self._filled(self._keys)

    @property
    def values(self) -> Tensor:
        """The values so far: (B, H, N, dv)."""
        return self._filled(self._values)

    @torch.no_grad()
    def step(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Append t tokens, (B, H, t, d) each, and return their outputs (B, H, t, dv).

        ``key_mask`` (B, t), True for real tokens: a masked token has no edges and a zero output.
        """
        q, k, v = as_autocast(q, k, v)
        check_attention_inputs(q, k, v)
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"a step needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
        check_token_mask(key_mask, "key_mask", k.shape[0], k.shape[2], k.device)
        decay = decay_per_head(self.gamma, q.shape[1], q)
        q, k, v = (zero_masked(x, key_mask) for x in (q, k, v))
        start = self._length
        self._append(k, v)
        if self._squares is None:
            self._squares = q.new_zeros(q.shape[:2], dtype=torch.float64)
            self._real = q.new_zeros(q.shape[0], 1, dtype=torch.float64)
        assert self._real is not None
        seen = self._real + visible_keys(key_mask, q.shape[2], q.shape[2], True, q.device)  # (B, t)
        self._real = seen[:, -1:]
        blocks = []
        for i in range(0, q.shape[2], STEP_ROWS):
            rows = slice(i, i + STEP_ROWS)
            blocks.append(self._rows(q[:, :, rows], start + i, seen[:, None, rows]))
        return cast_output(decay * torch.cat(blocks, 2), q.dtype)

    def _rows(self, q: Tensor, first: int, seen: Tensor) -> Tensor:
        """Outputs of consecutive rows, the first of which has index ``first``; ``seen`` (B, 1, t) keys are theirs."""
        assert self._squares is not None
        dtype = accumulation_dtype(q.dtype)
        stop = first + q.shape[2]
        with torch.autocast(q.device.type, enabled=False):
            scores = q.to(dtype) / q.shape[3] ** 0.5 @ self.keys[:, :, :stop].to(dtype).mT
            edges = ACTIVATIONS[self.activation].value(scores).tril(first)
            row_squares = torch.linalg.vector_norm(edges, dim=-1, dtype=torch.float64).square()
            squares = self._squares.unsqueeze(-1) + row_squares.cumsum(-1)
            self._squares = squares[:, :, -1]
            norm = norm_of(row_squares * seen if self.norm == "row" else squares, dtype).unsqueeze(-1)
            return edges @ self.values[:, :, :stop].to(dtype) * inverse_norm(norm, self.eps)

    def _append(self, k: Tensor, v: Tensor) -> None:
        """Write into buffers that double when full, so that a step costs no copy of the past."""
        needed = self._length + k.shape[2]
        self._keys = self._room(self._keys, k, needed)
        self._values = self._room(self._values, v, needed)
        self._keys[:, :, self._length : needed] = k
        self._values[:, :, self._length : needed] = v
        self._length = needed

    def _room(self, buffer: Tensor | None, new: Tensor, needed: int) -> Tensor:
        if buffer is None:
            return torch.empty_like(new, memory_format=torch.contiguous_format)
        batch, heads, capacity, width = buffer.shape
        if (batch, heads, width) != (new.shape[0], new.shape[1], new.shape[3]) or new.dtype != buffer.dtype:
            raise ValueError(
                f"the state holds {shape_of(buffer[:, :, : self._length])} {buffer.dtype}, "
                f"got a step of {shape_of(new)} {new.dtype}"
            )
        if needed <= capacity:
            return buffer
        larger = buffer.new_empty(batch, heads, max(needed, 2 * capacity), width)
        larger[:, :, : self._length] = buffer[:, :, : self._length]
        return larger

    def _filled(self, buffer: Tensor | None) -> Tensor:
        if buffer is None:
            raise ValueError("the state is empty: call step first")
        return buffer[:, :, : self._length]
