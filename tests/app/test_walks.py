"""The token graph of a layer and walks on it, against sums of matrix powers and the models' own maps."""

import math

import numpy as np
import pytest
import torch

from infsa.app.look import METHODS, WALKS, Settings, explained, look, model_input
from infsa.app.model_cache import MECHANISMS, borrow, sizes
from infsa.app.walks import SHOWN, compared, token_graph, walk, walk_scores
from infsa.evaluate import explain
from infsa.graph import AttentionGraph

from .helpers import photograph

PICTURE = photograph()


def graph_of(mechanism, layer=-1, head=None, gamma=0.7):
    with borrow(mechanism) as model:
        found = explain(model, PICTURE)
        return token_graph(model, model_input(model, PICTURE, found.size), layer, head, gamma)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_all_hops_give_the_models_own_katz_map(mechanism):
    with borrow(mechanism) as model:
        expected = explain(model, PICTURE, "katz", layer=2, head=1)
        gamma = model.gamma
    found = explained(PICTURE, Settings(mechanism, layer=2, head=1, method=WALKS, gamma=gamma))
    np.testing.assert_allclose(found.map, expected.map, rtol=1e-4)
    assert found.predictions == expected.predictions


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m != WALKS])
def test_other_maps_are_those_of_explain(method):
    with borrow("Pure InfSA") as model:
        expected = explain(model, PICTURE, method, layer=3)
    np.testing.assert_array_equal(explained(PICTURE, Settings(layer=3, method=method)).map, expected.map)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_few_hops_are_a_sum_of_powers(mechanism):
    graph = graph_of(mechanism, gamma=0.6)
    expected = sum(0.6**t * graph.path_matrix(t).sum(0) for t in range(4))
    torch.testing.assert_close(walk_scores(graph, 3), expected)
    errors = [float((graph.katz_in() - walk_scores(graph, hops)).abs().max()) for hops in (1, 2, 5, 60)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_walk_is_somewhere_or_has_ended(mechanism):
    followed = walk(graph_of(mechanism), start=0)
    assert followed.places.shape[0] == SHOWN + 1
    assert (followed.places >= 0).all()
    assert (followed.ending >= 0).all()
    torch.testing.assert_close(followed.moves.sum(1) + followed.ending, torch.ones_like(followed.ending))
    for place, ended in zip(followed.places, followed.ended, strict=True):
        assert float(place.sum()) + ended == pytest.approx(1)
    assert followed.ended == sorted(followed.ended)


def test_visits_are_the_row_of_the_fundamental_matrix():
    graph = graph_of("softmax")
    followed = walk(graph, start=5)
    assert not followed.rescaled
    torch.testing.assert_close(followed.visits, graph.fundamental_matrix()[5])
    torch.testing.assert_close(walk(graph, 5, hops=2).visits, walk(graph, 5, hops=2).places.sum(0))


def test_a_graph_with_large_rows_is_rescaled():
    followed = walk(AttentionGraph([[0.0, 4.0], [2.0, 0.0]], gamma=0.3), start=0)
    assert followed.rescaled
    assert (followed.ending >= 0).all()


def test_linear_infsa_has_one_row():
    moves = graph_of("Linear-InfSA").transition()
    assert (moves == moves[0]).all()


def test_centralities_have_one_number_per_token():
    graph = graph_of("Pure InfSA")
    assert {scores.shape for scores in compared(graph).values()} == {(graph.size,)}


@pytest.mark.parametrize("hops", [0, -1, 1.5, math.nan])
def test_odd_hops_are_refused(hops):
    with pytest.raises(ValueError, match="hops must be"):
        walk_scores(AttentionGraph([[1.0]], gamma=0.5), hops)


def test_what_is_not_there_is_refused():
    graph = graph_of("softmax")
    with pytest.raises(ValueError, match="start must be a token"):
        walk(graph, start=graph.size)
    with pytest.raises(ValueError, match="layer must lie"):
        graph_of("softmax", layer=6)
    with pytest.raises(ValueError, match="head must lie"):
        graph_of("softmax", head=3)
    with pytest.raises(ValueError, match="mechanism must be one of"), borrow("magic"):
        pass


def test_all_mechanisms_stand_side_by_side():
    found = look(PICTURE, Settings("softmax"))
    assert list(found.others) == list(MECHANISMS)
    np.testing.assert_array_equal(found.explanation.map, found.others["softmax"].map)
    assert {name: sizes(name)[0] for name in MECHANISMS} == dict.fromkeys(MECHANISMS, 6)
