"""What a token graph can refuse, one class per reason."""


class DivergenceError(ValueError):
    """The Neumann series of γA does not converge: γ ρ(A) is 1 or more.

    Example:
        >>> from infsa.graph import AttentionGraph, DivergenceError
        >>> try:
        ...     AttentionGraph([[2.0]], gamma=0.7).neumann()
        ... except DivergenceError as error:
        ...     print(error)
        the series of gamma*A diverges: gamma = 0.7, rho(A) = 2, gamma*rho = 1.4; need gamma < 0.5
    """


class SubstochasticError(ValueError):
    """γA is not an absorbing chain: some token would have a negative absorption probability.

    Example:
        >>> from infsa.graph import AttentionGraph, SubstochasticError
        >>> try:
        ...     AttentionGraph([[0.0, 2.0], [0.0, 0.0]], gamma=0.75).absorption()
        ... except SubstochasticError as error:
        ...     print(error)
        token 0 has absorption probability -0.5 (gamma times row sum is 1.5); pass rescale=True
    """


class ConvergenceError(RuntimeError):
    """An iteration stopped at its limit before its residual was small enough.

    Example:
        >>> from infsa.graph import ConvergenceError
        >>> issubclass(ConvergenceError, RuntimeError)
        True
    """
