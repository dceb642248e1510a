"""Shortcuts give the logits of the plain forward pass."""

import pytest
import torch

from infsa.evaluate.shortcuts import can_shorten, is_plain, logits_without, token_logits
from tests.models.helpers import NAMES, images, small


@pytest.mark.parametrize("attention", NAMES)
@pytest.mark.parametrize("options", [{}, {"class_token": False}, {"reg_tokens": 2, "global_pool": "avg"}])
def test_logits_of_tokens(attention, options):
    model, batch = small(attention, **options), images()
    with torch.inference_mode():
        assert is_plain(model)
        torch.testing.assert_close(token_logits(model, *model.embed(batch)), model(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{"reg_tokens": 1}, {"class_token": False}])
def test_keeping_every_patch_changes_nothing(options):
    model, batch = small("infsa_pure", **options), images()
    every = torch.stack([torch.randperm(16), torch.randperm(16)])
    with torch.inference_mode():
        found = logits_without(model, model.embed(batch)[0], every)
        torch.testing.assert_close(found, model(batch), atol=1e-5, rtol=1e-5)


def test_other_models_run_as_they_are():
    assert not is_plain(torch.nn.Identity())
    assert not is_plain(small("infsa_linear", readout="series"))
    assert not is_plain(small("mlla", mlla_block=True))
    assert not can_shorten(small("flatten"))
