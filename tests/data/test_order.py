"""The order of training images: permutations, cut the same however many processes share them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infsa.data.order import Order
from tests.data.helpers import one_line


@st.composite
def cuts(draw):
    """(images, batch size, accumulate, world) that fit."""
    accumulate, world, each = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batch = accumulate * world * each
    return draw(st.integers(batch, 5 * batch)), batch, accumulate, world


@given(cuts(), st.integers(0, 2**63), st.integers(0, 30))
def test_ranks_and_parts_together_are_the_batch(cut, seed, step):
    images, batch, accumulate, world = cut
    epoch, whole = Order(images, batch, seed).batch(step)
    streams = [list(Order(images, batch, seed, accumulate, rank, world).parts(step, step + 1)) for rank in range(world)]
    assert all(len(stream) == accumulate for stream in streams)
    assert {found for stream in streams for found, _ in stream} == {epoch}
    assert all(len(part) == batch // accumulate // world for stream in streams for _, part in stream)
    joined = np.concatenate([streams[rank][part][1] for part in range(accumulate) for rank in range(world)])
    assert joined.tolist() == whole.tolist()  # in order too: partners of mixup stay together


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_is_a_part_of_a_permutation(images, batch, seed, epoch):
    if batch > images:
        return
    order = Order(images, batch, seed)
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    found = [order.batch(step) for step in steps]
    assert {number for number, _ in found} == {epoch}
    seen = np.concatenate([indices for _, indices in found])
    assert len(set(seen.tolist())) == len(seen) == images // batch * batch
    assert 0 <= seen.min() <= seen.max() < images


@given(cuts(), st.integers(0, 12), st.integers(0, 12))
def test_starting_anywhere_gives_the_rest_of_the_whole_stream(cut, start, length):
    images, batch, accumulate, world = cut
    end = start + length
    whole = list(Order(images, batch, 3, accumulate, world - 1, world).parts(0, end))
    rest = list(Order(images, batch, 3, accumulate, world - 1, world).parts(start, end))
    assert [(e, i.tolist()) for e, i in rest] == [(e, i.tolist()) for e, i in whole[start * accumulate :]]


def test_epochs_and_seeds_differ():
    batches = [Order(50, 50, seed).batch(epoch)[1].tolist() for seed, epoch in itertools.product(range(3), range(3))]
    assert len({tuple(batch) for batch in batches}) == 9
    assert all(sorted(batch) == list(range(50)) for batch in batches)


def test_images_left_over_come_in_another_epoch():
    order = Order(images=10, batch_size=4, seed=0)
    assert order.steps_per_epoch == 2
    seen = {index for step in range(20) for index in order.batch(step)[1].tolist()}
    assert seen == set(range(10))


def test_looking_back_gives_the_same():
    order = Order(20, 5, seed=1)
    first = [order.batch(step)[1].tolist() for step in range(12)]
    assert [order.batch(step)[1].tolist() for step in reversed(range(12))] == first[::-1]


@pytest.mark.parametrize(
    "arguments", [(0, 1), (5, 6), (5, 0), (5, -1), (12, 5, 0, 2), (12, 6, 0, 1, 0, 4), (12, 12, 0, 5, 0, 1)]
)
def test_what_cannot_be_cut_is_one_line(arguments):
    with pytest.raises(ValueError, match=one_line("batch_size")):
        Order(*arguments)
