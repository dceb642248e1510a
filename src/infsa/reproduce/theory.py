"""What can be computed exactly: the chain, the block, the cost of training; and how sharp maps are."""

import hashlib
import math
from functools import partial
from typing import Any

import torch

from ..bench.cases import Case
from ..bench.flops import count
from ..bench.presets import FOUR
from ..graph import AttentionGraph, five_token_graph
from ..models.presets import SHIPPED, shipped_weights
from ..nn import LinearInfSA, PureInfSA
from ..ops import LinearState, energies
from .claims import Claim, Reading, Unavailable
from .sources import Sources, paper

EXACT = 1e-12  # relative difference of two ways to compute the same in float64
OWN_MATRIX = "five tokens; the weights are ours, the paper gives none"


def markov() -> list[Claim]:
    """One hop against all hops on five tokens; the Neumann series as an absorbing chain."""
    said = paper()["markov"]
    graph = five_token_graph()
    moves = graph.transition()

    def first(scores: torch.Tensor, token: int, sources: Sources) -> Reading:
        return Reading(float(int(scores.argmax()) == token), conditions=OWN_MATRIX)

    def norm(sources: Sources) -> Reading:
        return Reading(float(torch.linalg.matrix_norm(graph.path_matrix(1))), conditions="float64", same=True)

    def series(sources: Sources) -> Reading:
        power, total = torch.eye(len(moves), dtype=moves.dtype), torch.zeros_like(moves)
        for _ in range(400):
            total, power = total + power, power @ moves
        exact = graph.fundamental_matrix()
        difference = float((total - exact).norm() / exact.norm())
        return Reading(difference, conditions="five tokens, float64, 400 terms", same=True)

    def sub_stochastic(sources: Sources) -> Reading:
        scores = torch.zeros(5, 5, dtype=torch.float64)
        scores[0] = 1  # one token looks at all, the others at none
        found = AttentionGraph(scores / torch.linalg.matrix_norm(scores), gamma=0.7)
        largest = float(found.transition().sum(1).max())
        conditions = (
            f"one token that attends to all five: row sum of M {largest:.3f}; it can reach γ√N. The paper names "
        )
        conditions += "the condition γ max σ < 1 but does not enforce it"
        return Reading(float(largest <= 1), conditions=conditions, same=True)

    hops = {"one hop": (graph.degree("in"), "first_one_hop"), "two hops": ((moves @ moves).sum(0), "first_two_hops")}
    hops["all hops (Katz)"] = (graph.katz_in(), "first_all_hops")
    return [
        *(
            Claim(f"token {said[key]} is first by {name}", "statement", 1, partial(first, scores, said[key]))
            for name, (scores, key) in hops.items()
        ),
        Claim("‖Â‖ is 1 in the Frobenius norm", "value", 1.0, norm, tolerance=EXACT),
        Claim("Σ γᵗÂᵗ differs from the chain's fundamental matrix by", "value", 0.0, series, tolerance=EXACT),
        Claim("Frobenius normalisation gives every step a chance of absorption: R ≥ 0", "statement", 1, sub_stochastic),
    ]


def method() -> list[Claim]:
    """Both variants in a Pre-LN block."""
    seed, tokens, width, heads = 0, 800, 768, 64  # more tokens than dimensions: the rank may reach the width

    def layers() -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            x = torch.randn(1, tokens, width, dtype=torch.float64)
            y = [layer.double()(x) for layer in (PureInfSA(width, 16), LinearInfSA(width, heads))]
        ranks = [int(torch.linalg.matrix_rank(found[0])) for found in y]
        return {"drop_in": all(z.shape == x.shape for z in y), "rank_pure": ranks[0], "rank_linear": ranks[1]}

    def found(sources: Sources) -> dict[str, Any]:
        return sources.computed("method", {"tokens": tokens, "width": width, "heads": heads, "seed": seed}, layers)

    def drop_in(sources: Sources) -> Reading:
        conditions = f"(1, {tokens}, {width}) to the same shape, Pure and Linear"
        return Reading(float(found(sources)["drop_in"]), conditions=conditions, same=True)

    def rank(sources: Sources) -> Reading:
        facts = found(sources)
        conditions = f"rank of one layer's ({tokens}, {width}) output over tokens, random weights; Pure: "
        conditions += f"{facts['rank_pure']}. All tokens get the same vector, whatever the number of heads"
        return Reading(facts["rank_linear"], conditions=conditions, same=True)

    def state(sources: Sources) -> Reading:
        sizes = []
        for length in (64, 1024):
            q = torch.ones(1, 2, length, 4)
            state = LinearState.zero(1, 2, 4).update(energies(q), q)
            sizes.append(sum(part.numel() for part in (state.absolute, state.signed, state.vectors)))
        return Reading(float(sizes[0] == sizes[1]), conditions=f"{sizes[0]} numbers at N = 64 and 1024", same=True)

    return [
        Claim("both variants are drop-in: same shapes in and out", "statement", 1, drop_in),
        Claim("dimensions spanned by 64 heads of a Linear layer", "value", paper()["method"]["span"], rank, "", 0.5),
        Claim("the auxiliary state does not grow with N", "statement", 1, state),
    ]


def training_cost() -> list[Claim]:
    """FLOPs of a forward pass, of training and of evaluation."""
    said = paper()["training-cost"]

    def flops(sources: Sources) -> float:
        config = {"mechanism": "infsa_linear", "side": 224, **FOUR}
        numbers = sources.computed(
            "flops", config, lambda: {"flops": count(Case("infsa_linear", size=(224, 224), **FOUR)).flops}
        )
        return float(numbers["flops"])

    def forward(sources: Sources) -> Reading:
        found = flops(sources)
        conditions = f"counted: {found / 2e9:.2f} GMAC, two FLOPs each, Linear InfViT-4L-64H at 224² without the extra "
        conditions += "layers of paper_params; values are pooled before they are projected"
        return Reading(found / 1e9, conditions=conditions, same=True)

    def total(times: float, conditions: str, sources: Sources) -> Reading:
        return Reading(flops(sources) * times, conditions=conditions, same=True)

    training = said["images"] * said["epochs"] * said["passes"]
    text = f"counted FLOPs × {said['images']:,} images × {said['epochs']} epochs × {said['passes']}"
    return [
        Claim("forward pass at 224²", "value", said["forward_gflops"], forward, "GFLOPs", 0.5),
        Claim("training", "value", said["training_flops"], partial(total, training, text), "FLOPs", 5e16),
        Claim("evaluation", "value", said["evaluation_flops"],
              partial(total, said["evaluation_images"], f"counted FLOPs × {said['evaluation_images']:,} images"),
              "FLOPs", 5e12),
    ]  # fmt: skip


def shipped_digest() -> str:
    """What tells the shipped weights from others."""
    digest = hashlib.sha256()
    for file in filter(None, map(shipped_weights, sorted(SHIPPED))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def comparison() -> list[Claim]:
    """How many patches hold half of a map's weight: fewer is sharper."""

    def compute() -> dict[str, Any]:
        from ..report.photographs import example_views, patches_for_half

        return patches_for_half(example_views())

    def sharper(name: str, sources: Sources) -> Reading:
        try:
            found = sources.computed("sharpness", {"views": 15, "weights": shipped_digest()}, compute)
        except ImportError as error:
            raise Unavailable("needs scikit-learn, for its photographs: pip install 'infsa[eval]'") from error
        gaps = [a - b for a, b in zip(found["vit_tiny"], found[name], strict=True)]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1) / len(gaps))
        means = [sum(found[key]) / len(gaps) for key in (name, "vit_tiny")]
        conditions = f"shipped weights, {len(gaps)} views of photographs: {means[0]:.1f} % against {means[1]:.1f} %"
        return Reading(mean, spread, conditions)

    return [
        Claim(f"{label} sharper than softmax: fewer patches hold half of the map, difference", "difference", None,
              partial(sharper, name), "% of patches")
        for name, label in (("infvit_pure_tiny", "Pure"), ("infvit_linear_tiny", "Linear"))
    ]  # fmt: skip
