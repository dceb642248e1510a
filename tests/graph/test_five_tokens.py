"""The worked example: its claims, its document and its figure."""

import contextlib
import io
import re
from pathlib import Path

import matplotlib.image
import pytest
import torch

from infsa.graph import five_token_graph
from infsa.report.figures import draw_five_tokens

DOCUMENT = Path(__file__).parents[2] / "docs" / "idea.md"
MARGIN = 1.1  # the leader is ahead by this factor at least


def leader(scores):
    (first, second), (token, _) = scores.topk(2)
    assert first >= MARGIN * second
    return int(token)


@pytest.fixture
def rankings():
    graph = five_token_graph()
    A, M = graph.path_matrix(1), graph.transition()
    return {
        "one hop: column sums of Â": graph.degree("in"),
        "one hop, rows scaled to sum 1 as softmax would": (A / A.sum(dim=1, keepdim=True)).sum(dim=0),
        "two hops: column sums of M²": (M @ M).sum(dim=0),
        "all hops: Katz in, (I − Mᵀ)⁻¹ 1": graph.katz_in(),
    }


def test_one_hop_and_all_hops_disagree(rankings):
    assert [leader(scores) for scores in rankings.values()] == [0, 0, 4, 4]


def test_the_graph_is_a_legal_chain_of_norm_one():
    graph = five_token_graph()
    assert graph.gamma == 0.7
    assert float(graph.path_matrix(1).norm()) == pytest.approx(1)
    assert graph.absorption().min() > 0.1
    assert graph.canonical_form().shape == (6, 6)
    for i, j in ((1, 0), (2, 0), (0, 3), (3, 4)):
        assert graph.path_matrix(1)[i, j] > 0


def test_the_document_prints_what_the_code_prints():
    ((code, printed),) = re.findall(
        r"```python\n([^`]*five_token_graph.*?)```\n\n```\n(.*?)```", DOCUMENT.read_text(), re.S
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue() == printed


def test_the_figure_is_drawn(tmp_path):
    path = tmp_path / "five.png"
    draw_five_tokens(path)
    pixels = torch.from_numpy(matplotlib.image.imread(path))
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 1200
    assert path.stat().st_size < 200_000
