"""Graphs that are only ever applied to vectors: they must agree with the stored matrix."""

import math

import pytest
import torch

from infsa.graph import AttentionGraph, ConvergenceError, DivergenceError, SubstochasticError, krylov
from infsa.ops import pure_weights

from .helpers import ACYCLIC, SHAPES, as_queries_and_keys, matrix, random_graph

VECTORS = ["neumann_scores", "absorption_times"]


def head(n, d, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(n, d, generator=generator, dtype=dtype)
    return q, 0.5 * q + torch.randn(n, d, generator=generator, dtype=dtype)


def both(q, k, **options):
    return AttentionGraph.from_qk(q, k, **options), AttentionGraph.from_qk(q, k, max_dense=0, **options)


def check_agreement(dense, free, tolerance):
    assert dense.is_dense
    assert not free.is_dense
    expected, scores = dense.centralities(), free.centralities()
    for method in VECTORS:
        expected[method], scores[method] = getattr(dense, method)(), getattr(free, method)()
    expected["path"], scores["path"] = dense.path_scores(3), free.path_scores(3)
    expected["absorption"], scores["absorption"] = dense.absorption(True), free.absorption(True)
    for name, vector in expected.items():
        found = scores[name].double()
        size = float(torch.nan_to_num(vector).norm())
        torch.testing.assert_close(found, vector, rtol=0, atol=tolerance * size, equal_nan=True, msg=name)
    assert free.spectral_radius() == pytest.approx(dense.spectral_radius(), rel=tolerance)
    assert max(free.residuals.values()) < tolerance


@pytest.mark.parametrize("activation", ["relu", "abs"])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (30, 4), (80, 16)])
def test_agrees_in_float64(n, d, activation):
    q, k = head(n, d)
    q[0] = k[0]  # at least one loop
    check_agreement(*both(q, k, activation=activation), tolerance=1e-10)


def test_agrees_in_float32():
    check_agreement(*both(*head(200, 16, torch.float32)), tolerance=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(dtype):
    q, k = head(50, 8)
    dense, free = both(q.to(dtype), k.to(dtype))
    assert free.katz_in().dtype == torch.float32
    check_agreement(dense, free, tolerance=2e-5)


def test_agrees_with_tokens_that_nobody_sees_and_that_see_nobody():
    q, k = head(40, 6)
    q[3:9] = 0
    k[7:15] = 0
    check_agreement(*both(q, k), tolerance=1e-10)


@pytest.mark.parametrize("A", SHAPES.values(), ids=SHAPES)
def test_agrees_on_special_structures(A):
    dense, free = both(*as_queries_and_keys(A))
    check_agreement(dense, free, tolerance=1e-9)
    assert (free.eigenvector() >= 0).all()
    assert free.spectral_ratio() == pytest.approx(dense.spectral_ratio(), abs=1e-9)


@pytest.mark.parametrize("A", ACYCLIC.values(), ids=ACYCLIC)
def test_agrees_without_a_cycle(A):
    dense, free = both(*as_queries_and_keys(A))
    check_agreement(dense, free, tolerance=1e-10)
    assert free.spectral_radius() == 0
    with pytest.raises(ValueError, match="no cycle"):
        free.eigenvector("left")


@pytest.mark.parametrize("seed", range(3))
def test_spectral_ratio_agrees(seed):
    dense, free = both(*head(120, 8, seed=seed))
    assert free.spectral_ratio() == pytest.approx(dense.spectral_ratio(), rel=1e-8)
    assert free.residuals["spectral_ratio"] < 1e-11


def test_dense_graph_is_the_library_s_own_weights():
    q, k = head(20, 5)
    expected = pure_weights(q[None, None], k[None, None], activation="abs", eps=1e-3)[0, 0]
    graph = AttentionGraph.from_qk(q, k, activation="abs", eps=1e-3)
    torch.testing.assert_close(graph.path_matrix(1), expected, rtol=1e-12, atol=1e-15)


def test_a_large_graph_is_matrix_free_by_default():
    q, k = head(2049, 4, torch.float32)
    graph = AttentionGraph.from_qk(q, k)
    assert repr(graph) == "AttentionGraph(tokens=2049, gamma=0.7, matrix-free)"
    assert graph.katz_in().min() >= 1
    assert graph.residuals["katz_in"] < 1e-6
    assert AttentionGraph.from_qk(q[:2048], k[:2048]).is_dense


@pytest.mark.parametrize(
    ("method", "arguments", "instead"),
    [
        ("path_matrix", (2,), "path_scores"),
        ("neumann", (), "neumann_scores"),
        ("transition", (), "absorption"),
        ("canonical_form", (), "absorption"),
        ("fundamental_matrix", (), "absorption_times"),
    ],
)
def test_matrices_are_refused_with_the_vector_to_use(method, arguments, instead):
    graph = AttentionGraph.from_qk(*head(12, 3), max_dense=11)
    with pytest.raises(ValueError, match=f"{method} .*N = 12 > max_dense = 11; use {instead}"):
        getattr(graph, method)(*arguments)


def test_divergence_and_heavy_rows_are_refused():
    ones = torch.ones(9, 2, dtype=torch.float64)  # every weight 1/9: rho = 1
    with pytest.raises(DivergenceError, match=r"gamma = 1\.5, rho\(A\) = 1, gamma\*rho = 1\.5"):
        AttentionGraph.from_qk(ones, ones, gamma=1.5, max_dense=0).katz_in()
    star, loops = torch.zeros_like(ones), ones.clone()
    star[4] = 1.0  # token 4 sees everybody: row sum √9
    graph = AttentionGraph.from_qk(star, loops, max_dense=0)
    with pytest.raises(SubstochasticError, match=r"token 4 has absorption probability -1\.1"):
        graph.absorption()
    assert float(graph.absorption(rescale=True)[4]) == pytest.approx(0.3)


def test_gamma_above_one_is_fine_while_the_series_converges():
    dense, free = both(*head(40, 6), gamma=1.2)
    torch.testing.assert_close(free.katz_out(), dense.katz_out(), rtol=1e-9, atol=0)


def test_a_slow_series_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr(krylov, "MAX_STEPS", 30)
    loop = matrix([[1.0]])
    with pytest.raises(ConvergenceError, match=r"Richardson: residual \d\.\de-02 after 30 steps, need 1e-12"):
        AttentionGraph.from_qk(loop, loop, gamma=0.999, max_dense=0).katz_in()


def test_an_unfinished_eigenvector_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr(krylov, "MAX_STEPS", 3)
    with pytest.raises(ConvergenceError, match=r"Arnoldi: residual \S+ after 3 steps, need 1e-12"):
        AttentionGraph.from_qk(*head(60, 8), max_dense=0).eigenvector()


def test_results_do_not_alias_the_graph():
    graph = AttentionGraph.from_qk(torch.zeros(4, 2), torch.zeros(4, 2), max_dense=0)
    graph.katz_in().zero_()
    assert graph.katz_in().tolist() == [1, 1, 1, 1]


def test_restarts_reach_the_same_pair_as_one_long_basis():
    A = random_graph(300, 0.02, seed=5)
    ritz = krylov.arnoldi(lambda x: A @ x, torch.ones(300, 1, dtype=torch.float64), count=2)
    moduli = torch.linalg.eigvals(A).abs().sort(descending=True).values
    assert krylov.BASIS < 300
    torch.testing.assert_close(ritz.values.abs(), moduli[:2], rtol=1e-9, atol=0)


def test_relative_residual_of_nothing():
    assert krylov.relative(torch.zeros(2), 0.0) == 0
    assert krylov.relative(torch.ones(2), torch.zeros(2)) == math.inf


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_agrees_on_the_gpu():
    q, k = head(300, 16)
    dense, free = both(q, k)[0], AttentionGraph.from_qk(q.cuda(), k.cuda(), max_dense=0)
    stored = AttentionGraph.from_qk(q.cuda(), k.cuda())
    for name, vector in dense.centralities().items():
        torch.testing.assert_close(free.centralities()[name].cpu(), vector, rtol=1e-8, atol=1e-12, msg=name)
        torch.testing.assert_close(stored.centralities()[name].cpu(), vector, rtol=1e-8, atol=1e-12, msg=name)
