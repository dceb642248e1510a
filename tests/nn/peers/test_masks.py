"""Masked tokens have no influence, whatever they contain; what cannot be masked exactly is refused."""

import pytest
import torch

from .helpers import BASE, BLOCK, MAPPED, MASKABLE, NO_POSITION, build, tokens


def scattered():
    """Masked patches, a masked prefix token, and an image without masked tokens."""
    mask = torch.ones(3, 16, dtype=torch.bool)
    mask[0, [2, 3, 9, 14, 15]] = False
    mask[1, [0, 5, 6, 7, 8, 9, 10]] = False
    return mask


@pytest.mark.parametrize("fill", [1e3, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [*MASKABLE, BLOCK])
def test_masked_tokens_have_no_influence(name, fill):
    module, mask = build(name), scattered()
    x = tokens(batch=3)
    noisy = x.masked_fill(~mask[..., None], fill).requires_grad_()
    out = module(noisy, BASE, key_mask=mask)
    assert torch.equal(out[mask], module(x, BASE, key_mask=mask)[mask])
    out[mask].square().sum().backward()
    assert not noisy.grad[~mask].any()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", [*MASKABLE, BLOCK])
def test_a_mask_matters_and_an_empty_one_does_not(name):
    module, x, mask = build(name), tokens(batch=3), scattered()
    everything = torch.ones_like(mask)
    torch.testing.assert_close(module(x, BASE, key_mask=everything), module(x, BASE))
    assert not torch.allclose(module(x, BASE, key_mask=mask)[:2], module(x, BASE)[:2], rtol=1e-3)


@pytest.mark.parametrize("name", [*NO_POSITION, "mlla", BLOCK])
def test_padded_images_give_what_they_give_alone(name):
    """Rows of patches added below an image change nothing; positions count from the top left."""
    module, x = build(name), tokens((5, 4))
    mask = torch.arange(21).expand(2, -1) < 1 + 3 * 4
    torch.testing.assert_close(module(x, (5, 4), key_mask=mask)[:, :13], module(x[:, :13], (3, 4)))


def test_agents_without_real_patches_are_left_out():
    """An image of which only one bin is real attends through that one agent."""
    module = build("agent", grid=(4, 4), agents=4)
    x, mask = tokens((4, 4)), torch.zeros(2, 17, dtype=torch.bool)
    mask[:, [0, 1, 2, 5, 6]] = True  # the class token and the four patches of the first bin
    weights = module.weights(x, (4, 4), key_mask=mask)
    torch.testing.assert_close(weights, weights[:, :, :1].expand_as(weights))
    assert not weights[..., ~mask[0]].any()


@pytest.mark.parametrize("name", [*MASKABLE, BLOCK])
def test_an_image_without_real_tokens_stays_finite(name):
    module = build(name, dtype=torch.float32)
    x, mask = tokens(dtype=torch.float32).requires_grad_(), torch.ones(2, 16, dtype=torch.bool)
    mask[1] = False
    out = module(x, BASE, key_mask=mask)
    assert out.isfinite().all()
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("name", MAPPED)
def test_masked_keys_have_no_weight(name):
    module, mask = build(name), scattered()
    x = tokens(batch=3).masked_fill(~mask[..., None], float("nan"))
    weights = module.weights(x, BASE, key_mask=mask)
    assert weights.isfinite().all()
    assert not weights.masked_fill(mask[:, None, None], 0).any()


def test_soft_refuses_masks():
    with pytest.raises(ValueError, match=r"^soft does not support key_mask: [^\n]+$"):
        build("soft")(tokens(batch=3), BASE, key_mask=scattered())
