"""Any-time estimates: logits of a whole image from some of its tiles, with intervals that close on the exact answer.

Tiles are drawn at random without replacement. A sum over all tiles is estimated by the drawn ones, weighted by T/n; the
network then runs on those sums. Its spread and its bias (logits are no linear function of the sums) come from a
jackknife: the drawn tiles are split into groups, and versions of the network that each leave one group out run along.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from ..models import InfViT
from .engine import Engine, Report
from .plan import Limits, plan, stored_bytes, working_bytes
from .run import prepare
from .source import open_source

GROUPS = 10  # of the jackknife


@dataclass(frozen=True)
class Estimate:
    """Logits from a part of the tiles, and an interval for each."""

    logits: Tensor  # (1, classes)
    low: Tensor
    high: Tensor
    tiles: int  # that were looked at
    share: float  # of all tiles
    confidence: float


def estimate(
    model: InfViT,
    source: Any,
    share: float,
    *,
    tile: int = 1024,
    confidence: float = 0.9,
    seed: int = 0,
    memory: str | int | None = None,
    level: int = 0,
    progress: Report | None = None,
) -> Estimate:
    """Estimate the logits from a share of the tiles; a share of 1 gives the exact answer and an interval of width 0.

    Larger shares of the same seed contain the tiles of smaller ones. Intervals need at least 10 tiles.

    Args:
        model: see :func:`infsa.stream`, as for ``source``, ``tile``, ``memory``, ``level`` and ``progress``.
        source: the image; :func:`open_source` chooses a series, a page or bands of one.
        share: share of the tiles, in (0, 1].
        tile: side in pixels; the smaller, the more there are to draw from.
        confidence: confidence of each interval, in (0, 1).
        seed: seed of the draw.
        memory: memory limit of the process.
        level: pyramid level.
        progress: called after every tile.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence!r}")
    if model.global_pool not in ("token", "avg"):
        raise ValueError(f"estimates need global_pool 'token' or 'avg', got {model.global_pool!r}")
    opened = open_source(source, level)
    network, feed = prepare(model, opened, tile)
    total = len(network.tiling)
    count = max(1, round(share * total))
    if count < GROUPS and count < total:
        raise ValueError(f"an interval needs {GROUPS} tiles or all, got share={share!r} of {total}; use smaller tiles")
    drawn = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count]
    weights = jackknife_weights(drawn, total).to(network.device)
    versions, kept = len(weights), len(weights) * count / total
    working, stored = versions * working_bytes(network), math.ceil(kept * stored_bytes(network))
    laid = plan(network, feed, Limits(memory=memory), working, stored)
    order = drawn.sort().values.tolist()
    engine = Engine(network, feed, order, next(iter(laid.stores(network)), None), weights=weights, budget=laid.budget)
    engine.report = progress
    logits, _ = engine.run()
    half = half_width(logits, count, total, confidence)
    return Estimate(logits[:1], logits[:1] - half, logits[:1] + half, count, count / total, confidence)


def jackknife_weights(drawn: Tensor, total: int) -> Tensor:
    """Weights of all tiles: in the first row every drawn tile, in the others all but one group: (1 + G, tiles)."""
    weights = torch.zeros(1 if len(drawn) == total else 1 + GROUPS, total, dtype=torch.float64)
    weights[0, drawn] = total / len(drawn)
    group = torch.arange(len(drawn)) % GROUPS  # the draw is in random order already
    for index in range(1, len(weights)):
        kept = drawn[group != index - 1]
        weights[index, kept] = total / len(kept)
    return weights


def half_width(logits: Tensor, count: int, total: int, confidence: float) -> Tensor:
    """Half the interval, t · √(variance + bias²) with Student's t: logits (1 + G, classes) -> (1, classes).

    variance = (1 − n/T) (G − 1)/G Σ (θ_g − θ)²        bias = (1 − n/T) (G − 1) (mean θ_g − θ)

    The bias is not taken off the estimate, because it is known too roughly: that makes errors larger. It widens the
    interval instead. For a mean over tiles it is zero, and the interval that of the textbooks.
    """
    if count == total:
        return torch.zeros_like(logits[:1])
    apart, rest = logits[1:] - logits[:1], 1 - count / total
    variance = rest * (GROUPS - 1) / GROUPS * apart.square().sum(0, keepdim=True)
    bias = rest * (GROUPS - 1) * apart.mean(0, keepdim=True)
    return t_quantile((1 + confidence) / 2, GROUPS - 1) * (variance + bias.square()).sqrt()


def t_quantile(probability: float, freedom: int) -> float:
    """A quantile of Student's t by its expansion around the normal; to 0.2 % for 9 degrees of freedom up to 0.995."""
    z, n = NormalDist().inv_cdf(probability), freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n**power for power, term in enumerate(terms, start=1))
