"""hops=inf in memory linear in N: Ẑ = Â (v + γẐ), and its adjoint μ = x + γ Âᵀ μ.

Causal matrices are lower triangular, so block substitution solves them exactly in one pass, and no row ever
depends on a later one. All others are solved by restarted GMRES with a residual test. Both work in float64;
the residual test is the one place in the operators that waits for the device.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .chunked import EdgeMatrix, Tile, diffuse, diffuse_back, inverse_norm

KRYLOV_VECTORS = 16  # kept between restarts; each is as large as v
MAX_RESTARTS = 200


def resolvent(
    matrix: EdgeMatrix, v: Tensor, gamma: Tensor, prefix: Tensor, eps: float, accuracy: float
) -> tuple[Tensor, Tensor]:
    """Ẑ (B, H, N, dv) and the row norms (B, H, N); ``accuracy`` bounds the relative residual."""
    if bool(prefix.all()):
        return _substitute(matrix, v, gamma, eps)
    source, norm = diffuse(matrix, v, prefix, eps)
    return _gmres(lambda z: diffuse(matrix, gamma * z, prefix, eps)[0], source, accuracy), norm


def resolvent_back(
    matrix: EdgeMatrix, x: Tensor, gamma: Tensor, norm: Tensor, prefix: Tensor, eps: float, accuracy: float
) -> Tensor:
    """μ (B, H, N, dv)."""
    if bool(prefix.all()):
        return _substitute_back(matrix, x, gamma, norm, eps)
    return _gmres(lambda mu: gamma * diffuse_back(matrix, mu, norm, eps), x, accuracy)


def _row_blocks(matrix: EdgeMatrix) -> Iterator[tuple[Tile, list[Tile]]]:
    """Diagonal tiles from the first row on, each with the tiles left of it."""
    columns_before: dict[tuple[int, int, int], list[Tile]] = {}
    for tile in replace(matrix, is_causal=True).tiles():
        key = (tile.batch.start, tile.heads.start, tile.rows.start)
        left = columns_before.setdefault(key, [])
        stop = min(tile.columns.stop, tile.rows.start)
        if tile.columns.start < stop:
            left.append(tile.with_columns(range(tile.columns.start, stop)))
        if tile.columns.stop >= tile.rows.stop:  # the last tile of this row block
            yield tile.with_columns(tile.rows), columns_before.pop(key)


def _head_gamma(gamma: Tensor, tile: Tile) -> Tensor:
    return gamma if gamma.shape[0] == 1 else gamma[tile.heads]


def _substitute(matrix: EdgeMatrix, v: Tensor, gamma: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Forward substitution, row block by row block: what lies left of the diagonal is already solved."""
    z = v.new_zeros(*matrix.q.shape[:3], v.shape[-1])
    norm = z.new_zeros(z.shape[:3])
    squares = z.new_zeros(z.shape[:2])  # ΣR² of the rows above
    visible = matrix.visible().expand(z.shape[:3]) if matrix.norm == "row" else None
    for diagonal, left in _row_blocks(matrix):
        rows, heads = diagonal.of_rows, (diagonal.batch, diagonal.heads)
        known, row_squares = torch.zeros_like(z[rows]), torch.zeros_like(norm[rows])
        decay = _head_gamma(gamma, diagonal)
        for tile in left:
            edges = matrix.edges(tile)
            row_squares += edges.square().sum(-1)
            known += edges @ (v[tile.of_columns] + decay * z[tile.of_columns])
        edges = matrix.edges(diagonal)
        row_squares += edges.square().sum(-1)
        if visible is not None:
            norm[rows] = (row_squares * visible[rows]).sqrt()
        else:
            running = squares[heads].unsqueeze(-1) + row_squares.cumsum(-1)
            squares[heads] = running[..., -1]
            norm[rows] = running.sqrt()
        inverse = inverse_norm(norm[rows], eps).unsqueeze(-1)
        system = torch.eye(edges.shape[-1], dtype=z.dtype, device=z.device) - decay * edges * inverse
        source = (known + edges @ v[rows]) * inverse
        z[rows] = torch.linalg.solve_triangular(system, source, upper=False)
    return z, norm


def _substitute_back(matrix: EdgeMatrix, x: Tensor, gamma: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Backward substitution: the last rows first, each handing its share to the columns before it."""
    mu = x.clone()
    inverse = inverse_norm(norm, eps).unsqueeze(-1)
    for diagonal, left in reversed(list(_row_blocks(matrix))):
        rows, decay = diagonal.of_rows, _head_gamma(gamma, diagonal)
        block = decay * matrix.edges(diagonal) * inverse[rows]
        system = torch.eye(block.shape[-1], dtype=mu.dtype, device=mu.device) - block.mT
        mu[rows] = torch.linalg.solve_triangular(system, mu[rows], upper=True)
        share = decay * mu[rows] * inverse[rows]
        for tile in left:
            mu[tile.of_columns] += matrix.edges(tile).mT @ share
    return mu


def _gmres(step: Callable[[Tensor], Tensor], b: Tensor, accuracy: float) -> Tensor:
    """Solve x = b + step(x) for every batch item and head at once, (B, H, N, dv) each being one vector."""
    x, scale = torch.zeros_like(b), _length(b)
    if b.numel() == 0:
        return x
    for _ in range(MAX_RESTARTS):
        residual = b + step(x) - x
        length = _length(residual)
        worst = float((length / (scale + _length(x)).clamp_min(torch.finfo(b.dtype).tiny)).max())
        if worst <= accuracy:
            return x
        if not math.isfinite(worst):
            break
        x = x + _krylov_correction(step, residual, length)
    raise RuntimeError(f"hops=inf did not converge: relative residual {worst:.1e}, wanted {accuracy:.1e}")


def _krylov_correction(step: Callable[[Tensor], Tensor], residual: Tensor, length: Tensor) -> Tensor:
    """The combination of Krylov vectors that best reduces the residual, per batch item and head."""
    basis = [residual / _nonzero(length)]
    columns = []
    for _ in range(KRYLOV_VECTORS):
        w = basis[-1] - step(basis[-1])
        column = []
        for vector in basis:  # modified Gram-Schmidt
            overlap = (vector * w).sum((-2, -1), keepdim=True)
            column.append(overlap)
            w = w - overlap * vector
        column.append(_length(w))
        columns.append(column)
        basis.append(w / _nonzero(column[-1]))
    m = KRYLOV_VECTORS
    hessenberg = residual.new_zeros(*residual.shape[:2], m + 1, m)
    for j, column in enumerate(columns):
        hessenberg[:, :, : j + 2, j] = torch.cat(column, -1).squeeze(-2)
    target = torch.cat([length, torch.zeros_like(length).expand(-1, -1, m, -1)], -2)  # (B, H, m + 1, 1)
    weights = torch.linalg.pinv(hessenberg) @ target
    return sum((weights[:, :, j, None] * basis[j] for j in range(m)), torch.zeros_like(residual))


def _length(x: Tensor) -> Tensor:
    """‖x‖ of each batch item and head: (B, H, 1, 1)."""
    return torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1)
