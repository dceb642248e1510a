"""One token loop: its hooks see every block, and what the classifier does not read changes no logits."""

import pytest
import torch

from infsa.models.maps import METHODS, Reading, logits_and_maps

from .helpers import NAMES, images, small


@pytest.mark.parametrize("attention", NAMES)
@pytest.mark.parametrize("options", [{}, {"class_token": False}, {"reg_tokens": 2, "global_pool": "avg"}])
def test_classifying_tokens_gives_the_models_logits(attention, options):
    model, batch = small(attention, **options), images()
    with torch.inference_mode():
        torch.testing.assert_close(model.classify(*model.embed(batch)), model(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"attention": "infsa_linear", "readout": "series"}, {"attention": "mlla", "mlla_block": True}]
)
def test_other_read_outs_and_blocks_are_classified_too(options):
    model, batch = small(**options), images()
    with torch.inference_mode():
        torch.testing.assert_close(model.classify(*model.embed(batch)), model(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_step_of_ones_own_sees_every_block_and_what_leaves_the_last(pool):
    model, batch = small("infsa_pure", depth=3, global_pool=pool), images()
    mask = torch.ones(2, *model.grid_of(batch), dtype=torch.bool)
    mask[1, 2:] = False
    seen = []

    def step(index, block, x, context, leaving):
        seen.append((index, block is model.blocks[index], x.shape[1], leaving))
        attended = block.attend(x, *context)
        return block.add(x[:, :leaving], attended[:, :leaving])

    with torch.inference_mode():
        logits = model.classify(*model.embed(batch), mask, step)
        torch.testing.assert_close(logits, model(batch, mask), atol=1e-5, rtol=1e-5)
    assert seen == [(0, True, 17, None), (1, True, 17, None), (2, True, 17, 1 if pool == "token" else None)]


def test_visitors_see_the_tokens_around_each_block():
    model, batch = small("softmax", depth=3), images()
    seen = []
    with torch.inference_mode():
        x, grid = model.embed(batch)
        last = model.run_blocks(x, grid, visit=lambda *tokens: seen.append(tokens), depth=2)
    assert [index for index, _, _ in seen] == [0, 1]
    assert seen[0][1] is x
    assert seen[0][2] is seen[1][1]
    assert seen[1][2] is last


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("softmax", {}),
        ("infsa_linear", {}),
        ("infsa_pure", {"readout": "series"}),
        ("infsa_linear", {"readout": "series", "learn_gamma": True}),
    ],
    ids=str,
)
def test_logits_and_maps_come_from_one_pass(attention, options, method):
    model, batch = small(attention, depth=3, **options), images()
    reading = Reading(method, layer=1)
    expected = model.attention_maps(batch, method=method, layer=1)
    passes = []
    model.blocks[0].mlp.register_forward_hook(lambda *_: passes.append(1))
    logits, maps = logits_and_maps(model, batch, reading)
    assert len(passes) == 1
    assert not logits.requires_grad
    assert torch.equal(maps, expected)
    torch.testing.assert_close(logits, model(batch))


def test_only_the_layer_that_is_read_computes_weights(monkeypatch):
    model, batch = small("softmax", depth=3), images()
    read = []
    for index, block in enumerate(model.blocks):
        own = block.attn.weights
        monkeypatch.setattr(block.attn, "weights", lambda *a, own=own, index=index: read.append(index) or own(*a))
    model.attention_maps(batch, layer=1)
    assert read == [1]
    model.attention_maps(batch, layer=1, method="rollout")
    assert read == [1, 1, 0], "rollout reads layer after layer, from the last"


@pytest.mark.parametrize("enable", [False, True], ids=["plain", "checkpointed"])
def test_performer_draws_features_once_per_training_pass(enable):
    model = small("performer", attention_options={"redraw_every": 1}).train()
    model.set_grad_checkpointing(enable)
    attention = model.blocks[0].attn
    first = attention.draws
    for step in range(3):
        model(images()).sum().backward()
        assert attention.draws == first + step
    model.eval()(images())
    assert attention.draws == first + 2


@pytest.mark.parametrize("options", [{"reg_tokens": 1}, {"class_token": False}])
def test_patches_carry_their_positions_wherever_they_stand(options):
    model, batch = small("infsa_pure", **options), images()
    with torch.inference_mode():
        tokens, _ = model.embed(batch)
        prefix = model.num_prefix_tokens
        order = torch.cat([torch.arange(prefix), prefix + torch.randperm(16)])
        torch.testing.assert_close(model.classify(tokens[:, order], (1, 16)), model(batch), atol=1e-5, rtol=1e-5)
