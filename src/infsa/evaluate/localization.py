"""How well maps agree with boxes, patch by patch, and what a map that knows nothing would score."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou  # type: ignore[import-untyped]

from ..data.boxes import patch_centres, patch_coverage
from ..data.sample import BoxArray
from ..graph.statistics import ranks
from ..ops.checks import check_choice

RULES = ("centre", "area")
CENTRE_WIDTH = 0.25  # σ of the centre-Gaussian baseline, in sides of the image
THRESHOLDS = 256  # at most so many are tried for a box


def patch_labels(boxes: BoxArray, size: tuple[int, int], grid: tuple[int, int], rule: str = "centre") -> Tensor:
    """Which patches count as object, (h, w): centre inside a box, or half of the area covered by the boxes' union.

    ``size`` is (width, height), ``grid`` is (h, w).

    Example:
        >>> patch_labels(np.array([[0, 0, 12, 8]], np.float32), (16, 16), (2, 2), "area").tolist()
        [[True, True], [False, False]]
    """
    check_choice("rule", rule, RULES)
    if rule == "centre":
        return torch.from_numpy(patch_centres(boxes, size, grid))
    return torch.from_numpy(patch_coverage(boxes, size, grid) >= 0.5)


def roc_auc(scores: Tensor, positive: Tensor) -> Tensor:
    """Area under the ROC curve by midranks, (..., N) and boolean (..., N) -> (...); NaN without both kinds.

    Example:
        >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([False, False, True, True]))
        tensor(0.8750, dtype=torch.float64)
    """
    count = positive.sum(-1).double()
    wins = torch.where(positive, ranks(scores), 0).sum(-1) - count * (count - 1) / 2
    return wins / (count * (positive.shape[-1] - count))


def average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """Σ (R_n − R_{n−1}) P_n over the distinct thresholds, (..., N) and boolean (..., N) -> (...).

    NaN where there is no positive.

    Example:
        >>> average_precision(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([False, False, True, True]))
        tensor(0.8333, dtype=torch.float64)
    """
    scores = scores.contiguous()
    ordered, order = scores.sort(dim=-1)
    hits = positive.gather(-1, order).double()
    from_here = hits.flip(-1).cumsum(-1).flip(-1)  # positives at or above each place
    place = torch.searchsorted(ordered, scores)
    precision = from_here.gather(-1, place) / (scores.shape[-1] - place)
    return torch.where(positive, precision, 0).sum(-1) / positive.sum(-1)


def chance_precision(positives: Tensor, patches: int) -> Tensor:
    """The average precision that a random order of N patches, P of them positive, has on average: (...).

    r + (1 − r) H_N / N with r = (P − 1) / (N − 1): above the share P / N, which a constant map has.

    Example:
        >>> chance_precision(torch.tensor(1), 2)
        tensor(0.7500, dtype=torch.float64)
    """
    harmonic = (1 / torch.arange(1, patches + 1, dtype=torch.float64)).sum()
    later = (positives.double() - 1) / max(patches - 1, 1)
    return later + (1 - later) * harmonic.to(later.device) / patches


def centre_map(grid: tuple[int, int], width: float = CENTRE_WIDTH) -> Tensor:
    """A Gaussian in the middle of the image, (h, w), of sum 1: the baseline, since subjects are often centred.

    Example:
        >>> centre_map((2, 2)).tolist()
        [[0.25, 0.25], [0.25, 0.25]]
    """
    y, x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5 for n in grid)
    weights = torch.exp(-(y[:, None] ** 2 + x**2) / (2 * width**2))
    return weights / weights.sum()


def pointing(scores: Tensor, positive: Tensor) -> Tensor:
    """The pointing game, (..., N) -> (...): 1 if the highest patch is positive; the share of hits where several tie.

    Example:
        >>> pointing(torch.tensor([0.1, 0.7, 0.2]), torch.tensor([False, True, True]))
        tensor(1., dtype=torch.float64)
    """
    highest = (scores == scores.amax(-1, keepdim=True)).double()
    return (highest * positive).sum(-1) / highest.sum(-1)


def best_box_iou(scores: Tensor, boxes: BoxArray, size: tuple[int, int]) -> float:
    """The best overlap of a true box with the box around {score ≥ t}, over thresholds t; scores (h, w).

    The threshold is chosen for each image with the truth at hand, so that even a constant map scores the share of the
    box; compare with :func:`centre_map`.

    Example:
        >>> best_box_iou(torch.eye(2), np.array([[0, 0, 16, 16]], np.float32), (16, 16))
        1.0
    """
    h, w = scores.shape
    thresholds = scores.unique()
    if len(thresholds) > THRESHOLDS:
        thresholds = thresholds[torch.linspace(0, len(thresholds) - 1, THRESHOLDS).long()]
    above = scores >= thresholds[:, None, None]  # (T, h, w)
    x0, x1 = (_extent(above.any(1)) * (size[0] / w)).unbind(1)
    y0, y1 = (_extent(above.any(2)) * (size[1] / h)).unbind(1)
    return float(box_iou(torch.stack([x0, y0, x1, y1], 1), torch.from_numpy(boxes.astype(np.float64))).max())


def _extent(marked: Tensor) -> Tensor:
    """First and one past the last marked place of each row, (T, n) -> (T, 2), float64."""
    first = marked.int().argmax(1)
    last = marked.shape[1] - marked.flip(1).int().argmax(1)
    return torch.stack([first, last], 1).double()


class Curve(NamedTuple):
    """Points of a curve, x and y (n,) each."""

    x: Tensor
    y: Tensor


def roc_curve(scores: Tensor, positive: Tensor) -> Curve:
    """False and true positive rate at every distinct threshold, from (0, 0) to (1, 1), for scores (N,).

    Example:
        >>> roc_curve(torch.tensor([0.2, 0.8]), torch.tensor([False, True])).y
        tensor([0., 1., 1.], dtype=torch.float64)
    """
    true, false = _counts(scores, positive)
    zero = true.new_zeros(1)
    return Curve(torch.cat([zero, false / false[-1]]), torch.cat([zero, true / true[-1]]))


def precision_recall_curve(scores: Tensor, positive: Tensor) -> Curve:
    """Recall and precision at every distinct threshold, from the highest down, for scores (N,).

    Example:
        >>> precision_recall_curve(torch.tensor([0.2, 0.8]), torch.tensor([False, True])).y
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    true, false = _counts(scores, positive)
    return Curve(true / true[-1], true / (true + false))


def _counts(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """True and false positives at every distinct threshold, highest first."""
    ordered, order = scores.sort(descending=True)
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool, device=scores.device)])
    true = positive[order].double().cumsum(0)
    return true[last], (~positive[order]).double().cumsum(0)[last]


def stack_labels(
    boxes: Sequence[BoxArray], size: tuple[int, int], grid: tuple[int, int], rule: str = "centre"
) -> Tensor:
    """:func:`patch_labels` of several images, flattened: (B, N)."""
    return torch.stack([patch_labels(one, size, grid, rule).flatten() for one in boxes])
