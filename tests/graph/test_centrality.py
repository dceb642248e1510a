"""Centralities against networkx and against their definitions."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from infsa.graph import AttentionGraph

from .helpers import ACYCLIC, from_networkx, graphs, matrix, random_graph, to_networkx


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[(6, 1.0, 0), (12, 0.4, 1), (25, 0.15, 2)], ids=str)
def A(request):
    n, density, seed = request.param
    weights = random_graph(n, density, seed)
    weights[:, 0] += 0.1  # every token leads to token 0 ...
    weights[0, :] += 0.1  # ... and back: networkx needs one component
    return weights / n


def test_katz_in_is_networkx_katz(A):
    expected = nx.katz_centrality(
        to_networkx(A), alpha=0.7, beta=1.0, normalized=False, weight="weight", tol=1e-14, max_iter=10_000
    )
    close(AttentionGraph(A, gamma=0.7).katz_in(), from_networkx(expected))


def test_katz_out_is_katz_in_of_the_reversed_graph(A):
    close(AttentionGraph(A).katz_out(), AttentionGraph(A.mT).katz_in())


def test_eigenvector_is_networkx_eigenvector(A):
    for side, weights in (("left", A), ("right", A.mT)):  # networkx follows incoming edges
        expected = from_networkx(nx.eigenvector_centrality_numpy(to_networkx(weights), weight="weight"))
        close(AttentionGraph(A).eigenvector(side), expected / expected.sum())


@pytest.mark.parametrize("alpha", [0.5, 0.85])
def test_pagerank_is_networkx_pagerank(A, alpha):
    expected = nx.pagerank(to_networkx(A), alpha=alpha, tol=1e-15, max_iter=10_000)
    close(AttentionGraph(A).pagerank(alpha), from_networkx(expected))


def test_pagerank_spreads_empty_rows_evenly(A):
    A[2] = 0
    expected = nx.pagerank(to_networkx(A), alpha=0.85, tol=1e-15, max_iter=10_000)
    close(AttentionGraph(A).pagerank(), from_networkx(expected))


def test_degree_is_networkx_degree(A):
    graph, peer = AttentionGraph(A), to_networkx(A)
    close(graph.degree(), from_networkx(dict(peer.in_degree(weight="weight"))))
    close(graph.degree("out"), from_networkx(dict(peer.out_degree(weight="weight"))))
    close(graph.degree("total"), from_networkx(dict(peer.degree(weight="weight"))))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_rank_vectors_are_stationary(A):
    n = len(A)
    sums = A.sum(dim=1, keepdim=True)
    rows = torch.where(sums > 0, A / sums, 1 / n)
    graph = AttentionGraph(A)
    for scores, alpha in ((graph.pagerank(), 0.85), (graph.tokenrank(), 0.99)):
        close(scores.sum(), torch.ones((), dtype=torch.float64))
        close((alpha * rows + (1 - alpha) / n).mT @ scores, scores)


def test_scores_follow_the_tokens_when_they_are_renumbered():
    A = random_graph(9, 0.4, seed=3) / 9
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    before, after = AttentionGraph(A).centralities(), AttentionGraph(A[order][:, order]).centralities()
    for name, scores in before.items():
        close(scores[order], after[name])


def test_centralities_names_every_measure_and_its_residual():
    graph = AttentionGraph(random_graph(5) / 5)
    scores = graph.centralities()
    solved = ["katz_in", "katz_out", "eigenvector_right", "eigenvector_left", "pagerank", "tokenrank"]
    assert list(scores) == ["degree_in", "degree_out", "degree_total", *solved]
    assert set(solved) <= set(graph.residuals)
    assert max(graph.residuals.values()) < 1e-13


@pytest.mark.parametrize("A", ACYCLIC.values(), ids=ACYCLIC)
def test_without_a_cycle_only_the_eigenvectors_are_missing(A):
    graph = AttentionGraph(A, gamma=3.0)  # nothing diverges: any gamma will do
    for name, scores in graph.centralities().items():
        assert scores.isnan().all() == name.startswith("eigenvector"), name
    for call in (graph.eigenvector, graph.spectral_ratio):
        with pytest.raises(ValueError, match=f"rho.A. = 0, the graph of {len(A)} tokens has no cycle"):
            call()


def test_one_token():
    graph = AttentionGraph(matrix([[0.5]]), gamma=0.8)
    for name, scores in graph.centralities().items():
        expected = {"degree_total": 1.0, "katz_in": 1 / 0.6, "katz_out": 1 / 0.6}
        close(scores, matrix([expected.get(name, 0.5 if "degree" in name else 1.0)]))
    assert graph.spectral_ratio() == 0


def test_symmetric_eigenvector_against_numpy():
    A = random_graph(9, 0.4)
    _, vectors = np.linalg.eigh((A + A.mT).numpy())
    expected = np.abs(vectors[:, -1]) / np.abs(vectors[:, -1]).sum()
    graph = AttentionGraph(A)
    np.testing.assert_allclose(graph.eigenvector("symmetric").numpy(), expected, atol=1e-10)
    assert graph.residuals["eigenvector_symmetric"] < 1e-10


def test_symmetric_eigenvector_of_disconnected_and_empty_graphs():
    A = torch.zeros(5, 5, dtype=torch.float64)
    A[0, 1], A[2, 3] = 1, 2  # two components and a token alone; no cycle in A itself
    expected = torch.tensor([0, 0, 0.5, 0.5, 0], dtype=torch.float64)
    torch.testing.assert_close(AttentionGraph(A).eigenvector("symmetric"), expected)
    A[2, 3] = 1  # equally strong: both are seen
    expected = torch.tensor([0.25, 0.25, 0.25, 0.25, 0], dtype=torch.float64)
    torch.testing.assert_close(AttentionGraph(A).eigenvector("symmetric"), expected)
    with pytest.raises(ValueError, match="no edge"):
        AttentionGraph(torch.zeros(3, 3)).eigenvector("symmetric")


def test_symmetric_eigenvector_without_a_stored_matrix():
    q, k = torch.rand(2, 30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dense, free = (AttentionGraph.from_qk(q, k, 0.7, max_dense=size) for size in (100, 10))
    torch.testing.assert_close(free.eigenvector("symmetric"), dense.eigenvector("symmetric"), rtol=1e-8, atol=1e-8)
