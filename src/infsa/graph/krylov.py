"""Iterative solvers that see a graph only through products with a vector.

Each returns its answer together with the relative residual that answer was measured to have, or raises
`ConvergenceError` with the residual it got stuck at.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import ConvergenceError

Product = Callable[[Tensor], Tensor]  # (N,) to (N,), linear

MAX_STEPS = 5000  # products with the graph in one solve
BASIS = 32  # vectors held by the Arnoldi iteration before it restarts
KEPT = 10  # Ritz vectors that survive a restart


def tolerance(dtype: torch.dtype) -> float:
    """Relative residual asked of an iteration in this type; also the round-off allowed in a probability."""
    return 1e-12 if dtype == torch.float64 else 1e-6


def relative(residual: Tensor, size: Tensor | float) -> float:
    """‖residual‖ / size, where `size` is a tensor or a norm; 0 when the residual is 0, whatever the size."""
    norm = float(torch.linalg.vector_norm(residual))
    scale = size if isinstance(size, float) else float(torch.linalg.vector_norm(size))
    if norm == 0:
        return 0.0
    return norm / scale if scale > 0 else float("inf")


def richardson(product: Product, b: Tensor, start: Tensor | None = None) -> tuple[Tensor, float]:
    """Solve x = b + Mx for `product` x ↦ Mx with ρ(M) < 1, by repeating it from `start` (b unless given).

    From b, the iterates are the partial sums of the Neumann series of M. The residual is
    ‖b + Mx − x‖ / ‖b + Mx‖.
    """
    tol = tolerance(b.dtype)
    x = (b if start is None else start).clone()
    residual = float("inf")
    for _ in range(MAX_STEPS):
        after = b + product(x)
        residual = relative(after - x, after)
        if residual <= tol:
            return x, residual
        x = after
    raise ConvergenceError(f"Richardson: residual {residual:.1e} after {MAX_STEPS} steps, need {tol:.0e}")


def is_nilpotent(product: Product, ones: Tensor) -> bool:
    """Whether a non-negative matrix has no cycle: the tokens that still have somewhere to go run out.

    The support of A 1 lies in that of 1, so supports only shrink; the first that stays holds a cycle.
    """
    alive, count = ones, len(ones)
    while count > 0:
        alive = (product(alive) > 0).to(ones)
        before, count = count, int(alive.sum())
        if count == before:
            return False
    return True


class Ritz(NamedTuple):
    """Leading eigenvalues, the vector of the first (real part, norm 1) and the worst relative residual."""

    values: Tensor  # (count,) complex128
    vector: Tensor  # (N,)
    residual: float


def arnoldi(product: Product, start: Tensor, *, count: int = 1) -> Ritz:
    """Leading eigenvalues of a real matrix by an Arnoldi iteration with thick restarts.

    `start` (N, s) opens the search space. One eigenvalue means that of largest real part (the Perron root of
    a non-negative matrix, also when it is periodic), more mean those of largest modulus. A restart keeps the
    best `KEPT` Ritz vectors with their images, so it costs no product. The basis is held in float64 whatever
    the type of the products, whose rounding would otherwise add up.
    """
    tol = tolerance(start.dtype)
    V = start.new_zeros(len(start), 0, dtype=torch.float64)  # orthonormal basis
    W = V  # its image under the matrix
    fresh = start.double()
    residual = float("inf")
    for _ in range(MAX_STEPS):
        for candidate in fresh.mT:
            direction = _orthonormal(candidate, V)
            if direction is not None:
                V = torch.cat([V, direction[:, None]], dim=1)
                W = torch.cat([W, product(direction.to(start.dtype)).double()[:, None]], dim=1)
        values, Y = torch.linalg.eig((V.mT @ W).cpu())
        order = (values.real if count == 1 else values.abs()).argsort(descending=True)
        values, Y = values[order], Y[:, order]
        fresh, residual = _residuals(V, W, values[:count], Y[:, :count], tol)
        if residual <= tol or V.shape[1] == len(V):
            return Ritz(values[:count], (V @ Y[:, 0].real.to(V)).to(start.dtype), residual)
        if V.shape[1] >= BASIS:
            Q = _real_basis(values[:KEPT], Y[:, :KEPT]).to(V)
            V, W = V @ Q, W @ Q
    raise ConvergenceError(f"Arnoldi: residual {residual:.1e} after {MAX_STEPS} steps, need {tol:.0e}")


def _orthonormal(candidate: Tensor, V: Tensor) -> Tensor | None:
    """The unit part of `candidate` outside the span of V, or None if round-off is all there is."""
    x = candidate / torch.linalg.vector_norm(candidate).clamp_min(torch.finfo(V.dtype).tiny)
    for _ in range(2):  # twice is enough
        x = x - V @ (V.mT @ x)
    norm = torch.linalg.vector_norm(x)
    return None if float(norm) <= 10 * torch.finfo(V.dtype).eps else x / norm


def _residuals(V: Tensor, W: Tensor, values: Tensor, Y: Tensor, tol: float) -> tuple[Tensor, float]:
    """Residual (N, 1 or 2), in real vectors, of the first unconverged pair, and the largest relative norm."""
    scale = float(values.abs().max())
    worst, fresh = 0.0, V[:, :0]
    for value, y in zip(values, Y.mT, strict=True):
        real, imaginary = y.real.to(V), y.imag.to(V)
        a, b = float(value.real), float(value.imag)
        outside = torch.stack(
            [W @ real - V @ (a * real - b * imaginary), W @ imaginary - V @ (a * imaginary + b * real)], dim=1
        )
        size = relative(outside, scale)
        if size > tol and fresh.shape[1] == 0:
            fresh = outside
        worst = max(worst, size)
    return fresh, worst


def _real_basis(values: Tensor, Y: Tensor) -> Tensor:
    """Orthonormal real basis of the space of the eigenvectors Y and their conjugates."""
    columns = [Y.real[:, values.imag >= 0], Y.imag[:, values.imag > 0]]
    return torch.linalg.qr(torch.cat(columns, dim=1)).Q
