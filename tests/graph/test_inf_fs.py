"""Infinite Feature Selection against a direct computation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infsa.graph import AttentionGraph, inf_fs

from .helpers import ACYCLIC, graphs, random_graph


def direct(A, c):
    """The formula with an explicit inverse, in numpy."""
    A = A.numpy()
    r = c / np.abs(np.linalg.eigvals(A)).max()
    return torch.from_numpy((np.linalg.inv(np.eye(len(A)) - r * A) - np.eye(len(A))).sum(axis=1))


@pytest.mark.parametrize("c", [0.1, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 4, 30])
def test_equals_the_formula(n, c):
    A = random_graph(n, seed=n)
    torch.testing.assert_close(inf_fs(A, c), direct(A, c), rtol=1e-9, atol=0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(graphs(), st.floats(0.05, 0.95))
def test_is_the_neumann_score_at_its_own_decay(A, c):
    rho = AttentionGraph(A).spectral_radius()
    if rho > 0:
        torch.testing.assert_close(inf_fs(A, c), AttentionGraph(A, c / rho).neumann_scores(), rtol=1e-9, atol=0)


def test_the_scale_of_the_affinities_does_not_matter():
    A = random_graph(7, 0.5)
    torch.testing.assert_close(inf_fs(1e-9 * A), inf_fs(1e9 * A), rtol=1e-9, atol=0)


@pytest.mark.parametrize("c", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_c_outside_its_range_is_refused(c):
    with pytest.raises(ValueError, match=f"^c must lie strictly between 0 and 1, got {c}$"):
        inf_fs([[1.0]], c)


def test_wrong_affinities_are_refused():
    with pytest.raises(ValueError, match=r"^A must be non-negative, got A\[0, 1\] = -2$"):
        inf_fs([[1.0, -2.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"^A must have a cycle, got rho\(A\) = 0 for 3 nodes"):
        inf_fs(ACYCLIC["no edge"])
