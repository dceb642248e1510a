"""Resident views: a function of (seed, epoch, index) alone, equal to the image itself where everything is off."""

import numpy as np
import pytest
import torch

from infsa.data import Shapes, ValTransform
from infsa.data.resident import ResidentViews, keyed_uniforms, load_resident, mixed_bits, view_key
from tests.data.helpers import one_line

OFF = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0, "jitter": (0, 0, 0), "mean": (0, 0, 0), "std": (1, 1, 1)}


@pytest.fixture(scope="module")
def pixels():
    return torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def views(pixels, **options):
    return ResidentViews(pixels, torch.arange(len(pixels)), **options)


def test_the_hash_is_splitmix64():
    """Against whole numbers of any size, the finaliser as published."""

    def finalised(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    values = [0, 1, 2, -1, 2**62, -(2**63), 123456789]
    expected = [finalised(value % 2**64) for value in values]
    assert [value % 2**64 for value in mixed_bits(torch.tensor(values)).tolist()] == expected


def test_the_numbers_are_uniform_and_uncorrelated():
    draws = torch.cat([keyed_uniforms(view_key(0, epoch), torch.arange(2000)) for epoch in range(3)])
    assert draws.shape == (6000, 16)
    assert 0 <= float(draws.min()) < float(draws.max()) < 1
    deviation = 6000**-0.5
    assert ((draws.mean(0) - 0.5).abs() < 4.5 * deviation * 12**-0.5).all()
    correlation = torch.corrcoef(draws.T) - torch.eye(16)
    assert (correlation.abs() < 5 * deviation).all()
    counts = torch.histc(draws, 32, 0, 1)
    expected = draws.numel() / 32
    assert float(((counts - expected) ** 2 / expected).sum()) < 31 + 5 * (2 * 31) ** 0.5  # chi², 31 degrees


def test_seeds_epochs_and_indices_have_numbers_of_their_own():
    keys = [(seed, epoch) for seed in range(40) for epoch in range(40)]
    rows = torch.cat([keyed_uniforms(view_key(*key), torch.arange(5), 2) for key in keys])
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_a_view_depends_on_seed_epoch_and_index_alone(interpolation, pixels):
    options = {"seed": 3, "erase": 0.5, "interpolation": interpolation}
    together, labels = views(pixels, **options).batch(2, torch.arange(20))
    assert labels.tolist() == list(range(20))
    shuffled = torch.tensor([17, 4, 4, 0])
    other, labels = views(pixels, **options).batch(2, shuffled)
    torch.testing.assert_close(other, together[shuffled], rtol=1e-5, atol=1e-5)
    assert labels.tolist() == shuffled.tolist()
    assert not torch.equal(views(pixels, **options).batch(3, shuffled)[0], other)
    assert not torch.equal(views(pixels, **options | {"seed": 4}).batch(2, shuffled)[0], other)


def test_earlier_batches_and_global_generators_do_not_matter(pixels):
    one, other = views(pixels), views(pixels)
    for epoch in range(3):
        one.batch(epoch, torch.arange(7))
    torch.manual_seed(99)
    assert torch.equal(one.batch(5, torch.arange(4))[0], other.batch(5, torch.arange(4))[0])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_everything_off_is_the_image_itself(interpolation, pixels):
    found, _ = views(pixels, **OFF, interpolation=interpolation).batch(0, torch.arange(20))
    torch.testing.assert_close(found, pixels.float() / 255, rtol=0, atol=1e-5)


def test_flip_is_the_mirror_image(pixels):
    found, _ = views(pixels, **OFF | {"flip": 1.0}).batch(0, torch.arange(20))
    torch.testing.assert_close(found, pixels.flip(-1).float() / 255, rtol=0, atol=1e-5)


def test_a_half_of_the_views_is_mirrored(pixels):
    many = views(pixels, **OFF | {"flip": 0.5})
    turned = 0
    for epoch in range(20):
        found, _ = many.batch(epoch, torch.arange(20))
        turned += int(((found - pixels.flip(-1) / 255).abs().amax((1, 2, 3)) < 1e-4).sum())
    assert abs(turned - 200) < 4 * 10


def test_the_colours_are_normalised(pixels):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    found, _ = views(pixels, **OFF | {"mean": mean, "std": std}).batch(0, torch.arange(20))
    expected = (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_crops_lie_inside_the_image(pixels):
    """A horizontal ramp, cropped: columns rise by the crop's width, and no value is invented."""
    ramp = torch.arange(64, dtype=torch.uint8).mul(3).expand(1, 3, 64, 64).contiguous()
    widths = []
    for epoch in range(200):
        found, _ = views(ramp, **OFF | {"scale": (0.2, 0.5), "ratio": (0.8, 1.25)}).batch(epoch, torch.zeros(1).long())
        row = found[0, 0, 32] * 255 / 3
        assert -1e-3 <= float(row.min()) <= float(row.max()) <= 63 + 1e-3
        widths.append(float(row[40] - row[24]) / 16)
    area = torch.tensor(widths).square()
    assert 0.2 * 0.8 - 1e-3 <= float(area.min()) < float(area.max()) <= 0.5 * 1.25 + 1e-3


def test_the_area_is_that_of_the_scale(pixels):
    corner = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    corner[:] = torch.arange(64).mul(3).to(torch.uint8)
    found = [views(corner, **OFF | {"scale": (0.25, 0.25)}).batch(e, torch.zeros(1).long())[0] for e in range(20)]
    for view in found:
        row = view[0, 0, 0] * 255 / 3
        assert float(row[40] - row[24]) / 16 == pytest.approx(0.5, abs=1e-3)


def test_jitter_changes_colours_within_its_strength():
    grey = torch.full((500, 3, 4, 4), 100, dtype=torch.uint8)
    found, _ = views(grey, **OFF | {"jitter": (0.4, 0, 0)}).batch(0, torch.arange(500))
    factors = found[:, 0, 0, 0] * 255 / 100
    assert 0.6 - 1e-4 <= float(factors.min()) < 0.65
    assert 1.35 < float(factors.max()) <= 1.4 + 1e-4
    saturated, _ = views(grey, **OFF | {"jitter": (0, 0.4, 0.4)}).batch(0, torch.arange(500))
    torch.testing.assert_close(saturated, grey / 255, rtol=0, atol=1e-3)  # grey has neither contrast nor colour


def test_an_erased_rectangle_has_the_mean_colour(pixels):
    white = torch.full((300, 3, 16, 16), 255, dtype=torch.uint8)
    found, _ = views(white, **OFF | {"mean": (0.5, 0.5, 0.5), "erase": 0.5}).batch(0, torch.arange(300))
    assert set(found.unique().tolist()) == {0.0, 0.5}
    erased = (found == 0).any(1)
    hit = erased.flatten(1).any(1)
    assert abs(int(hit.sum()) - 150) < 4 * 300**0.5 / 2 + 5  # a rectangle thinner than a pixel may miss all centres
    for mask in erased[hit]:
        assert mask.sum() == mask.any(0).sum() * mask.any(1).sum()
    assert 0.02 * 0.5 < float(erased[hit].float().mean()) < 1 / 3


@pytest.mark.parametrize(
    "options",
    [
        {"jitter": (0.1, 0.1, 0.1, 0.1)}, {"interpolation": "lanczos"}, {"jitter": (0.1,)}, {"jitter": (-1, 0, 0)},
        {"scale": (0.0, 1.0)}, {"scale": (0.5, 2.0)}, {"ratio": (0.0, 1.0)}, {"flip": 1.5}, {"erase": -1},
        {"jitter": (0, 0, 0, 0, 5)},
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_one_line(options, pixels):
    with pytest.raises(ValueError, match=one_line(next(iter(options)) + "|resampled|hue")):
        views(pixels, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_keeps_pixels_and_labels(workers):
    shapes = Shapes(size=32, length=10, classes=3)
    pixels, labels = load_resident(shapes, 32, workers)
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (10, 3, 32, 32))
    for index in range(10):
        assert np.array_equal(pixels[index].permute(1, 2, 0).numpy(), np.asarray(shapes[index].image))
        assert labels[index] == shapes[index].label


def test_loading_resizes_as_validation_does():
    shapes = Shapes(size=48, length=3, classes=3)
    pixels, _ = load_resident(shapes, 32)
    plain = ValTransform(32, mean=(0, 0, 0), std=(1, 1, 1))
    for index in range(3):
        expected, _ = plain(shapes[index].image, shapes[index].boxes)
        torch.testing.assert_close(pixels[index] / 255, expected, rtol=0, atol=1e-6)
