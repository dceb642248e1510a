"""Agreement between two score vectors."""

import torch
from torch import Tensor


def cosine(x: Tensor, y: Tensor) -> float:
    """⟨x, y⟩ / (‖x‖ ‖y‖)."""
    return float(torch.nn.functional.cosine_similarity(x, y, dim=0))


def ranks(x: Tensor) -> Tensor:
    """Ranks from 0 upwards; equal values share their mean rank."""
    _, place, count = x.unique(return_inverse=True, return_counts=True)
    count = count.double()
    return (count.cumsum(0) - (count + 1) / 2)[place]


def spearman(x: Tensor, y: Tensor) -> float:
    """Correlation of the ranks; 0 where a vector is constant and ranks nothing."""
    x, y = (r - r.mean() for r in (ranks(x), ranks(y)))
    scale = x.norm() * y.norm()
    return float(x @ y / scale) if scale > 0 else 0.0
