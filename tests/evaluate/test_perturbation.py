"""MoRF and LeRF: the closed form of a linear model, the naive loop, ties, ends."""

import pytest
import torch

from infsa.evaluate.fills import replacement
from infsa.evaluate.perturbation import area_under, has_ties, level_counts, removal_curves, removal_ranks
from tests.evaluate.synthetic import PatchSum, naive_curve
from tests.models.helpers import images as random_images
from tests.models.helpers import small


def ranks_of(scores):
    return removal_ranks(scores, torch.rand(scores.shape))


def known_importance(batch=3, grid=(5, 4)):
    torch.manual_seed(0)
    model = PatchSum(torch.rand(grid) + 0.1)
    images = torch.rand(batch, 3, 20, 16) + 0.2
    return model, images, model.parts(images).flatten(1)


def test_logit_curves_equal_the_closed_form():
    """After n patches the logit is the sum of the importances that are left."""
    model, images, truth = known_importance()
    ranks = torch.cat([ranks_of(truth), ranks_of(torch.rand_like(truth))])
    owner, classes = torch.arange(3).repeat(2), torch.zeros(3, dtype=torch.long)
    curves = removal_curves(model, images, ranks, owner, classes, grid=(5, 4), levels=8, score="logit")
    order = ranks.argsort(-1)
    removed = torch.cat([torch.zeros(6, 1), truth[owner].gather(1, order).cumsum(-1)], 1)[:, level_counts(20, 8)]
    torch.testing.assert_close(curves, truth.sum(1)[owner, None] - removed, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fill", ["mean", "tokens"])
def test_oracle_beats_a_method_beats_random_beats_anti_oracle(fill):
    model, images, truth = known_importance(batch=16)
    noisy = truth * torch.rand_like(truth).add(0.5)  # a method: right up to a factor between 0.5 and 1.5
    scores = [truth, noisy, torch.rand_like(truth), -truth]
    ranks = torch.cat([ranks_of(score) for score in scores])
    owner, classes = torch.arange(16).repeat(4), torch.zeros(16, dtype=torch.long)
    curves = removal_curves(model, images, ranks, owner, classes, grid=(5, 4), fill=fill)
    over = (1 - area_under(curves / curves[:, :1], 20)).view(4, 16).mean(1)
    assert (over[:-1] > over[1:]).all(), over


def test_area_of_the_oracle_equals_the_closed_form():
    """Equal importances: the logit falls along a straight line, whatever the order, and its area is a half."""
    model = PatchSum(torch.ones(4, 4))
    images = torch.ones(1, 3, 16, 16)
    ranks = ranks_of(torch.rand(1, 16))
    curve = removal_curves(
        model, images, ranks, torch.zeros(1).long(), torch.zeros(1).long(), grid=(4, 4), score="logit"
    )
    assert float(area_under(curve / curve[:, :1], 16)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear"])
@pytest.mark.parametrize("fill", ["mean", "black", "blur", "tokens"])
def test_batched_curves_equal_the_naive_loop(attention, fill):
    model, images = small(attention), random_images(3)
    owner = torch.tensor([2, 0, 0, 1])
    ranks = ranks_of(torch.rand(4, 16))
    classes = torch.tensor([0, 3, 4])
    curves = removal_curves(model, images, ranks, owner, classes, grid=(4, 4), fill=fill, levels=7, chunk=5)
    value = replacement(images, fill, (8, 8)) if fill != "tokens" else images
    for row, image in enumerate(owner):
        order, counts = ranks[row].argsort(), level_counts(16, 7)
        naive = naive_curve(model, images[image], order, value[image], classes[image], counts, 8, fill == "tokens")
        torch.testing.assert_close(curves[row], naive, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear", "mean", "energy"])
@pytest.mark.parametrize("options", [{}, {"class_token": False}, {"reg_tokens": 2}])
def test_shorter_sequences_equal_masked_ones(attention, options):
    """Leaving tokens out is what the patch mask promises; the loop over masks knows nothing of the shorter path."""
    model, images = small(attention, **options), random_images(2)
    ranks, classes = ranks_of(torch.rand(2, 16)), torch.tensor([1, 4])
    curves = removal_curves(model, images, ranks, torch.arange(2), classes, grid=(4, 4), fill="tokens", levels=40)
    for row in range(2):
        order, counts = ranks[row].argsort(), level_counts(16, 40)
        naive = naive_curve(model, images[row], order, images[row], classes[row], counts, 8, tokens=True)
        torch.testing.assert_close(curves[row], naive, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", ["performer", "agent", "flatten"])
def test_other_mechanisms_mask_their_tokens(attention):
    model, images = small(attention), random_images(1)
    arguments = (model, images, ranks_of(torch.rand(1, 16)), torch.zeros(1).long(), torch.zeros(1).long())
    try:
        curves = removal_curves(*arguments, grid=(4, 4), fill="tokens", levels=4)
    except ValueError as error:
        assert "does not support key_mask" in str(error)  # noqa: PT017
    else:
        assert torch.isfinite(curves).all()


def test_chunks_do_not_change_the_curves():
    model, images = small(), random_images(2)
    ranks, owner, classes = ranks_of(torch.rand(2, 16)), torch.arange(2), torch.tensor([1, 2])
    results = [removal_curves(model, images, ranks, owner, classes, grid=(4, 4), chunk=chunk) for chunk in (3, 1000)]
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


def test_orders_share_their_ends_and_reverse():
    model, images = small(), random_images(1)
    ranks = ranks_of(torch.rand(1, 16))
    both = torch.cat([ranks, 15 - ranks])
    curves = removal_curves(model, images, both, torch.zeros(2).long(), torch.zeros(1).long(), grid=(4, 4), fill="blur")
    assert torch.equal(curves[0, [0, -1]], curves[1, [0, -1]])
    assert torch.equal(both[1].argsort(), both[0].argsort().flip(0))


def test_ties_are_broken_by_the_random_numbers_alone():
    scores = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    first = {tuple(removal_ranks(scores, torch.rand(1, 5)).argsort()[0].tolist()) for _ in range(200)}
    assert {order[:2] for order in first} == {(1, 3), (3, 1)}
    assert len(first) == 2 * 6
    fixed = torch.rand(1, 5)
    assert torch.equal(removal_ranks(scores, fixed), removal_ranks(scores, fixed))
    assert has_ties(scores).tolist() == [True]
    assert has_ties(torch.rand(3, 50)).tolist() == [False] * 3


def test_levels_cover_the_image_evenly():
    for patches, levels in ((64, 20), (196, 20), (5, 20), (49, 7)):
        counts = level_counts(patches, levels)
        assert counts[0] == 0
        assert counts[-1] == patches
        exact = torch.arange(levels + 1) * patches / levels
        assert ((counts - exact).abs() <= 0.5).all()
    assert float(area_under(torch.ones(21), 64)) == pytest.approx(1)


def test_top1_follows_the_prediction():
    model, images, truth = known_importance(batch=1)
    curve = removal_curves(
        model, images, ranks_of(truth), torch.zeros(1).long(), torch.zeros(1).long(), grid=(5, 4), score="top1"
    )
    assert set(curve[0].tolist()) <= {0.0, 1.0}
    assert curve[0, 0] == 1


def test_road_runs_through_the_curves():
    model, images = small(), random_images(2)
    ranks = ranks_of(torch.rand(2, 16))
    arguments = (model, images, ranks, torch.arange(2), torch.tensor([1, 2]))
    quiet = removal_curves(*arguments, grid=(4, 4), fill="road", levels=4)
    noisy = removal_curves(*arguments, grid=(4, 4), fill="road", levels=4, noise=torch.randn(images.shape))
    assert torch.equal(quiet[:, 0], noisy[:, 0])
    assert not torch.equal(quiet[:, 2], noisy[:, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fill": "grey"}, "got 'grey'"),
        ({"score": "loss"}, "got 'loss'"),
        ({"levels": 0}, "got 0"),
        ({"noise": torch.zeros(2, 3, 32, 32)}, "fill='mean'"),
        ({"grid": (3, 4)}, "3 × 4"),
        ({"grid": (2, 4)}, "got (2, 16)"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(options, message):
    ranks = ranks_of(torch.rand(2, 16))
    with pytest.raises(ValueError, match=r"got|divide") as caught:
        removal_curves(
            small(), random_images(2), ranks, torch.arange(2), torch.tensor([0, 1]), **{"grid": (4, 4), **options}
        )
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
