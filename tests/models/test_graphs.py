"""CUDA graphs of short inputs: which calls share one, and how many are kept. No GPU is needed."""

import contextlib
import gc
import types

import pytest
import torch

from infsa.models import graphs
from infsa.models.graphs import Graphs

from .test_speed import images


class Stored:
    """A graph that remembers what it was captured for, and runs it again."""

    bytes = 10

    def __init__(self, function, images, mask, place):
        assert not gc.isenabled(), "what is collected during a capture may be a graph, which would end it"
        self.function, self.place, self.shape = function, place, images.shape

    def __call__(self, images, mask):
        return self.function(images, mask) + 100


@pytest.fixture
def table(monkeypatch):
    """A table of graphs without a GPU; ``table.stream`` is the current stream."""
    made = Graphs()
    made.stream = 1
    monkeypatch.setattr(graphs, "Graph", Stored)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=made.stream))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    return made


def first_number(images, mask):
    return images.flatten()[0]


def test_a_second_call_of_a_kind_is_a_graph(table):
    x = images()
    for expected in (0, 100, 100):
        assert table.run(first_number, x, None) == x.flatten()[0] + expected
    for other in ((x, torch.ones(2, 3, 5, dtype=torch.bool)), (x.float(), None), (images(size=(40, 24)), None)):
        assert table.run(first_number, *other) < 100, "another kind"
        assert table.run(first_number, *other) > 90
    assert len(table.graphs) == 4


def test_streams_share_neither_images_nor_memory(table):
    x = images()
    table.run(first_number, x, None)
    table.stream = 2
    assert table.run(first_number, x, None) == x.flatten()[0]
    one, two = (graph.place for graph in table.graphs.values())
    assert one.images is not two.images
    assert one.pool is not two.pool
    assert one.stream is not two.stream


def test_graphs_are_few_and_their_memory_is_bounded(table, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 3)
    sizes = [(8, 8 * n) for n in range(1, 5)]
    for size in sizes[:3]:
        table.run(first_number, images(size=size), None)
    table.run(first_number, images(size=sizes[0]), None)  # so that the second is the oldest
    table.run(first_number, images(size=sizes[3]), None)
    assert sorted(graph.shape[3] // 8 for graph in table.graphs.values()) == [1, 3, 4]
    assert table.bytes == 8 * (384 + 768 + 2 * 768) + 4 * Stored.bytes, "memory for images grows in steps of two"
    monkeypatch.setattr(graphs, "MOST_BYTES", table.bytes - 1)
    table.run(first_number, images(size=(16, 16)), None)
    assert len(table.graphs) == 1
    assert table.bytes == 8 * 1536 + Stored.bytes


def test_what_cannot_be_captured_still_runs(table, monkeypatch):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "Graph", refuse)
    x = images()
    for _ in range(graphs.MOST_FAILURES - 1):  # what failed once is tried again
        assert table.run(first_number, x, None) == x.flatten()[0]
    with pytest.warns(UserWarning, match="^short inputs are not replayed as CUDA graphs: operation not permitted"):
        assert table.run(first_number, x, None) == x.flatten()[0]
    monkeypatch.setattr(graphs, "Graph", lambda *_: pytest.fail("tried again"))
    assert table.run(first_number, x, None) == x.flatten()[0]
    assert gc.isenabled()
