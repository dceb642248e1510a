"""The public token graph: paths, absorbing chain and centralities in one class."""

from .centrality import Centralities
from .markov import AbsorbingChain


class AttentionGraph(AbsorbingChain, Centralities):
    """Attention read as a weighted graph: A_ij is how much token i attends to token j, γ the decay per hop.

    `AttentionGraph(A, gamma)` takes any square, finite, non-negative matrix (N, N), as a tensor or
    array-like, and computes in float64 on its device. `AttentionGraph.from_qk(q, k, gamma)` builds Â from one
    head's queries and keys (N, d), and beyond `max_dense` tokens never stores it. Results carry no gradient.

    * paths: `path_matrix`, `path_scores`, `neumann`, `neumann_scores`
    * absorbing chain: `transition`, `absorption`, `canonical_form`, `fundamental_matrix`, `absorption_times`
    * centralities: `degree`, `katz_in`, `katz_out`, `eigenvector`, `pagerank`, `tokenrank`, `centralities`
    * spectrum: `spectral_radius`, `spectral_ratio`

    γ may be 1 or more as long as γ ρ(A) < 1; whatever needs the path series refuses otherwise with a
    `DivergenceError`. An iteration that does not settle raises `ConvergenceError`.

    Attributes:
        gamma: the decay γ.
        residuals: relative residual of each result solved for so far, by method name (the eigenvectors as
            `"eigenvector_right"` and `"eigenvector_left"`): ‖b + γAx − x‖ / ‖x‖ for linear systems,
            ‖Av − ρv‖ / ‖ρv‖ for eigenvectors.

    Example:
        >>> graph = AttentionGraph([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], gamma=0.5)
        >>> graph.katz_in()  # the chain 0 -> 1 -> 2: what token 2 receives comes over two hops
        tensor([1.0000, 1.5000, 1.7500], dtype=torch.float64)
        >>> graph.residuals["katz_in"]
        0.0
    """
