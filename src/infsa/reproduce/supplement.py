"""The theory of the supplement, computed: walks, contraction, bounds, the power method and the map F."""

import itertools

import torch
from torch import Tensor

from ..evaluate.alignment import POWER_STEPS, power_iteration
from ..graph import five_token_graph
from .claims import Claim, Reading
from .sources import Sources

EXACT = 1e-12  # relative difference of two ways to compute the same in float64
GAMMA, TOKENS, LAYERS, DRAWS = 0.7, 32, 24, 50
SETTING = f"float64, {DRAWS} random matrices of {TOKENS} tokens; S_L=ΣγˡZ⁽ˡ⁾; F updates a"
EPS = 1e-6  # the paper's


def normalised(scores: Tensor) -> Tensor:
    """ReLU and Frobenius normalisation, without ε."""
    positive = scores.relu()
    return positive / torch.linalg.matrix_norm(positive)


def drawn(seed: int, *shape: int) -> Tensor:
    """Normal numbers of a seed."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def radius(matrix: Tensor) -> float:
    """The spectral radius."""
    return float(torch.linalg.eigvals(matrix).abs().max())


def printed_map(x: Tensor, q: Tensor) -> Tensor:
    """F as the supplement prints it: α comes from q alone, so that x is not used."""
    energy = q.norm(dim=-1)
    central = (energy / (energy.sum() + EPS)) @ q
    scores = (q @ central).relu()
    return scores / (scores.sum() + EPS)


def walks(sources: Sources) -> Reading:
    """A^t against the sum over all walks of length 3."""
    weights, t = five_token_graph().path_matrix(1), 3
    found = torch.zeros_like(weights)
    for path in itertools.product(range(len(weights)), repeat=t + 1):
        found[path[0], path[-1]] += torch.stack([weights[a, b] for a, b in itertools.pairwise(path)]).prod()
    exact = torch.linalg.matrix_power(weights, t)
    return Reading(float((found - exact).norm() / exact.norm()), 0.0, SETTING, "five tokens, length 3", same=True)


def contractive(sources: Sources) -> Reading:
    """Whether a Frobenius norm of 1 alone makes the spectral radius less than 1."""
    uniform = radius(normalised(torch.ones(TOKENS, TOKENS, dtype=torch.float64)))
    detail = f"ρ = {uniform:.3f} for uniform attention"
    return Reading(float(uniform < 1 - EXACT), 0.0, SETTING, detail, same=True)


def convergent(sources: Sources) -> Reading:
    """Whether γρ(Â) < 1 in the worst case, so that the discounted series converges."""
    worst = GAMMA * radius(normalised(torch.ones(TOKENS, TOKENS, dtype=torch.float64)))
    return Reading(float(worst < 1), 0.0, SETTING, f"γρ = {worst:.3f} at most, since ρ ≤ ‖Â‖ = 1", same=True)


def bounded(sources: Sources) -> Reading:
    """The norm of S_L over γ/(1-γ), layer after layer another Â, input of norm 1."""
    largest = 0.0
    for seed in range(DRAWS):
        state = drawn(seed, TOKENS, 8)
        state = state / state.norm()
        total = torch.zeros_like(state)
        for layer in range(1, LAYERS + 1):
            state = normalised(drawn(1000 * seed + layer, TOKENS, TOKENS)) @ state
            total = total + GAMMA**layer * state
        largest = max(largest, float(total.norm()) * (1 - GAMMA) / GAMMA)
    return Reading(float(largest <= 1), 0.0, SETTING, f"{largest:.3f} of the bound at most, ‖X⁰‖ = 1", same=True)


def bounded_layers(sources: Sources) -> Reading:
    """The same for S_L = Σ γˡ Z⁽ˡ⁾ with values of layers, whose norm nothing bounds."""
    largest = 0.0
    for seed in range(DRAWS):
        parts = [
            GAMMA**layer
            * normalised(drawn(1000 * seed + layer, TOKENS, TOKENS))
            @ drawn(2000 * seed + layer, TOKENS, 8)
            for layer in range(1, LAYERS + 1)
        ]
        largest = max(largest, float(torch.stack(parts).sum(0).norm()) * (1 - GAMMA) / GAMMA)
    detail = f"{largest:.2f} times the bound; it needs ‖V‖ ≤ 1"
    return Reading(float(largest <= 1), 0.0, SETTING, detail, same=True)


def second_direction(tokens: Tensor) -> float:
    """How much tokens (N, d) differ in direction: the second singular value over the first."""
    values = torch.linalg.svdvals(tokens)
    return float(values[1] / values[0])


def layers_of(seed: int, kind: str) -> list[Tensor]:
    """The tokens after each of 24 attention layers, normalised by softmax or by Frobenius; nothing else in a layer."""
    x, found = drawn(seed, TOKENS, 8), []
    for layer in range(1, LAYERS + 1):
        scores = drawn(1000 * seed + layer, TOKENS, TOKENS)
        x = (scores.softmax(1) if kind == "softmax" else normalised(scores)) @ x
        found.append(x)
    return found


def apart(sources: Sources) -> Reading:
    """Whether Frobenius normalisation leaves the tokens more than one direction after 24 layers."""
    left = {
        kind: max(second_direction(layers_of(seed, kind)[-1]) for seed in range(DRAWS))
        for kind in ("softmax", "Frobenius")
    }
    detail = f"second over first singular value: softmax {left['softmax']:.0e}, Frobenius {left['Frobenius']:.0e}; "
    detail += "no residuals"
    return Reading(float(left["Frobenius"] > EXACT**0.5), 0.0, SETTING, detail)


def decayed(sources: Sources) -> Reading:
    """Whether S_L keeps directions that its last layer has lost."""
    smallest, largest = 1.0, 0.0
    for seed in range(DRAWS):
        layers = layers_of(seed, "Frobenius")
        series = torch.stack([GAMMA**place * x for place, x in enumerate(layers, start=1)]).sum(0)
        smallest, largest = min(smallest, second_direction(series)), max(largest, second_direction(layers[-1]))
    detail = f"second over first singular value: {smallest:.2f} at least, last layer {largest:.0e}"
    return Reading(float(smallest > largest), 0.0, SETTING, detail)


def perron(matrix: Tensor) -> Tensor:
    """The power method of the supplement: 200 steps from the uniform vector."""
    vectors, _ = power_iteration(matrix[None], POWER_STEPS)
    return vectors[POWER_STEPS][0]


def power_method(sources: Sources) -> Reading:
    """How far the power method is from the eigenvector of a positive symmetric operator."""
    worst = 0.0
    for seed in range(DRAWS):
        q = drawn(seed, TOKENS, 8).abs()
        matrix = q @ q.T
        exact = torch.linalg.eigh(matrix).eigenvectors[:, -1].abs()
        worst = max(worst, float((perron(matrix) - exact / exact.sum()).abs().sum()))
    return Reading(worst, 0.0, SETTING, "largest difference in the l1 norm", same=True)


def homogeneous(sources: Sources) -> Reading:
    """Whether F keeps vectors nonnegative, F(λx) = F(x), and F keeps their order."""
    holds = True
    for seed in range(DRAWS):
        q, x = drawn(seed, TOKENS, 8), drawn(seed + 1, TOKENS).abs()
        once = printed_map(x, q)
        larger = printed_map(x + drawn(seed + 2, TOKENS).abs(), q)
        holds = holds and bool((once >= 0).all()) and bool((once <= larger).all())
        holds = holds and torch.equal(once, printed_map(3 * x, q))
    return Reading(float(holds), 0.0, SETTING, "trivially: F as printed does not use x", same=True)


def unique_point(sources: Sources) -> Reading:
    """Whether the iterates of F converge to one point from any start."""
    ends = [printed_map(printed_map(drawn(seed, TOKENS).abs(), (q := drawn(7, TOKENS, 8))), q) for seed in range(DRAWS)]
    same = all(torch.equal(end, ends[0]) for end in ends)
    return Reading(float(same), 0.0, SETTING, "after one step, since F as printed does not use x", same=True)


def fixed_point(sources: Sources) -> Reading:
    """How far the fixed point of F is from the Perron vector of Q Qᵀ where all entries are positive."""
    worst, iterated = 0.0, 0.0
    for seed in range(DRAWS):
        q = drawn(seed, TOKENS, 8).abs()
        exact = perron(q @ q.T)
        worst = max(worst, float((printed_map(exact, q) - exact).abs().sum()))
        a = exact.new_full((TOKENS,), 1 / TOKENS)
        for _ in range(200):  # α taken from the last a: then it is the power method
            a = (q @ (a @ q)).relu()
            a = a / a.sum()
        iterated = max(iterated, float((a - exact).abs().sum()))
    detail = f"l1 norm; {iterated:.1e} with α = last a"
    return Reading(worst, 0.0, SETTING, detail, same=True)


def supplement() -> list[Claim]:
    """Section by section."""
    return [
        Claim("Aᵗ differs from the sum over all walks of length t by", "value", 0.0, walks, tolerance=EXACT),
        Claim("‖Â‖ = 1 makes Â contractive: ρ(Â) < 1", "statement", 1, contractive),
        Claim("Σ γᵗÂᵗ converges for γ < 1", "statement", 1, convergent),
        Claim("‖S_L‖ ≤ γ/(1-γ) for products of different Â", "statement", 1, bounded),
        Claim("‖S_L‖ ≤ γ/(1-γ) for the outputs of layers", "statement", 1, bounded_layers),
        Claim("Frobenius normalisation avoids oversmoothing in 24 layers", "statement", 1, apart),
        Claim("decay limits oversmoothing: S_L keeps lost directions", "statement", 1, decayed),
        Claim("the power method differs from the Perron vector by", "value", 0.0, power_method, tolerance=1e-9),
        Claim("F preserves nonnegativity, scale and order", "statement", 1, homogeneous),
        Claim("the iterates of F converge to one point", "statement", 1, unique_point),
        Claim("the fixed point of F differs from the Perron vector by", "value", 0.0, fixed_point, tolerance=1e-9),
    ]  # fmt: skip
