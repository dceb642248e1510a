"""The one way a standard error is computed here: over runs, stratified by dataset shard."""

import math
import statistics
from collections.abc import Mapping, Sequence


def stratified(strata: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The mean of the strata's means and its standard error.

    Each stratum, such as a dataset shard, weighs the same. Strata of one run add no error.

    Example:
        >>> stratified({"a": [1.0, 3.0], "b": [6.0, 6.0]})
        (4.0, 0.5)
    """
    means = [statistics.fmean(values) for values in strata.values()]
    variance = sum(statistics.variance(values) / len(values) for values in strata.values() if len(values) > 1)
    return statistics.fmean(means), math.sqrt(variance) / len(strata)


def difference(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The difference of two stratified means and its standard error."""
    (a, a_error), (b, b_error) = stratified(first), stratified(second)
    return a - b, math.hypot(a_error, b_error)
