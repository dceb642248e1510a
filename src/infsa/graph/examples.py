"""Small graphs to think with."""

import torch

from .graph import AttentionGraph

FIVE_TOKEN_SCORES = (
    # to token 0, 1, 2, 3, 4
    (0, 0, 0, 2, 1),
    (3, 0, 0, 1, 0),
    (4, 0, 0, 0, 0),
    (2, 0, 0, 0, 5),
    (0, 0, 0, 2, 1),
)


def five_token_graph() -> AttentionGraph:
    """Five tokens on which one hop and all hops disagree about the most important one; γ = 0.7.

    Tokens 1, 2 and 3 look at token 0, which therefore leads at one hop. Token 0 looks at 3 and 3 at 4, so
    what arrives at 0 moves on: at two hops, and over all walks, token 4 leads. The paper draws such a graph
    without its weights; these scores, divided by their Frobenius norm √65, are our own.

    Example:
        >>> graph = five_token_graph()
        >>> int(graph.degree("in").argmax()), int(graph.katz_in().argmax())
        (0, 4)
    """
    scores = torch.tensor(FIVE_TOKEN_SCORES, dtype=torch.float64)
    return AttentionGraph(scores / torch.linalg.matrix_norm(scores), gamma=0.7)
