"""Paths, the Neumann series and the absorbing chain."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infsa.graph import AttentionGraph, DivergenceError, SubstochasticError, five_token_graph

from .helpers import graphs, matrix, random_graph

WALKS = 20_000


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_path_matrix_adds_up_the_walks_of_each_length():
    A = matrix([[0, 2, 3], [0, 0, 5], [7, 0, 0]])
    two_steps = AttentionGraph(A).path_matrix(2)
    assert two_steps[0, 2] == 2 * 5  # 0 -> 1 -> 2
    assert two_steps[0, 0] == 3 * 7  # 0 -> 2 -> 0
    close(AttentionGraph(A).path_matrix(0), torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("t", [0, 1, 2, 7])
def test_path_scores_are_row_sums_of_the_path_matrix(t):
    graph = AttentionGraph(random_graph(8, 0.5))
    close(graph.path_scores(t), graph.path_matrix(t).sum(dim=1))


def test_neumann_is_the_limit_of_its_partial_sums():
    graph = AttentionGraph(random_graph(7) / 7, gamma=0.9)
    partial = sum(0.9**t * graph.path_matrix(t) for t in range(1, 200))
    close(graph.neumann(), partial)
    close(graph.neumann_scores(), partial.sum(dim=1))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs(), st.floats(0.05, 0.95))
def test_identities_of_the_path_series(A, share):
    rho = AttentionGraph(A).spectral_radius()
    graph = AttentionGraph(A, gamma=share / rho if rho > 0 else share)
    visits, series, moves = graph.fundamental_matrix(), graph.neumann(), graph.transition()
    size = float(visits.max())
    identity = torch.eye(graph.size, dtype=torch.float64)
    torch.testing.assert_close(visits, series + identity, rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(series, moves @ visits, rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(graph.neumann_scores(), series.sum(dim=1), rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(graph.absorption_times(), visits.sum(dim=1), rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(graph.katz_out(), visits.sum(dim=1), rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(graph.katz_in(), visits.sum(dim=0), rtol=1e-9, atol=1e-9 * size)
    assert (series >= -1e-12 * size).all()
    assert max(graph.residuals.values()) < 1e-12


def test_canonical_form_is_a_chain_with_one_absorbing_state():
    graph = five_token_graph()
    P = graph.canonical_form()
    close(P.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert (P >= 0).all()
    close(P[:5, :5], graph.transition())
    close(P[:5, 5], graph.absorption())
    assert P[5].tolist() == [0, 0, 0, 0, 0, 1]


def test_random_walks_visit_tokens_as_the_fundamental_matrix_says():
    graph = five_token_graph()
    P = graph.canonical_form()
    visits, times = graph.fundamental_matrix(), graph.absorption_times()
    generator = torch.Generator().manual_seed(7)
    for start in range(graph.size):
        counts = torch.zeros(WALKS, graph.size, dtype=torch.float64)
        state = torch.full((WALKS,), start)
        walking = torch.arange(WALKS)
        while len(walking) > 0:
            counts[walking, state] += 1
            state = torch.multinomial(P[state], 1, generator=generator)[:, 0]
            walking, state = walking[state < graph.size], state[state < graph.size]
        error = counts.std(dim=0) / math.sqrt(WALKS)
        assert ((counts.mean(dim=0) - visits[start]).abs() <= 4.5 * error).all()
        length = counts.sum(dim=1)
        assert abs(length.mean() - times[start]) <= 4.5 * length.std() / math.sqrt(WALKS)


def test_too_heavy_a_row_is_refused_by_name():
    graph = AttentionGraph(matrix([[0, 1], [2, 2]]) / 4, gamma=1.2)
    assert graph.fundamental_matrix().isfinite().all()  # the series converges all the same
    for method in (graph.absorption, graph.canonical_form):
        with pytest.raises(SubstochasticError, match=r"^token 1 has absorption probability -0\.2 "):
            method()


def test_rescale_keeps_every_absorption_at_one_minus_gamma_or_more():
    n = 50
    star = torch.zeros(n, n, dtype=torch.float64)
    star[0] = 1 / math.sqrt(n)  # Frobenius norm 1, first row sum √n
    graph = AttentionGraph(star, gamma=0.7)
    with pytest.raises(SubstochasticError, match="token 0"):
        graph.canonical_form()
    P = graph.canonical_form(rescale=True)
    close(P.sum(dim=1), torch.ones(n + 1, dtype=torch.float64))
    close(graph.absorption(rescale=True).min(), torch.tensor(0.3, dtype=torch.float64))
    close(P[:n, :n], 0.7 * star / math.sqrt(n))


def test_rescale_leaves_a_legal_chain_alone():
    graph = five_token_graph()
    close(graph.canonical_form(rescale=True), graph.canonical_form(), tolerance=0)


def test_rescale_needs_gamma_below_one():
    with pytest.raises(SubstochasticError, match=r"gamma = 1\.2 with a row sum of 1"):
        AttentionGraph(matrix([[0, 1], [0, 0]]), gamma=1.2).absorption(rescale=True)


def test_round_off_below_zero_counts_as_zero():
    graph = AttentionGraph(matrix([[0, 1 + 1e-14], [0, 0]]), gamma=1.0)
    assert graph.absorption().tolist() == [0, 1]
    assert graph.absorption(rescale=True).tolist() == [0, 1]


@pytest.mark.parametrize(
    "method",
    [
        "neumann",
        "neumann_scores",
        "fundamental_matrix",
        "absorption_times",
        "katz_in",
        "katz_out",
        "centralities",
    ],
)
@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_a_diverging_series_is_refused(method, gamma):
    graph = AttentionGraph(matrix([[0, 4], [1, 0]]), gamma=gamma)
    product = f"gamma = {gamma:g}, rho\\(A\\) = 2, gamma\\*rho = {2 * gamma:g};"
    with pytest.raises(DivergenceError, match=product) as caught:
        getattr(graph, method)()
    assert isinstance(caught.value, ValueError)


def test_gamma_above_one_is_fine_while_the_series_converges():
    A = matrix([[0, 0.1], [0.4, 0]])  # rho = 0.2
    graph = AttentionGraph(A, gamma=4)
    assert graph.neumann_scores().isfinite().all()
    with pytest.raises(DivergenceError):
        AttentionGraph(A, gamma=5).neumann_scores()


def test_the_given_matrix_is_copied_and_results_are_independent():
    A = random_graph(4) / 4
    graph = AttentionGraph(A)
    before = graph.katz_out()
    A.zero_()
    graph.eigenvector().zero_()
    graph.path_scores(0).zero_()
    close(graph.katz_out(), before, tolerance=0)
    assert graph.eigenvector().sum() > 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(graphs(), st.floats(0.05, 0.95))
def test_a_rescaled_chain_is_the_same_in_every_method(A, gamma):
    graph = AttentionGraph(A, gamma)
    P, n = graph.canonical_form(rescale=True), graph.size
    assert torch.equal(graph.transition(rescale=True), P[:n, :n])
    visits = torch.linalg.inv(torch.eye(n, dtype=torch.float64) - P[:n, :n])
    size = float(visits.max())
    torch.testing.assert_close(graph.fundamental_matrix(rescale=True), visits, rtol=1e-9, atol=1e-9 * size)
    torch.testing.assert_close(graph.absorption_times(rescale=True), visits.sum(1), rtol=1e-9, atol=1e-9 * size)
    absorbed = graph.fundamental_matrix(rescale=True) @ graph.absorption(rescale=True)
    close(absorbed, torch.ones(n, dtype=torch.float64), tolerance=1e-8)


def test_a_diverging_series_has_a_rescaled_chain():
    graph = AttentionGraph(matrix([[0, 4], [1, 0]]), gamma=0.8)
    close(graph.fundamental_matrix(rescale=True), sum(0.8**t * graph.path_matrix(t) / 4.0**t for t in range(200)))
    with pytest.raises(DivergenceError):
        graph.fundamental_matrix()


def test_rescaled_times_without_a_stored_matrix():
    q = torch.rand(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dense, free = (AttentionGraph.from_qk(q, q, 0.7, max_dense=size) for size in (100, 10))
    close(free.absorption_times(rescale=True), dense.absorption_times(rescale=True), tolerance=1e-8)
