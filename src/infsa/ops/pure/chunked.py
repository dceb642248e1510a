"""Pure InfSA in memory linear in N, forward and backward, in plain PyTorch on any device.

R = φ(q kᵀ / √d) is visited tile by tile and never kept. One pass yields R v and the squared row norms, and
nothing needs rescaling on the way. The backward pass recomputes R. With s = F + ε, G = ∂L/∂Ẑ and
c_i = ⟨G_i, Ẑ_i⟩:

    dR_ij = G_i · v_j / s_i − R_ij w_i        w_i = Σ_r c_r / (s_r F_r)

where r runs over the rows whose norm contains row i: all of them, or r >= i for the causal prefix norm. With the row
norm F_i = ‖R_i‖ √n_i no row enters another's, and w_i = n_i c_i / (s_i F_i).

The results are Ẑ = Â v without γ and in the accumulation dtype; the caller applies γ and casts.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..activation import ACTIVATIONS
from ..dtypes import accumulation_dtype
from ..masks import allowed_entries, future_entries, visible_keys
from .reference import safe_sqrt

TILE_ELEMENTS = {"cpu": 2**20, "cuda": 2**23}  # entries of R held at once; a handful of such tiles is live
TILE_ROWS = 1024


@dataclass(frozen=True)
class Tile:
    """A rectangle of R: slices over batch, heads, rows and columns, and its number in visiting order."""

    number: int
    batch: slice
    heads: slice
    rows: range
    columns: range

    def with_columns(self, columns: range) -> "Tile":
        """The same rows, other columns."""
        return replace(self, columns=columns)

    @property
    def of_rows(self) -> tuple[slice, slice, slice]:
        """Index of the tile's rows in a (B, H, Nq, ...) tensor."""
        return self.batch, self.heads, slice(self.rows.start, self.rows.stop)

    @property
    def of_columns(self) -> tuple[slice, slice, slice]:
        """Index of the tile's columns in a (B, H, Nk, ...) tensor."""
        return self.batch, self.heads, slice(self.columns.start, self.columns.stop)


def _part(mask: Tensor, tile: Tile) -> Tensor:
    """A view of a broadcast (B, H, Nq, Nk) mask on the tile: every size is 1 or the tile's."""
    wanted = (tile.batch, tile.heads, tile.of_rows[2], tile.of_columns[2])
    return mask[tuple(slice(None) if n == 1 else s for n, s in zip(mask.shape, wanted, strict=True))]


def _steps(length: int, step: int) -> Iterator[range]:
    for start in range(0, length, step):
        yield range(start, min(start + step, length))


@dataclass(frozen=True)
class EdgeMatrix:
    """R as the rule that computes any tile of it from (q, k) and the masks."""

    q: Tensor  # (B, H, Nq, d)
    k: Tensor  # (B, H, Nk, d)
    key_mask: Tensor | None  # (B, Nk), only needed beside an additive attn_mask or for the row norm
    query_mask: Tensor | None  # (B, Nq)
    attn_mask: Tensor | None  # broadcasts to (B, H, Nq, Nk)
    activation: str
    is_causal: bool
    norm: str = "frobenius"
    dropout_p: float = 0.0
    seed: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """The accumulation dtype."""
        return accumulation_dtype(self.q.dtype)

    def tiles(self) -> Iterator[Tile]:
        """Cover R, row block by row block; causal tiles that lie wholly in the future are left out."""
        batch, heads, n_rows, n_columns = *self.q.shape[:3], self.k.shape[2]
        budget = TILE_ELEMENTS.get(self.q.device.type, TILE_ELEMENTS["cuda"])
        rows = min(n_rows, TILE_ROWS)
        columns = max(1, min(n_columns, budget // rows))
        together = max(1, budget // (rows * columns))  # matrices per tile
        head_step = min(heads, together)
        batch_step = max(1, together // max(heads, 1))
        number = 0
        for b in _steps(batch, batch_step):
            for h in _steps(heads, head_step):
                for r in _steps(n_rows, rows):
                    for c in _steps(r.stop if self.is_causal else n_columns, columns):
                        yield Tile(number, slice(b.start, b.stop), slice(h.start, h.stop), r, c)
                        number += 1

    def queries(self, tile: Tile) -> Tensor:
        """The tile's queries, scaled by 1/√d: (b, h, rows, d)."""
        return self.q[tile.of_rows].to(self.dtype) / math.sqrt(self.q.shape[-1])

    def keys(self, tile: Tile) -> Tensor:
        """The tile's keys: (b, h, columns, d)."""
        return self.k[tile.of_columns].to(self.dtype)

    def scores(self, tile: Tile) -> tuple[Tensor, Tensor | None]:
        """S with the additive mask, and where edges may exist (None: everywhere)."""
        scores = self.queries(tile) @ self.keys(tile).mT
        if self.attn_mask is not None and self.attn_mask.is_floating_point():
            mask = _part(self.attn_mask, tile)
            scores += torch.where(allowed_entries(mask), mask.to(self.dtype), 0)
        return scores, self.allowed(tile)

    def allowed(self, tile: Tile) -> Tensor | None:
        """Where the tile's edges may exist; None stands for everywhere."""
        masks = []
        if self.attn_mask is not None:
            masks.append(allowed_entries(_part(self.attn_mask, tile)))
            if self.key_mask is not None:
                masks.append(self.key_mask[tile.batch, None, None, tile.of_columns[2]])
            if self.query_mask is not None:
                masks.append(self.query_mask[tile.batch, None, tile.of_rows[2], None])
        if self.is_causal and tile.columns.stop > tile.rows.start + 1:
            masks.append(~future_entries(tile.rows, tile.columns, self.q.device))
        return functools.reduce(torch.logical_and, masks) if masks else None

    def visible(self) -> Tensor:
        """How many keys each row may see: float64, broadcasts to (B, H, Nq)."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        if self.attn_mask is None:
            return visible_keys(self.key_mask, queries, keys, self.is_causal, self.q.device).unsqueeze(1)
        counts = self.q.new_zeros(self.q.shape[:3], dtype=torch.float64)
        for tile in self.tiles():
            allowed = self.allowed(tile)
            assert allowed is not None
            counts[tile.of_rows] += allowed.expand(*allowed.shape[:3], len(tile.columns)).sum(-1)
        return counts

    def edges(self, tile: Tile) -> Tensor:
        """R on the tile: (b, h, rows, columns)."""
        scores, allowed = self.scores(tile)
        edges = ACTIVATIONS[self.activation].value(scores)
        return edges if allowed is None else edges.masked_fill_(~allowed, 0)

    def edges_and_slope(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """R and φ'(S) on the tile, both zero where no edge may exist."""
        scores, allowed = self.scores(tile)
        edges, slope = (f(scores) for f in ACTIVATIONS[self.activation])
        if allowed is not None:
            edges.masked_fill_(~allowed, 0)
            slope.masked_fill_(~allowed, 0)
        return edges, slope

    def kept(self, tile: Tile) -> Tensor | None:
        """Dropout's factors on the tile, 0 or 1/(1−p), the same at every visit."""
        if self.dropout_p == 0:
            return None
        generator = torch.Generator(self.q.device).manual_seed(self.seed + tile.number)
        sizes = [s.stop - s.start for s in (tile.batch, tile.heads, tile.rows, tile.columns)]
        kept = torch.empty(sizes, dtype=self.dtype, device=self.q.device)
        return kept.bernoulli_(1 - self.dropout_p, generator=generator).div_(1 - self.dropout_p)


def _scope_sum(matrix: EdgeMatrix, per_row: Tensor, prefix: Tensor, reverse: bool = False) -> Tensor:
    """Sum (B, H, N) over the rows that share a norm: all, where ``prefix`` holds those up to (from, if reverse) each.

    The row norm sums over no other row and counts the row's keys instead.
    """
    wide = per_row.double()
    if matrix.norm == "row":
        return wide * matrix.visible()
    running = wide.flip(-1).cumsum(-1).flip(-1) if reverse else wide.cumsum(-1)
    return torch.where(prefix, running, wide.sum(-1, keepdim=True))


def inverse_norm(norm: Tensor, eps: float) -> Tensor:
    """1 / (F + ε), and 0 where F = 0: no edges, no output, no gradient."""
    return torch.where(norm == 0, 0, 1 / (norm + eps))


def diffuse(matrix: EdgeMatrix, v: Tensor, prefix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Ẑ = Â v and the norm F that divided each row: (B, H, Nq, dv), (B, H, Nq)."""
    sums, row_squares = no_sums(matrix.q, v)
    add_sums(matrix, v, sums, row_squares)
    norm = norm_of(_scope_sum(matrix, row_squares, prefix), matrix.dtype)
    sums *= inverse_norm(norm, eps).unsqueeze(-1)
    return sums, norm


def no_sums(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """R v and the squared row norms of a matrix without columns: (B, H, Nq, dv), (B, H, Nq)."""
    sums = q.new_zeros(*q.shape[:3], v.shape[-1], dtype=accumulation_dtype(q.dtype))
    return sums, sums.new_zeros(sums.shape[:3], dtype=torch.float64)  # float32 would overflow from |R| = 1e19


def add_sums(matrix: EdgeMatrix, v: Tensor, sums: Tensor, row_squares: Tensor) -> None:
    """Add R v and the squared row norms, in place."""
    for tile in matrix.tiles():
        edges = matrix.edges(tile)
        row_squares[tile.of_rows] += torch.linalg.vector_norm(edges, dim=-1, dtype=torch.float64).square()
        kept = matrix.kept(tile)
        if kept is not None:
            edges *= kept
        sums[tile.of_rows] += edges @ v[tile.of_columns].to(matrix.dtype)


def norm_of(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """F from F² in float64; its gradient is zero where F = 0."""
    norm = safe_sqrt(squares).to(dtype)
    return torch.where(norm < torch.finfo(dtype).tiny, 0, norm)  # its inverse would be infinite


def diffuse_back(matrix: EdgeMatrix, x: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Âᵀ x for x (B, H, Nq, dv): (B, H, Nk, dv)."""
    scaled = x.to(matrix.dtype) * inverse_norm(norm, eps).unsqueeze(-1)
    sums = scaled.new_zeros(*matrix.k.shape[:3], x.shape[-1])
    for tile in matrix.tiles():
        sums[tile.of_columns] += matrix.edges(tile).mT @ scaled[tile.of_rows]
    return sums


def gradients(
    matrix: EdgeMatrix,
    v: Tensor,
    grad: Tensor,
    z: Tensor,
    norm: Tensor,
    prefix: Tensor,
    eps: float,
    mask_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dK, dV and the gradient of an additive mask (empty if not wanted), in the accumulation dtype."""
    grad, shared = share_gradient(grad.to(matrix.dtype), z, norm, eps)
    weight = _scope_sum(matrix, shared, prefix, reverse=True).to(matrix.dtype).unsqueeze(-1)
    dq, dk, dv = (x.new_zeros(x.shape, dtype=matrix.dtype) for x in (matrix.q, matrix.k, v))
    mask = matrix.attn_mask if mask_needs_grad else None
    dmask = grad.new_zeros(0 if mask is None else mask.shape)
    add_gradients(matrix, v, grad, weight, (dq, dk, dv), None if mask is None else dmask)
    return dq, dk, dv, dmask


def share_gradient(grad: Tensor, z: Tensor, norm: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """G_i / s_i, and what row i hands to the norm, c_i / (s_i F_i): (B, H, Nq, dv), (B, H, Nq)."""
    inverse = inverse_norm(norm, eps)
    return grad * inverse.unsqueeze(-1), (grad * z).sum(-1) * inverse * torch.where(norm == 0, 0, 1 / norm)


def add_gradients(
    matrix: EdgeMatrix,
    v: Tensor,
    grad: Tensor,
    weight: Tensor,
    totals: tuple[Tensor, Tensor, Tensor],
    dmask: Tensor | None = None,
) -> None:
    """Add to dQ, dK, dV and to the gradient of an additive mask, in place; ``grad`` is G / s, ``weight`` w."""
    dq, dk, dv = totals
    for tile in matrix.tiles():
        edges, slope = matrix.edges_and_slope(tile)
        grad_rows = grad[tile.of_rows]
        grad_edges = grad_rows @ v[tile.of_columns].to(matrix.dtype).mT
        kept = matrix.kept(tile)
        if kept is not None:
            grad_edges *= kept
        grad_scores = grad_edges.addcmul_(edges, weight[tile.of_rows], value=-1).mul_(slope)
        if kept is not None:
            edges = edges.mul_(kept)
        dv[tile.of_columns] += edges.mT @ grad_rows
        dq[tile.of_rows] += grad_scores @ matrix.keys(tile) / math.sqrt(matrix.q.shape[-1])
        dk[tile.of_columns] += grad_scores.mT @ matrix.queries(tile)
        if dmask is not None:
            part = _part(dmask, tile)
            part += grad_scores.sum_to_size(part.shape)
