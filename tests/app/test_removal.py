"""Removal: the curve says what the model says of the picture without those patches."""

import numpy as np
import pytest
import torch

from infsa.app.drawings import draw_removal
from infsa.app.html import show_removal
from infsa.app.look import Settings, explained, model_input
from infsa.app.model_cache import borrow
from infsa.app.removal import GREY, LEVELS, remove
from infsa.evaluate import class_names

from .helpers import photograph

PICTURE = photograph()
SETTINGS = Settings("softmax", method="rollout")


@pytest.fixture(scope="module")
def removal():
    return remove(PICTURE, SETTINGS)


@pytest.mark.parametrize("level", [0, 7, LEVELS])
def test_curve_equals_a_forward_pass_without_the_patches(removal, level):
    found = explained(PICTURE, SETTINGS)
    order = (-torch.from_numpy(found.map).flatten()).argsort()
    with borrow("softmax") as model:
        batch = model_input(model, PICTURE, found.size)
        rows, columns = removal.grid
        patches = batch.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))  # (1, 3, rows, p, columns, p)
        for token in order[: removal.counts[level]].tolist():
            patches[:, :, token // columns, :, token % columns] = 0
        chances = model(patches.flatten(4).flatten(2, 3)).softmax(-1)[0]
        expected = float(chances[class_names(model).index(removal.label)])
    assert float(removal.curves[0, level]) == pytest.approx(expected, rel=1e-4)


def test_the_ends_do_not_depend_on_the_order(removal):
    assert (removal.curves[:, [0, -1]] == removal.curves[:1, [0, -1]]).all()
    chance = dict(explained(PICTURE, SETTINGS).predictions)[removal.label]
    assert float(removal.curves[0, 0]) == pytest.approx(chance, rel=1e-4)


@pytest.mark.parametrize("level", range(0, LEVELS + 1, 5))
def test_masked_picture_lacks_as_many_patches(removal, level):
    masked, seen = np.asarray(removal.masked(level)), np.asarray(removal.seen)
    changed = (masked != seen).any(2)
    rows, columns = removal.grid
    per_patch = changed.reshape(rows, changed.shape[0] // rows, columns, -1).any((1, 3))
    assert per_patch.sum() == removal.counts[level]
    assert (masked[changed] == GREY).all()


def test_drawn_with_the_numbers_it_stands_for(removal):
    shown = show_removal(removal, draw_removal(removal), 4)
    assert f"{float(removal.curves[0, 4]):.1%}" in shown
    assert f"{int(removal.counts[4])} of {removal.ranks.numel()} patches" in shown
