"""Performer's random features: a function of the seed, orthogonal, frozen unless asked, and close to softmax."""

import itertools

import pytest
import torch

from .helpers import BASE, build, tokens


def test_directions_are_a_function_of_the_seed():
    first, second = (build("performer", seed=5, start=start).directions for start in (0, 1))
    assert torch.equal(first, second)
    assert not torch.allclose(first, build("performer", seed=6).directions)


def test_directions_are_orthogonal_in_blocks_with_gaussian_norms():
    module = build("performer", dim=64, heads=4, features=1600)
    assert module.directions.shape == (1600, 16)
    for block in module.directions.split(16):
        gram = block @ block.mT
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-12, rtol=0)
    squares = module.directions.square().sum(-1)  # χ² with 16 degrees of freedom: mean 16, variance 32
    assert abs(squares.mean() - 16) < 4 * (32 / 1600) ** 0.5
    assert 24 < squares.var() < 42


@pytest.mark.parametrize(("head_dim", "features"), [(16, 44), (64, 266), (1, 1)])
def test_default_number_of_features(head_dim, features):
    assert build("performer", dim=2 * head_dim).directions.shape == (features, head_dim)


def test_redraw_only_when_asked_and_counted():
    x = tokens()
    frozen = build("performer").train()
    before = frozen.directions.clone()
    for _ in range(5):
        frozen.advance()
        frozen(x, BASE)
    assert torch.equal(frozen.directions, before)
    moving = build("performer", redraw_every=2).eval()
    for _ in range(5):
        moving(x, BASE)
    assert torch.equal(moving.directions, before)
    draws = []
    for _ in range(6):
        moving.advance()
        draws.append(moving.directions.clone())
    assert [torch.equal(a, b) for a, b in itertools.pairwise(draws)] == [True, False, True, False, True]
    moving.reset_parameters()
    assert torch.equal(moving.directions, before)


def test_estimates_softmax_at_small_scale():
    """The relative error falls as the features grow, for scores of a size that they can estimate."""
    softmax = build("softmax", noise=0.0)
    x = tokens()
    with torch.no_grad():
        softmax.qkv.weight[:32] *= 0.5
    expected = softmax.weights(x, BASE)

    def error(features, seed):
        performer = build("performer", noise=0.0, features=features, eps=0.0, seed=seed)
        performer.load_state_dict(softmax.state_dict(), strict=False)
        return ((performer.weights(x, BASE) - expected).norm() / expected.norm()).item()

    errors = [sum(error(features, seed) for seed in range(10)) / 10 for features in (32, 256, 2048)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]  # eight times the features: √8 = 2.8 times less, no floor
    assert errors[2] < 0.02
