"""What is accepted, and the one line that answers what is not."""

import doctest
import importlib

import numpy as np
import pytest
import torch

from infsa.graph import AttentionGraph, inf_fs
from infsa.graph.inputs import as_adjacency

Q = torch.ones(3, 2)


@pytest.mark.parametrize(
    "A",
    [[[0, 1], [2, 0]], np.array([[0, 1], [2, 0]]), torch.tensor([[0, 1], [2, 0]]), torch.eye(2).half()],
    ids=["lists", "numpy", "integers", "half"],
)
def test_any_matrix_becomes_float64(A):
    graph = AttentionGraph(A)
    assert graph.degree().dtype == torch.float64
    assert graph.size == 2
    assert repr(graph) == "AttentionGraph(tokens=2, gamma=0.7, dense)"


@pytest.mark.parametrize(
    "rows",
    [
        [[0.1, 1 / 3], [1e30, 0.7]],
        [[0, 2**53 - 1], [2**70, 1]],
        [[True, False], [False, True]],
        [[1, 0.1], [True, 2]],
        ((0.1, 0.2), (0.3, 0.4)),
    ],
    ids=["floats", "integers", "booleans", "mixed", "tuples"],
)
def test_lists_of_python_numbers_keep_all_their_digits(rows):
    """As numpy reads them: never by way of float32."""
    expected = np.array(rows, np.float64)
    assert np.array_equal(as_adjacency(rows).numpy(), expected)
    assert np.array_equal(AttentionGraph(rows).degree("out").numpy(), expected.sum(1))
    assert torch.equal(inf_fs(rows), inf_fs(expected))


@pytest.mark.parametrize("dtype", [">f8", ">i4", "u2", "f2", "?"])
def test_arrays_of_any_real_type_and_layout(dtype):
    array = np.arange(9).reshape(3, 3).astype(dtype)
    for view in (array, array.T, array[::-1, ::-1], np.asfortranarray(array)):
        assert np.array_equal(as_adjacency(view).numpy(), view.astype(np.float64))


@pytest.mark.parametrize(
    "rows",
    [[["1"]], [[None]], [[1, 2], [3]], [[[1], [2]], [3, 4]], {0: 1}, [[2**2000]], np.array([["a"]]), b"ab", Ellipsis],
    ids=repr,
)
def test_what_is_no_matrix_of_numbers_is_refused_in_one_line(rows):
    for call in (AttentionGraph, inf_fs):
        with pytest.raises(TypeError, match="A must be a square matrix of numbers, got ") as caught:
            call(rows)
        assert "\n" not in str(caught.value)


def test_complex_matrices_are_refused():
    for rows in ([[1, 1j], [0, 1]], np.eye(2, dtype=complex), torch.eye(2, dtype=torch.complex128)):
        with pytest.raises(TypeError, match=r"A must be real, got torch\.complex"):
            inf_fs(rows)


def test_gradients_stop_at_the_graph():
    A = torch.rand(3, 3, requires_grad=True)
    q = torch.rand(3, 2, requires_grad=True)
    assert not AttentionGraph(A, gamma=0.1).katz_in().requires_grad
    for max_dense in (0, 3):
        assert not AttentionGraph.from_qk(q, q, max_dense=max_dense).katz_in().requires_grad


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: AttentionGraph(torch.ones(2, 3)),
            ValueError,
            "A must have shape (N, N) with N >= 1, got (2, 3)",
        ),
        (lambda: AttentionGraph(torch.ones(2)), ValueError, "A must have shape (N, N) with N >= 1, got (2,)"),
        (
            lambda: AttentionGraph(torch.ones(0, 0)),
            ValueError,
            "A must have shape (N, N) with N >= 1, got (0, 0)",
        ),
        (lambda: AttentionGraph([[0, 1], [-3, 0]]), ValueError, "A must be non-negative, got A[1, 0] = -3"),
        (lambda: AttentionGraph([[float("nan")]]), ValueError, "A must be finite, got A[0, 0] = nan"),
        (lambda: AttentionGraph([[float("inf")]]), ValueError, "A must be finite, got A[0, 0] = inf"),
        (lambda: AttentionGraph([[1j]]), TypeError, "A must be real, got torch.complex64"),
        (lambda: AttentionGraph("graph"), TypeError, "A must be a square matrix of numbers, got str"),
        (lambda: AttentionGraph([[1, 2], [3]]), TypeError, "A must be a square matrix of numbers, got list"),
        (
            lambda: AttentionGraph([[1]], gamma=0),
            ValueError,
            "gamma must be finite and greater than 0, got 0",
        ),
        (
            lambda: AttentionGraph([[1]], gamma=-1.5),
            ValueError,
            "gamma must be finite and greater than 0, got -1.5",
        ),
        (
            lambda: AttentionGraph([[1]], gamma=float("nan")),
            ValueError,
            "gamma must be finite and greater than 0, got nan",
        ),
        (lambda: AttentionGraph([[1]], gamma="0.7"), TypeError, "gamma must be a float, got str"),
        (lambda: AttentionGraph.from_qk([[1.0]], Q), TypeError, "q must be a tensor, got list"),
        (
            lambda: AttentionGraph.from_qk(Q[None], Q),
            ValueError,
            "q must have shape (N, d) with N, d >= 1, got (1, 3, 2)",
        ),
        (
            lambda: AttentionGraph.from_qk(Q, Q.int()),
            TypeError,
            "k must be of a floating type, got torch.int32",
        ),
        (lambda: AttentionGraph.from_qk(Q / 0, Q), ValueError, "q must be finite, got inf"),
        (
            lambda: AttentionGraph.from_qk(Q, Q[:2]),
            ValueError,
            "q and k must have one shape, got (3, 2) and (2, 2)",
        ),
        (
            lambda: AttentionGraph.from_qk(Q, Q, activation="gelu"),
            ValueError,
            "activation must be one of ('relu', 'abs'), never negative, got 'gelu'",
        ),
        (
            lambda: AttentionGraph.from_qk(Q, Q, eps=-1.0),
            ValueError,
            "eps must be finite and at least 0, got -1.0",
        ),
        (
            lambda: AttentionGraph.from_qk(Q, Q, max_dense=-1),
            ValueError,
            "max_dense must be an integer of at least 0, got -1",
        ),
        (
            lambda: AttentionGraph([[1]]).path_matrix(-1),
            ValueError,
            "t must be an integer of at least 0, got -1",
        ),
        (
            lambda: AttentionGraph([[1]]).path_scores(1.5),
            ValueError,
            "t must be an integer of at least 0, got 1.5",
        ),
        (
            lambda: AttentionGraph([[1]]).eigenvector("both"),
            ValueError,
            "side must be one of ('right', 'left', 'symmetric'), got 'both'",
        ),
        (
            lambda: AttentionGraph([[1]]).degree("left"),
            ValueError,
            "side must be one of ('in', 'out', 'total'), got 'left'",
        ),
        (
            lambda: AttentionGraph([[1]]).pagerank(1.0),
            ValueError,
            "alpha must lie strictly between 0 and 1, got 1.0",
        ),
    ],
)
def test_wrong_input_is_answered_in_one_line(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["errors", "graph", "statistics"])
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(f"infsa.graph.{name}")
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
