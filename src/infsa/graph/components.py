"""Strongly connected components of a dense graph: the pieces on which a Perron root lives."""

from collections.abc import Iterable

import torch
from torch import Tensor


def strong_components(edges: Tensor) -> list[list[int]]:
    """Split the tokens of `edges` (N, N), boolean, into classes that reach each other.

    Kosaraju's algorithm: a depth-first order, then a second search on the reversed edges. Each step scans
    one row, so the whole is O(N²) whatever the number of edges. A class is listed before those it points to.
    """
    edges = edges.cpu()
    finished = [token for tree in _search(edges, range(len(edges))) for token in tree]
    return _search(edges.mT.contiguous(), reversed(finished))


def _search(edges: Tensor, roots: Iterable[int]) -> list[list[int]]:
    """Depth-first trees from `roots`, each listed in the order in which its tokens are finished."""
    unseen = torch.ones(len(edges), dtype=torch.bool)
    trees = []
    for root in roots:
        if not unseen[root]:
            continue
        unseen[root] = False
        stack, tree = [root], []
        while stack:
            fresh = (edges[stack[-1]] & unseen).nonzero()
            if len(fresh) == 0:
                tree.append(stack.pop())
            else:
                stack.append(int(fresh[0]))
                unseen[stack[-1]] = False
        trees.append(tree)
    return trees


def tokens_reaching(edges: Tensor, targets: list[int]) -> Tensor:
    """Mark (N,) the tokens with a path, of any length from 0, to one of `targets`."""
    reached = torch.zeros(len(edges), dtype=torch.bool, device=edges.device)
    reached[targets] = True
    frontier = reached
    while frontier.any():
        frontier = edges[:, frontier].any(dim=1) & ~reached
        reached = reached | frontier
    return reached
