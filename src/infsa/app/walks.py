"""The token graph of one layer, random walks on it, and where they end."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..graph import AttentionGraph
from ..models import InfViT
from ..models.maps import weights_of

SHOWN = 5  # hops that are drawn one by one
COMPARED = {  # what the page calls the centralities it compares
    "degree_in": "Degree (one hop)",
    "katz_in": "Katz, incoming",
    "katz_out": "Katz, outgoing",
    "eigenvector_left": "Eigenvector",
    "pagerank": "PageRank",
    "tokenrank": "TokenRank",
}


@torch.no_grad()
def token_graph(model: InfViT, images: Tensor, layer: int, head: int | None, gamma: float) -> AttentionGraph:
    """The graph of one image (1, C, H, W) in one layer: one head's weights, or their mean over heads.

    Example:
        >>> token_graph(model, images, layer=-1, head=None, gamma=0.7).size
        65
    """
    depth, grid = len(model.blocks), model.grid_of(images)
    if not -depth <= layer < depth:
        raise ValueError(f"layer must lie in [{-depth}, {depth}), got {layer!r}")
    if head is not None and not 0 <= head < model.num_heads:
        raise ValueError(f"head must lie in [0, {model.num_heads}), got {head!r}")
    chosen = layer % depth
    found: list[Tensor] = []

    def read(index: int, block: nn.Module, before: Tensor, after: Tensor) -> None:
        if index == chosen:
            found.append(weights_of(block, before, grid, model.num_prefix_tokens)[0].double())

    model.run(images, visit=read, depth=chosen + 1)
    weights = found[0].mean(0) if head is None else found[0][head]
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
    reached = scores = torch.ones(graph.size, dtype=moves.dtype)
    for _ in range(int(hops)):
        reached = reached @ moves
        scores = scores + reached
    return scores


@dataclass(frozen=True)
class Walk:
    """A random walk from one token that may end at every step.

    Example:
        >>> walk(graph, start=0).ended[-1]
        0.83
    """

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
        >>> walk(graph, start=0, hops=3).places.shape
        torch.Size([4, 65])
    """
    check_hops(hops)
    if not 0 <= start < graph.size:
        raise ValueError(f"start must be a token in [0, {graph.size}), got {start!r}")
    chain = graph.canonical_form(rescale=True)
    moves, ending = chain[:-1, :-1], chain[:-1, -1]
    here = torch.zeros(graph.size, dtype=chain.dtype)
    here[start] = 1
    places = [here]
    for _ in range(int(min(hops, SHOWN))):
        places.append(places[-1] @ moves)
    if math.isinf(hops):
        visits = torch.linalg.solve(torch.eye(graph.size, dtype=chain.dtype) - moves.mT, here)
    else:
        visits, reached = here, here
        for _ in range(int(hops)):
            reached = reached @ moves
            visits = visits + reached
    rescaled = not torch.allclose(moves, graph.transition())
    ended = [1 - float(place.sum()) for place in places]
    return Walk(start, moves, ending, torch.stack(places), ended, visits, rescaled)


def compared(graph: AttentionGraph) -> dict[str, Tensor]:
    """The centralities that the page shows side by side, (N,) each, by the names it gives them."""
    scores = graph.centralities()
    return {title: scores[name] for name, title in COMPARED.items()}
