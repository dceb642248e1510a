"""The Perron root and vector on every structure a non-negative matrix can have."""

import pytest
import torch
from hypothesis import given, settings

from infsa.graph import AttentionGraph, ConvergenceError, perron
from infsa.graph.perron import strong_components

from .helpers import ACYCLIC, DEFECTIVE, SHAPES, graphs, matrix, random_graph

CYCLIC = SHAPES | DEFECTIVE


def check_perron(A, side):
    graph = AttentionGraph(A)
    v, rho = graph.eigenvector(side), graph.spectral_radius()
    image = (A if side == "right" else A.mT) @ v
    assert (v >= 0).all()
    assert abs(float(v.sum()) - 1) < 1e-12
    torch.testing.assert_close(image, rho * v, rtol=0, atol=1e-10 * rho)
    assert graph.residuals[f"eigenvector_{side}"] < 1e-10
    return rho


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("A", CYCLIC.values(), ids=CYCLIC)
def test_vector_on_special_structures(A, side):
    rho = check_perron(A, side)
    largest = float(torch.linalg.eigvals(A).abs().max())
    assert rho == pytest.approx(largest, rel=1e-7)  # a general solver loses half its digits when defective


@settings(max_examples=150, deadline=None, derandomize=True)
@given(graphs(largest=7))
def test_vector_on_any_structure(A):
    if AttentionGraph(A).spectral_radius() > 0:
        for side in ("right", "left"):
            check_perron(A, side)


@pytest.mark.parametrize("orders", [3, 10, 25])
@pytest.mark.parametrize("seed", range(5))
def test_vector_when_weights_are_orders_of_magnitude_apart(orders, seed):
    A = 10 ** (-orders * random_graph(10, seed=seed))
    A[torch.rand(10, 10, generator=torch.Generator().manual_seed(seed)) < 0.6] = 0
    A[0, 0] = 0.1
    check_perron(A, "right")


@pytest.mark.parametrize("A", ACYCLIC.values(), ids=ACYCLIC)
def test_root_is_exactly_zero_without_a_cycle(A):
    assert AttentionGraph(A).spectral_radius() == 0


def test_frobenius_normalisation_bounds_the_root_by_one():
    u, v = random_graph(6)[0], random_graph(6, seed=1)[0]
    outer = torch.outer(u, v)
    rho = AttentionGraph(outer / torch.linalg.matrix_norm(outer)).spectral_radius()
    assert rho == pytest.approx(float(torch.cosine_similarity(u, v, dim=0)), rel=1e-12)


def test_spectral_ratio():
    assert AttentionGraph(matrix([[3, 0], [0, 1]])).spectral_ratio() == pytest.approx(1 / 3)
    assert AttentionGraph(SHAPES["bipartite"]).spectral_ratio() == pytest.approx(1)
    assert AttentionGraph(torch.ones(4, 4)).spectral_ratio() == pytest.approx(0, abs=1e-12)
    A = random_graph(9, 0.5, seed=2)
    moduli = torch.linalg.eigvals(A).abs().sort(descending=True).values
    assert AttentionGraph(A).spectral_ratio() == pytest.approx(float(moduli[1] / moduli[0]), rel=1e-9)


def test_an_unreachable_accuracy_is_said(monkeypatch):
    monkeypatch.setattr(perron, "WIDTH", -1.0)
    monkeypatch.setattr(perron, "RESIDUAL", -1.0)
    with pytest.raises(ConvergenceError, match="component of 3 tokens"):
        AttentionGraph(SHAPES["cycle of three"]).eigenvector()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(graphs(largest=7))
def test_components_are_classes_of_mutual_reach_in_order(A):
    n = len(A)
    reach = torch.eye(n, dtype=torch.bool)
    for _ in range(n):
        reach = reach | ((reach.double() @ A) > 0)
    parts = strong_components(A > 0)
    assert sorted(token for part in parts for token in part) == list(range(n))
    for position, part in enumerate(parts):
        mutual = reach[part[0]] & reach[:, part[0]]
        assert sorted(part) == mutual.nonzero()[:, 0].tolist()
        assert not any(reach[later[0], part[0]] for later in parts[position + 1 :])
