"""Agreement measures equal SciPy's."""

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from infsa.graph.statistics import cosine, ranks, spearman


@given(st.lists(st.integers(0, 5), min_size=3, max_size=30), st.integers(0, 1000))
def test_spearman_equals_scipy_with_ties(values, seed):
    x = torch.tensor(values, dtype=torch.float64)
    y = torch.randn(len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).round()
    assert torch.equal(ranks(x) + 1, torch.from_numpy(scipy.stats.rankdata(x)))
    if x.unique().numel() > 1 and y.unique().numel() > 1:
        assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    else:
        assert spearman(x, y) == 0


def test_cosine():
    x = torch.tensor([3.0, 4.0])
    assert cosine(x, x) == pytest.approx(1)
    assert cosine(x, torch.tensor([4.0, -3.0])) == pytest.approx(0)
