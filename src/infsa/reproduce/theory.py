"""What can be computed exactly: the chain on five tokens and the block."""

from functools import partial
from typing import Any

import torch

from ..graph import AttentionGraph, five_token_graph
from ..nn import LinearInfSA, PureInfSA
from ..ops import LinearState, energies
from .claims import Claim, Reading
from .shipped import modes
from .sources import Sources, paper
from .supplement import EXACT

OWN_MATRIX = "five tokens, weights of our own (the paper gives none)"


def markov() -> list[Claim]:
    """One hop against all hops on five tokens; the Neumann series as an absorbing chain."""
    said = paper()["markov"]
    graph = five_token_graph()
    moves = graph.transition()

    def first(scores: torch.Tensor, token: int, sources: Sources) -> Reading:
        return Reading(float(int(scores.argmax()) == token), setting=OWN_MATRIX)

    def norm(sources: Sources) -> Reading:
        return Reading(float(torch.linalg.matrix_norm(graph.path_matrix(1))), setting="float64", same=True)

    def series(sources: Sources) -> Reading:
        power, total = torch.eye(len(moves), dtype=moves.dtype), torch.zeros_like(moves)
        for _ in range(400):
            total, power = total + power, power @ moves
        exact = graph.fundamental_matrix()
        difference = float((total - exact).norm() / exact.norm())
        return Reading(difference, setting="float64", detail="five tokens, 400 terms", same=True)

    def sub_stochastic(sources: Sources) -> Reading:
        scores = torch.zeros(5, 5, dtype=torch.float64)
        scores[0] = 1  # one token looks at all, the others at none
        found = AttentionGraph(scores / torch.linalg.matrix_norm(scores), gamma=0.7)
        largest = float(found.transition().sum(1).max())
        detail = f"row sum {largest:.3f} if one token attends to all five; up to γ√N"
        return Reading(float(largest <= 1), setting="float64", detail=detail, same=True)

    hops = {"one hop": (graph.degree("in"), "first_one_hop"), "two hops": ((moves @ moves).sum(0), "first_two_hops")}
    hops["all hops (Katz)"] = (graph.katz_in(), "first_all_hops")
    return [
        *(
            Claim(f"token {said[key]} is first by {name}", "statement", 1, partial(first, scores, said[key]))
            for name, (scores, key) in hops.items()
        ),
        Claim("‖Â‖ is 1 in the Frobenius norm", "value", 1.0, norm, tolerance=EXACT),
        Claim("Σ γᵗÂᵗ differs from the chain's fundamental matrix by", "value", 0.0, series, tolerance=EXACT),
        Claim("Frobenius normalisation lets walks stop at every token: row sums of γÂ ≤ 1", "statement", 1,
              sub_stochastic),
    ]  # fmt: skip


def method() -> list[Claim]:
    """Both variants in a Pre-LN block."""
    seed, tokens, width, heads = 0, 800, 768, 64  # more tokens than dimensions: the rank may reach the width
    setting = f"one layer of width {width}, random weights, float64"

    def layers() -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            x = torch.randn(1, tokens, width, dtype=torch.float64)
            pure, linear = PureInfSA(width, 16).double(), LinearInfSA(width, heads).double()
            y = [layer(x) for layer in (pure, linear)]
            images = linear(torch.randn(tokens, 4, width, dtype=torch.float64))[:, 0]
        ranks = [int(torch.linalg.matrix_rank(found)) for found in (y[0][0], y[1][0], images)]
        names = ("rank_pure", "rank_linear", "rank_images")
        return {"drop_in": all(z.shape == x.shape for z in y), **dict(zip(names, ranks, strict=True))}

    def found(sources: Sources) -> dict[str, Any]:
        config = {"tokens": tokens, "width": width, "heads": heads, "seed": seed, "images": tokens}
        return sources.computed("method", config, layers)

    def drop_in(sources: Sources) -> Reading:
        return Reading(float(found(sources)["drop_in"]), setting=setting, detail="Pure and Linear", same=True)

    def rank(name: str, sources: Sources) -> Reading:
        detail = f"all tokens get the same vector; Pure: {found(sources)['rank_pure']}"
        return Reading(found(sources)[name], setting=setting, detail=detail, same=True)

    def state(sources: Sources) -> Reading:
        sizes = []
        for length in (64, 1024):
            q = torch.ones(1, 2, length, 4)
            state = LinearState.zero(1, 2, 4).update(energies(q), q)
            sizes.append(sum(part.numel() for part in (state.absolute, state.signed, state.vectors)))
        return Reading(float(sizes[0] == sizes[1]), setting=setting, detail=f"{sizes[0]} numbers", same=True)

    span = paper()["method"]["span"]
    different = "heads are different modes: cosine distance of two heads' weights"
    return [
        Claim("both are drop-in: same shapes", "statement", 1, drop_in),
        Claim("rank of 64 Linear heads over tokens", "value", span, partial(rank, "rank_linear"), "", 0.5),
        Claim("the same rank over images", "value", span, partial(rank, "rank_images"), "", 0.5),
        Claim(different, "difference", None, modes),
        Claim("the auxiliary state does not grow with N", "statement", 1, state),
    ]
