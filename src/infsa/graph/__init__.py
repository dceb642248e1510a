"""Attention as a graph: paths, absorbing chains, centralities and Inf-FS on token affinities."""

from .errors import ConvergenceError, DivergenceError, SubstochasticError
from .graph import AttentionGraph, five_token_graph, inf_fs

__all__ = [
    "AttentionGraph",
    "ConvergenceError",
    "DivergenceError",
    "SubstochasticError",
    "five_token_graph",
    "inf_fs",
]
