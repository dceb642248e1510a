"""Perron root and vector of a dense non-negative matrix, whatever its structure.

A symmetric or strictly positive matrix is easy; a token graph need be neither. It may be periodic (several
eigenvalues share the largest modulus) or reducible (tokens that nothing returns to), where a general
eigensolver may return a vector of mixed signs or lose half its digits. So the matrix is cut into strong
components, each of which has a simple root and a positive vector, and these are put together again.
"""

import numpy as np
import torch
from torch import Tensor

from .errors import ConvergenceError

TIE = 1e-12  # components whose roots differ by less, relatively, count as equal
WIDTH = 1e-13  # relative width of the bracket around a root at which an iteration stops
SHIFT = 1e-13  # how far above the root, relatively, inverse iteration puts its shift
RESIDUAL = 1e-10  # what inverse iteration must reach
POWER_STEPS = 50
NODA_STEPS = 50


def strong_components(edges: Tensor) -> list[list[int]]:
    """The tokens of `edges` (N, N), boolean, in classes that reach each other, each before those it points to."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(csr_array(edges.cpu().numpy()), directed=True, connection="strong")
    ends = np.bincount(labels, minlength=count).cumsum()[:-1]
    return [part.tolist() for part in reversed(np.split(labels.argsort(kind="stable"), ends))]


def tokens_reaching(edges: Tensor, target: int) -> Tensor:
    """Mark (N,) the tokens with a path, of any length from 0, to `target`."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    found = breadth_first_order(csr_array(edges.cpu().numpy().T), target, return_predecessors=False)
    reached = torch.zeros(len(edges), dtype=torch.bool)
    reached[torch.from_numpy(found).long()] = True
    return reached.to(edges.device)


def perron_root(A: Tensor) -> float:
    """Spectral radius of a non-negative matrix (N, N): exactly 0 if and only if the graph has no cycle."""
    parts = strong_components(A > 0)
    return max(_irreducible(A[part][:, part])[0] for part in parts)


def perron_vector(A: Tensor) -> tuple[float, Tensor]:
    """Spectral radius and a vector v >= 0 (N,), of sum 1, with A v = ρ v; v is zero if ρ = 0.

    A component carries such a vector when its root is ρ and no other component with root ρ leads to it; the
    tokens leading to it follow from one linear system. Several such components share the vector as a power
    iteration from the all-ones vector would inside each of them.
    """
    edges = A > 0
    parts = strong_components(edges)
    pairs = [_irreducible(A[part][:, part]) for part in parts]
    root = max(value for value, _ in pairs)
    total = A.new_zeros(len(A))
    if root == 0:
        return 0.0, total
    tied = [i for i, (value, _) in enumerate(pairs) if value >= root * (1 - TIE)]
    for i in tied:
        upstream = tokens_reaching(edges, parts[i][0])
        if any(upstream[parts[j][0]] for j in tied if j != i):
            continue
        weight = _share_of_ones(A[parts[i]][:, parts[i]], pairs[i][1]) if len(tied) > 1 else 1.0
        total += weight * _extend(A, parts[i], pairs[i], upstream)
    return root, total / total.sum()


def eigenvalue_moduli(A: Tensor) -> Tensor:
    """Moduli of all eigenvalues (N,), largest first, gathered component by component."""
    blocks = [A[part][:, part] for part in strong_components(A > 0)]
    moduli = torch.cat([torch.linalg.eigvals(block).abs() for block in blocks])
    return moduli.sort(descending=True).values


def _irreducible(block: Tensor) -> tuple[float, Tensor]:
    """Perron root and non-negative vector of one strong component."""
    if len(block) == 1:
        return float(block[0, 0]), block.new_ones(1)
    scale = float(block.max())
    block = block / scale
    for method in (_power, _noda, _shift_invert):
        found = method(block)
        if found is not None:
            return found[0] * scale, found[1]
    raise ConvergenceError(f"no Perron vector for a component of {len(block)} tokens: weights too far apart")


def _bracket(ratios: Tensor) -> tuple[float, float]:
    """Middle and relative width of the interval (Bx)_i / x_i, which holds the root for any x > 0."""
    low, high = float(ratios.min()), float(ratios.max())
    return (low + high) / 2, (high - low) / high


def _power(block: Tensor) -> tuple[float, Tensor] | None:
    """A few plain power steps: all that most attention graphs need."""
    x = block.new_ones(len(block))
    for _ in range(POWER_STEPS):
        image = block @ x
        root, width = _bracket(image / x)
        if width <= WIDTH:
            return root, x
        x = image / image.max()
    return None


def _noda(block: Tensor) -> tuple[float, Tensor] | None:
    """Noda's iteration: solving with the upper end of the bracket as a shift keeps x positive and closes it.

    The similarity D⁻¹BD, D = diag(x), turns ratios into row sums and the system into a dominant diagonal.
    """
    ones = block.new_ones(len(block))
    x = ones
    for _ in range(NODA_STEPS):
        similar = block * x / x[:, None]
        ratios = similar.sum(dim=1)
        root, width = _bracket(ratios)
        if width <= WIDTH:
            return root, x
        step, info = torch.linalg.solve_ex(torch.diag(ratios.max() * ones) - similar, ones)
        if info != 0 or not (torch.isfinite(step) & (step > 0)).all():
            return None
        x = x * step
        x = x / x.max()
    return None


def _shift_invert(block: Tensor) -> tuple[float, Tensor] | None:
    """Inverse iteration just above the root: for weights many orders apart, right in norm, not by entry."""
    root = float(torch.linalg.eigvals(block).real.max())
    ones = block.new_ones(len(block))
    system = torch.diag(root * (1 + SHIFT) * ones) - block
    x = ones
    for _ in range(3):
        x, info = torch.linalg.solve_ex(system, x)
        x = (x / x.sum()).clamp_min(0)
    small = torch.linalg.vector_norm(block @ x - root * x) <= RESIDUAL * root * torch.linalg.vector_norm(x)
    return (root, x) if info == 0 and small else None


def _share_of_ones(block: Tensor, x: Tensor) -> float:
    """Coefficient of x in the all-ones vector: (y·1) / (y·x), with y the left Perron vector."""
    y = _irreducible(block.mT)[1]
    return float(y.sum() / (y @ x))


def _extend(A: Tensor, part: list[int], pair: tuple[float, Tensor], upstream: Tensor) -> Tensor:
    """Continue the Perron vector of `part` to the tokens upstream of it, where (ρI − A) v = A_part v_part."""
    root, x = pair
    v = A.new_zeros(len(A))
    v[part] = x
    outside = upstream.clone()
    outside[part] = False
    above = outside.nonzero()[:, 0]
    if len(above) > 0:
        system = root * torch.eye(len(above), dtype=A.dtype, device=A.device) - A[above][:, above]
        v[above] = torch.linalg.solve(system, A[above] @ v).clamp_min(0)
    return v
