"""The token graph of one layer, random walks on it, and where they end."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph import AttentionGraph
from ..models import InfViT
from ..models.maps import layer_weights
from ..report.figures import CENTRALITIES

SHOWN = 5  # hops that are drawn one by one


def token_graph(model: InfViT, images: Tensor, layer: int, head: int | None, gamma: float) -> AttentionGraph:
    """The graph of one image (1, C, H, W) in one layer: one head's weights, or their mean over heads.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_pure_tiny")
        >>> token_graph(model, torch.rand(1, 3, 64, 64), layer=-1, head=None, gamma=0.7).size
        65
    """
    weights = layer_weights(model, images, layer, head)[0].double()
    size = weights.shape[-1]
    return AttentionGraph(weights.expand(size, size), gamma)  # one row stands for all in Linear-InfSA


def check_hops(hops: float) -> None:
    """Refuse a number of hops that is not 1, 2, ... or infinite."""
    if not (hops == math.inf or (hops >= 1 and hops == int(hops))):
        raise ValueError(f"hops must be a whole number of at least 1, or infinite, got {hops!r}")


def walk_scores(graph: AttentionGraph, hops: float) -> Tensor:
    """Decayed weight of all walks of at most ``hops`` steps that end at each token: Σ_{t ≤ hops} (γAᵀ)^t 1, (N,)."""
    check_hops(hops)
    if math.isinf(hops):
        return graph.katz_in()
    moves = graph.transition()
    return _hops(moves.new_ones(graph.size), moves, int(hops)).sum(0)


def _hops(here: Tensor, moves: Tensor, count: int) -> Tensor:
    """Where a distribution is after 0, 1, ... hops: (count + 1, N)."""
    places = [here]
    for _ in range(count):
        places.append(places[-1] @ moves)
    return torch.stack(places)


@dataclass(frozen=True)
class Walk:
    """A random walk from one token that may end at every step."""

    start: int
    moves: Tensor  # (N, N): the chance of each step
    ending: Tensor  # (N,): the chance of ending at each token
    places: Tensor  # (steps + 1, N): where the walk is after 0, 1, ... hops, if it has not ended
    ended: list[float]  # the chance that it has ended by then
    visits: Tensor  # (N,): expected visits within all allowed hops, start included
    rescaled: bool  # rows that add up to more than 1 / γ were scaled down, all by one number


def walk(graph: AttentionGraph, start: int, hops: float = math.inf) -> Walk:
    """Follow the absorbing chain of a graph from a token.

    Example:
        >>> walk(infsa.graph.five_token_graph(), start=0, hops=3).places.shape
        torch.Size([4, 5])
    """
    check_hops(hops)
    if not 0 <= start < graph.size:
        raise ValueError(f"start must be a token in [0, {graph.size}), got {start!r}")
    chain = graph.canonical_form(rescale=True)
    moves, ending = chain[:-1, :-1], chain[:-1, -1]
    everywhere = torch.eye(graph.size, dtype=chain.dtype)
    here = everywhere[start]
    if math.isinf(hops):
        visits = torch.linalg.solve(everywhere - moves.mT, here)
    else:
        visits = _hops(here, moves, int(hops)).sum(0)
    places = _hops(here, moves, int(min(hops, SHOWN)))
    rescaled = not torch.allclose(moves, graph.transition())
    return Walk(start, moves, ending, places, (1 - places.sum(1)).tolist(), visits, rescaled)


def compared(graph: AttentionGraph) -> dict[str, Tensor]:
    """The centralities that the page shows side by side, (N,) each, by the names it gives them."""
    scores = graph.centralities()
    return {title[:1].upper() + title[1:]: scores[name] for name, title in CENTRALITIES.items()}
