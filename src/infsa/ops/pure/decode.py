"""Causal Pure InfSA one step at a time."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..checks import (
    check_activation,
    check_attention_inputs,
    check_eps,
    check_gamma,
    check_norm,
    check_token_mask,
    decay_per_head,
    shape_of,
)
from ..dtypes import accumulation_dtype, as_autocast, cast_output
from ..masks import allowed_entries, visible_keys, zero_masked
from .chunked import inverse_norm, norm_of
from .rule import Norm

STEP_ROWS = 128  # rows that are worked off at once


@dataclass(frozen=True)
class PrefixRows:
    """Consecutive rows of Pure InfSA, each divided by the norm of all rows up to it, block by block; differentiable."""

    activation: str
    eps: float
    dropout: float = 0.0
    keep: bool = False  # Â too
    seen: Tensor | None = None  # (B, t): how many keys each row may see; asks for the row norm

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        real: Tensor | None = None,
        past: Tensor | None = None,
        first: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs (B, H, t, dv) without γ, the running ΣR² after each row (B, H, t), and Â (B, H, t, Nk) or None.

        ``mask`` broadcasts to (B, H, t, Nk), ``real`` (B, t) marks the rows that are tokens, ``past`` (B, H) is ΣR² of
        the rows before. With ``first``, row i sees the keys up to ``first + i``.
        """
        dtype = accumulation_dtype(q.dtype)
        total = q.new_zeros(q.shape[:2], dtype=torch.float64) if past is None else past
        outputs, running, matrix = [], [], []
        kind = "cpu" if q.device.type == "meta" else q.device.type  # autocast knows no meta device
        with torch.autocast(kind, enabled=False):
            keys, values = k.to(dtype), v.to(dtype)
            for start in range(0, q.shape[2], STEP_ROWS):
                rows = slice(start, min(start + STEP_ROWS, q.shape[2]))
                stop = keys.shape[2] if first is None else first + rows.stop
                scores = q[:, :, rows].to(dtype) / math.sqrt(q.shape[3]) @ keys[:, :, :stop].mT
                part = None if mask is None else mask[:, :, rows] if mask.shape[2] > 1 else mask
                edges = self._edges(scores, part, None if real is None else real[:, None, rows, None])
                if first is not None:
                    edges = edges.tril(first + start)
                row_squares = torch.linalg.vector_norm(edges, dim=-1, dtype=torch.float64).square()
                squares = total.unsqueeze(-1) + row_squares.cumsum(-1)
                total = squares[:, :, -1]
                scope = squares if self.seen is None else row_squares * self.seen[:, None, rows]
                weights = edges * inverse_norm(norm_of(scope, dtype), self.eps).unsqueeze(-1)
                dropped = torch.dropout(weights, self.dropout, train=True) if self.dropout > 0 else weights
                outputs.append(dropped @ values[:, :, :stop])
                running.append(squares)
                matrix += [weights] * self.keep
        return torch.cat(outputs, 2), torch.cat(running, 2), torch.cat(matrix, 2) if self.keep else None

    def _edges(self, scores: Tensor, mask: Tensor | None, real: Tensor | None) -> Tensor:
        allowed = None if mask is None else allowed_entries(mask)
        if mask is not None and mask.is_floating_point():
            scores = scores + torch.where(allowed, mask.to(scores.dtype), 0)  # type: ignore[arg-type]
        edges = ACTIVATIONS[self.activation].value(scores)
        for where in (allowed, real):
            edges = edges if where is None else edges.masked_fill(~where, 0)
        return edges


class PureDecodeState:
    """The state of causal Pure InfSA: keys, values and one running ΣR² per batch row and head.

    Feeding a sequence in steps of any size equals ``pure_attention(..., is_causal=True)`` over the whole sequence, with
    either norm; for ``norm="row"`` it keeps which keys are real instead of ΣR².
    For inference: the outputs carry no gradient.

    Example:
        >>> state = infsa.PureDecodeState(gamma=0.7)
        >>> q, k, v = torch.randn(3, 1, 8, 5, 64)
        >>> state.step(q, k, v).shape  # a prompt of five tokens
        torch.Size([1, 8, 5, 64])
        >>> state.step(q[:, :, :1], k[:, :, :1], v[:, :, :1]).shape  # one more
        torch.Size([1, 8, 1, 64])
        >>> len(state)
        6
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
        if self._real is None:
            self._real = q.new_zeros(q.shape[0], 1, dtype=torch.float64)
        seen = self._real + visible_keys(key_mask, q.shape[2], q.shape[2], True, q.device)  # (B, t)
        self._real = seen[:, -1:]
        rows = PrefixRows(self.activation, self.eps, seen=seen if self.norm == "row" else None)
        z, running, _ = rows(q, self.keys, self.values, past=self._squares, first=start)
        self._squares = running[:, :, -1]
        return cast_output(decay * z, q.dtype)

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
