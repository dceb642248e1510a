"""Transforms: boxes follow the image, and randomness follows (seed, epoch, index)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from infsa.data import Shapes, TrainTransform, ValTransform, Views, collate, keyed_generator, transform_for
from infsa.data.boxes import area, as_boxes
from infsa.data.transforms import jittered, normalised, normalised_values

PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bilinear"}


@st.composite
def painted_images(draw):
    """A black image with one white box, and the box."""
    width, height = draw(st.integers(20, 90)), draw(st.integers(20, 90))
    x0, y0 = draw(st.integers(0, width - 8)), draw(st.integers(0, height - 8))
    x1, y1 = draw(st.integers(x0 + 6, width)), draw(st.integers(y0 + 6, height))
    image = Image.new("RGB", (width, height))
    image.paste((255, 255, 255), (x0, y0, x1, y1))
    return image, as_boxes([x0, y0, x1, y1])


def assert_box_follows(tensor, boxes, pixel):
    white = (tensor[0] > 0.5).numpy()
    if not len(boxes) or min(boxes[0, 2:] - boxes[0, :2]) < 2 * pixel:
        return  # thinner than what the resampling resolves
    columns, rows = np.flatnonzero(white.any(0)), np.flatnonzero(white.any(1))
    found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert np.abs(boxes[0] - found).max() <= pixel


@given(painted_images(), st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_the_box_follows_the_training_view(painted, index):
    tensor, boxes = TrainTransform(48, jitter=0.0, scale=(0.2, 1.0), **PLAIN)(*painted, epoch=1, index=index)
    assert tensor.shape == (3, 48, 48)
    assert_box_follows(tensor, boxes, pixel=1.0)


@given(painted_images(), st.sampled_from([0.8, 0.875, 1.0]))
@settings(max_examples=100, deadline=None)
def test_the_box_follows_the_validation_view(painted, crop_pct):
    tensor, boxes = ValTransform(48, crop_pct, **PLAIN)(*painted)
    assert tensor.shape == (3, 48, 48)
    assert_box_follows(tensor, boxes, pixel=1.0)


def test_validation_agrees_with_timm():
    from timm.data import create_transform

    image = Shapes(size=96)[0].image.resize((120, 96))
    config = {"input_size": (3, 64, 64), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.3), "interpolation": "bicubic"}
    ours, _ = transform_for(config | {"crop_pct": 0.875}, train=False)(image, as_boxes([]))
    theirs = create_transform(**config, crop_pct=0.875, is_training=False)(image)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_jitter_and_pixels_are_torchvisions():
    """The quick ways to blend and to normalise give the bits of the functions they stand for."""
    from torchvision.transforms import functional as F

    image = Shapes()[2].image
    for strengths in np.eye(4)[:3] * 0.4:
        rng = keyed_generator("jitter")
        amount = [rng.uniform(-strength, strength) for strength in strengths][int(strengths.argmax())]
        adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation)[int(strengths.argmax())]
        changed = jittered(keyed_generator("jitter"), image, strengths)
        assert changed.tobytes() == adjust(image, 1 + amount).tobytes()
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    assert torch.equal(normalised(image, normalised_values(mean, std)), F.normalize(F.to_tensor(image), mean, std))


def views(**options):
    return Views(Shapes(length=12), TrainTransform(32, jitter=(0.4, 0.4, 0.4, 0.1), erase=0.5, **options))


def test_views_follow_seed_epoch_and_index_only():
    first, again = views(), views()
    np.random.default_rng(0)
    torch.manual_seed(1)
    images = [first[i].image for i in range(12)]
    torch.manual_seed(2)
    assert all(torch.equal(again[i].image, images[i]) for i in reversed(range(12)))
    assert not torch.equal(views(seed=1)[3].image, images[3])
    first.set_epoch(1)
    assert not any(torch.equal(first[i].image, images[i]) for i in range(12))
    assert first[-1].name == first[11].name
    assert torch.equal(first[-1].image, first[11].image)


def test_workers_draw_the_same_views_and_follow_the_epoch():
    drawn = views()
    loader = DataLoader(drawn, batch_size=4, num_workers=2, persistent_workers=True, collate_fn=collate)
    for epoch in (0, 3):
        drawn.set_epoch(epoch)
        batches = list(loader)
        assert [name for batch in batches for name in batch.names] == [f"shapes/train/{i}" for i in range(12)]
        assert torch.equal(torch.cat([batch.images for batch in batches]), torch.stack([v.image for v in drawn]))
        assert torch.cat([batch.labels for batch in batches]).tolist() == [i % 10 for i in range(12)]


def test_erasing_and_jitter_leave_boxes_alone():
    sample = Shapes()[0]
    bare = TrainTransform(64, jitter=0.0)(sample.image, sample.boxes, index=5)
    full = TrainTransform(64, jitter=0.4, erase=1.0)(sample.image, sample.boxes, index=5)
    assert np.array_equal(bare[1], full[1])
    assert not torch.equal(bare[0], full[0])


def test_boxes_outside_the_view_are_dropped():
    image, boxes = Image.new("RGB", (100, 20)), as_boxes([[0, 0, 10, 20], [45, 0, 55, 20]])
    _, kept = ValTransform(20)(image, boxes)
    assert kept.tolist() == [[5, 0, 15, 20]]
    assert (area(kept) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size .* got 0"),
        ({"scale": (0.5, 2)}, r"scale .* got \(0.5, 2\)"),
        ({"ratio": (2, 1)}, "ratio .*"),
        ({"flip": 1.5}, "flip .* got 1.5"),
        ({"jitter": (0.1, 0.1)}, "jitter .* got"),
        ({"interpolation": "cubic"}, "interpolation .* got 'cubic'"),
        ({"seed": -1}, "seed .* got -1"),
        ({"std": (1, 0, 1)}, "std above 0, got"),
        ({"mean": (1,)}, "three numbers"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TrainTransform(**{"size": 32, **options})
