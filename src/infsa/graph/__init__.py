"""Attention as a graph: paths, absorbing chains, centralities and Inf-FS on token affinities."""

from .errors import ConvergenceError, DivergenceError, SubstochasticError
from .examples import five_token_graph
from .feature_selection import inf_fs
from .graph import AttentionGraph

__all__ = [
    "AttentionGraph",
    "ConvergenceError",
    "DivergenceError",
    "SubstochasticError",
    "five_token_graph",
    "inf_fs",
]
