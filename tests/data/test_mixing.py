"""Mixup and cutmix: an image's share of the target is its share of the pixels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infsa.data.mixing import mix_pairs
from tests.data.helpers import one_line


def batch(count=8, height=12, width=10):
    """Image i is white in channel i alone, and has label i: every pixel says whose it is."""
    return torch.eye(count)[:, :, None, None].expand(count, count, height, width).clone(), torch.eye(count)


alphas = st.sampled_from([0.0, 0.1, 0.8, 1.0, 5.0])


@settings(deadline=None)
@given(alphas, alphas, st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
def test_the_target_is_the_share_of_the_pixels(mixup, cutmix, prob, seed, height, width):
    images, targets = batch(8, height, width)
    mixed, labels = mix_pairs(images, targets, mixup=mixup, cutmix=cutmix, prob=prob, key=(seed, 0))
    assert mixed.shape == images.shape
    torch.testing.assert_close(mixed.mean((2, 3)), labels, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(labels.sum(1), torch.ones(8))
    assert (labels >= 0).all()
    strangers = ~torch.block_diag(*[torch.ones(2, 2, dtype=torch.bool)] * 4)
    assert (labels[strangers] == 0).all()


def test_cutmix_pastes_one_rectangle_of_the_partner():
    images, targets = batch(64, 16, 16)
    mixed, labels = mix_pairs(images, targets, mixup=0, cutmix=1.0, prob=1.0, key=(0,))
    assert set(mixed.unique().tolist()) == {0.0, 1.0}
    for i in range(64):
        foreign = mixed[i, i ^ 1] == 1
        rows, columns = foreign.any(1), foreign.any(0)
        assert foreign.sum() == rows.sum() * columns.sum()
        assert float(labels[i, i]) == pytest.approx(1 - float(foreign.float().mean()), abs=1e-6)
    areas = 1 - labels.diagonal()
    assert areas.std() > 0.1


def test_mixup_blends_whole_images():
    images, targets = torch.randn(64, 3, 4, 4), torch.eye(64)
    mixed, labels = mix_pairs(images, targets, mixup=1.0, cutmix=0, prob=1.0, key=(0,))
    share = labels.diagonal()[:, None, None, None]
    partner = images[torch.arange(64) ^ 1]
    torch.testing.assert_close(mixed, share * images + (1 - share) * partner)
    assert abs(float(share.mean()) - 0.5) < 4 * (1 / 12 / 32) ** 0.5  # Beta(1, 1), 32 draws


def test_with_both_either_is_equally_likely():
    images, targets = batch(2, 8, 8)
    patches = 0
    for step in range(400):
        mixed, _ = mix_pairs(images, targets, mixup=1.0, cutmix=1.0, prob=1.0, key=(1, step))
        patches += set(mixed.unique().tolist()) <= {0.0, 1.0}
    assert abs(patches - 200) < 4 * 10  # four deviations of a binomial


def test_the_probability_is_that_of_a_pair():
    images, targets = batch(400, 2, 2)
    _, labels = mix_pairs(images, targets, mixup=1.0, cutmix=0, prob=0.25, key=(0,))
    mixed = labels.diagonal() < 1
    assert (mixed[::2] == mixed[1::2]).all()
    assert abs(int(mixed[::2].sum()) - 50) < 4 * (200 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("off", [{"mixup": 0, "cutmix": 0, "prob": 1.0}, {"mixup": 0.8, "cutmix": 1.0, "prob": 0.0}])
def test_switched_off_it_is_the_identity(off):
    images, targets = torch.randn(6, 3, 5, 7), torch.eye(6)
    mixed, labels = mix_pairs(images, targets, key=(3,), **off)
    assert torch.equal(mixed, images)
    assert torch.equal(labels, targets)


@pytest.mark.parametrize("shares", [2, 3, 6])
def test_shares_of_a_batch_are_the_uncut_batch(shares):
    images, targets = torch.randn(12, 3, 6, 6), torch.eye(12)
    strengths = {"mixup": 0.4, "cutmix": 1.0, "prob": 0.8, "key": (5, 7)}
    mixed, labels = mix_pairs(images, targets, **strengths)
    each = 12 // shares
    pieces = [
        mix_pairs(images[i * each :][:each], targets[i * each :][:each], share=(i, shares), **strengths)
        for i in range(shares)
    ]
    assert torch.equal(torch.cat([piece[0] for piece in pieces]), mixed)
    assert torch.equal(torch.cat([piece[1] for piece in pieces]), labels)


def test_keys_differ_and_repeat():
    images, targets = torch.randn(8, 3, 6, 6), torch.eye(8)

    def mixed(*key):
        return mix_pairs(images, targets, mixup=0.8, cutmix=1.0, prob=1.0, key=key)[1]

    assert torch.equal(mixed(0, 1), mixed(0, 1))
    assert not torch.equal(mixed(0, 1), mixed(1, 0))
    assert not torch.equal(mixed(0, 1), mixed(0, 2))


def test_the_global_generators_are_left_alone():
    before = torch.get_rng_state()
    mix_pairs(
        torch.randn(2, 3, 4, 4, generator=torch.Generator()), torch.eye(2), mixup=1.0, cutmix=1.0, prob=1.0, key=(0,)
    )
    assert torch.equal(before, torch.get_rng_state())


def test_the_input_is_left_alone():
    images, targets = torch.randn(4, 3, 6, 6), torch.eye(4)
    copies = images.clone(), targets.clone()
    mix_pairs(images, targets, mixup=0.8, cutmix=1.0, prob=1.0, key=(0,))
    assert torch.equal(images, copies[0])
    assert torch.equal(targets, copies[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_type_of_the_images_is_kept(dtype):
    images, targets = torch.randn(4, 3, 6, 6).to(dtype), torch.eye(4)
    mixed, labels = mix_pairs(images, targets, mixup=0.8, cutmix=1.0, prob=1.0, key=(0,))
    assert (mixed.dtype, labels.dtype) == (dtype, torch.float32)


def test_an_odd_batch_is_one_line():
    with pytest.raises(ValueError, match=one_line("even number of images, got 3")):
        mix_pairs(torch.randn(3, 3, 4, 4), torch.eye(3), mixup=1.0, cutmix=0, prob=1.0, key=(0,))
