"""Graphs to test on, and bridges to networkx."""

import networkx as nx
import numpy as np
import torch
from hypothesis import strategies as st


def random_graph(n, density=1.0, seed=0):
    """A float64 graph (N, N) of weights in (0, 1), each present with probability `density`."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, n, generator=generator, dtype=torch.float64)
    return weights * (torch.rand(n, n, generator=generator) < density)


def matrix(rows):
    return torch.tensor(rows, dtype=torch.float64)


def as_queries_and_keys(A):
    """q, k whose ReLU scores are exactly proportional to A: any graph can be run matrix-free."""
    return A.clone(), torch.eye(len(A), dtype=A.dtype)


def to_networkx(A):
    return nx.from_numpy_array(A.numpy(), create_using=nx.DiGraph)


def from_networkx(scores):
    return torch.from_numpy(np.array([scores[token] for token in range(len(scores))]))


SHAPES = {  # structures on which a careless solver fails
    "one token": matrix([[2.0]]),
    "cycle of three": matrix([[0, 1, 0], [0, 0, 2], [3, 0, 0]]),
    "bipartite": matrix([[0, 0, 1, 2], [0, 0, 3, 1], [2, 1, 0, 0], [1, 4, 0, 0]]),
    "two islands": matrix([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 3], [0, 0, 2, 0]]),
    "equal islands": matrix([[0, 1, 0, 0], [4, 0, 0, 0], [0, 0, 1, 2], [0, 0, 1, 0]]),
    "identity": matrix([[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "upstream of a cycle": matrix([[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 2], [0, 0, 2, 0]]),
    "downstream of a cycle": matrix([[0, 2, 1, 0], [2, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]),
    "weak loop before a strong one": matrix([[1, 1, 0], [0, 0, 3], [0, 3, 0]]),
    "strong loop before a weak one": matrix([[4, 1, 0], [0, 0, 1], [0, 1, 0]]),
    "empty rows": matrix([[0, 1, 2], [0, 0, 0], [1, 0, 0]]),
}
DEFECTIVE = {  # a root of several components in a row: no full set of eigenvectors
    "jordan block": matrix([[1, 1], [0, 1]]),
    "equal loops in a chain": matrix([[0, 2, 1, 0], [2, 0, 0, 0], [0, 0, 0, 1], [0, 0, 4, 0]]),
}
SHUFFLE = torch.arange(12) * 5 % 12
ACYCLIC = {
    "no edge": torch.zeros(3, 3, dtype=torch.float64),
    "one token, no edge": torch.zeros(1, 1, dtype=torch.float64),
    "chain": torch.diag(torch.ones(11, dtype=torch.float64), 1),
    "shuffled chain": torch.diag(torch.ones(11, dtype=torch.float64), 1)[SHUFFLE][:, SHUFFLE],
}


@st.composite
def graphs(draw, largest=6):
    """Any structure up to `largest` tokens: each weight is absent or between 0.001 and 1."""
    n = draw(st.integers(1, largest))
    weight = st.one_of(st.just(0.0), st.floats(1e-3, 1.0))
    return matrix(draw(st.lists(st.lists(weight, min_size=n, max_size=n), min_size=n, max_size=n)))
