"""Agreement between score vectors, along the last axis and for any number of them at once."""

import torch
from torch import Tensor


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ / (‖x‖ ‖y‖): (..., N) and (..., N) -> (...).

    Example:
        >>> cosine(torch.tensor([3.0, 4.0]), torch.tensor([4.0, -3.0]))
        tensor(0.)
    """
    return torch.nn.functional.cosine_similarity(x, y, dim=-1)


def ranks(x: Tensor) -> Tensor:
    """Ranks from 0 upwards (..., N), float64; equal values share their mean rank.

    Example:
        >>> ranks(torch.tensor([5, 1, 5]))
        tensor([1.5000, 0.0000, 1.5000], dtype=torch.float64)
    """
    x = x.contiguous()
    ordered = x.sort(dim=-1).values
    below = torch.searchsorted(ordered, x)
    up_to = torch.searchsorted(ordered, x, right=True)
    return (below + up_to - 1).double() / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Correlation of the ranks, (..., N) and (..., N) -> (...); 0 where a vector is constant and ranks nothing.

    Example:
        >>> spearman(torch.tensor([1, 2, 3]), torch.tensor([10, 30, 20]))
        tensor(0.5000, dtype=torch.float64)
    """
    x, y = (r - r.mean(-1, keepdim=True) for r in (ranks(x), ranks(y)))
    scale = x.norm(dim=-1) * y.norm(dim=-1)
    return torch.where(scale > 0, (x * y).sum(-1) / torch.where(scale > 0, scale, 1), 0)
