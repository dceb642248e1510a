"""Maps of single images: any size, the prediction beside them, refusals before memory is gone."""

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.evaluate import explain, input_size, maps_of
from infsa.evaluate.maps import View
from tests.models.helpers import images, small


def photo(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def test_sizes_are_whole_patches_of_about_the_right_area():
    for size in ((4000, 3000), (64, 64), (3, 900), (1, 1), (1000, 10)):
        width, height = input_size(size, (8, 16), side=64)
        assert width % 16 == 0
        assert height % 8 == 0
        assert min(width, height) >= 8
    assert input_size((4000, 3000), (8, 8), side=64) == (72, 56)
    assert input_size((4000, 3001), (8, 8)) == (4000, 3000)
    assert input_size((64, 64), (8, 8), side=64) == (64, 64)


def test_explanation_is_the_models_map_and_prediction():
    model, image = small("infsa_pure"), photo(32, 32)
    found = explain(model, image)
    assert found.map.shape == (4, 4)
    assert found.map.sum() == pytest.approx(1, abs=1e-5)
    assert len(found.predictions) == 5
    assert sum(value for _, value in found.predictions) == pytest.approx(1, abs=1e-5)
    assert [value for _, value in found.predictions] == sorted((v for _, v in found.predictions), reverse=True)


@pytest.mark.parametrize("side", ["model", "native", 48])
def test_any_size(side):
    found = explain(small("infsa_linear"), photo(131, 57), side=side)
    assert found.map.shape == {"model": (3, 6), "native": (7, 16), 48: (4, 9)}[side]
    assert found.size == (found.map.shape[1] * 8, found.map.shape[0] * 8)


def test_a_crop_is_what_accuracy_is_measured_on():
    model, image = small("infsa_linear"), photo(131, 57)
    pixels, seen = View(model, "crop")(image)
    found = explain(model, image, side="crop")
    assert found.picture.size == seen.size == (51, 51)
    with torch.no_grad():
        assert found.map == pytest.approx(model.attention_maps(pixels[None])[0].numpy(), abs=1e-6)
    assert explain(model, image).picture is image


def test_another_model_is_told_what_is_taken():
    import timm

    vit = timm.create_model("vit_tiny_patch16_224", depth=1)
    hint = "takes an InfViT, got VisionTransformer; infsa.conversion.as_infvit makes one of a converted plain ViT"
    for call in (lambda model: explain(model, photo(9, 9)), infsa.models.fast):
        with pytest.raises(TypeError, match=hint):
            call(vit)
        with pytest.raises(TypeError, match=r"takes an InfViT, got Linear$"):
            call(torch.nn.Linear(1, 1))


def test_a_map_too_large_is_refused_before_it_is_made():
    with pytest.raises(ValueError, match="GiB"):
        explain(small("softmax"), photo(2000, 1500), side="native")
    fixed = small("softmax", dynamic_img_size=False)
    assert explain(fixed, photo(100, 40)).map.shape == (4, 4)
    with pytest.raises(ValueError, match=r"only images of \(32, 32\)"):
        explain(fixed, photo(100, 40), side="native")
    with pytest.raises(ValueError, match="got 'huge'"):
        explain(small(), photo(9, 9), side="huge")


def test_random_maps_depend_on_seed_and_name_alone():
    model, batch = small(), images(3)
    maps = maps_of(model, batch, "random", ["a", "b", "c"])
    assert torch.equal(maps_of(model, batch[1:2], "random", ["b"])[0], maps[1])
    assert not torch.equal(maps_of(model, batch[1:2], "random", ["b"], seed=1)[0], maps[1])
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(3))
    with pytest.raises(ValueError, match="got 'gaze'"):
        maps_of(model, batch, "gaze", ["a", "b", "c"])
