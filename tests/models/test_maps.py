"""Attention maps against naive computations from dense weights."""

import networkx as nx
import numpy as np
import pytest
import torch

from infsa.models.maps import METHODS

from .helpers import NAMES, WITH_MAP, images, small


def dense_layers(model, x):
    """Mean-head weights of every block as dense N × N matrices."""
    tokens, grid = model.embed(x)
    layers = []
    for block in model.blocks:
        weights = block.attn.weights(block.norm1(tokens), grid, model.num_prefix_tokens).mean(1)
        layers.append(weights.expand(-1, tokens.shape[1], -1).detach())
        tokens = block(tokens, grid, model.num_prefix_tokens)
    return layers


def patch_map(scores, prefix, grid):
    patches = scores[..., prefix:].clamp_min(0)
    return (patches / patches.sum(-1, keepdim=True)).unflatten(-1, grid)


@pytest.mark.parametrize("attention", WITH_MAP)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("class_token", [True, False])
def test_maps_are_distributions_and_not_constant(attention, method, class_token):
    model = small(attention, class_token=class_token, reg_tokens=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    maps = model.attention_maps(images(height=24, width=40), method=method)
    assert maps.shape == (2, 3, 5)
    assert not maps.requires_grad
    assert (maps >= 0).all()
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))
    if attention != "mean" or method in ("random", "gradient"):
        assert (maps.flatten(1).std(1) > 0).all()


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear", "agent"])
@pytest.mark.parametrize("class_token", [True, False])
def test_last_is_the_papers_rule(attention, class_token):
    model, x = small(attention, class_token=class_token).double(), images().double()
    prefix = int(class_token)
    weights = dense_layers(model, x)[-1]
    row = weights[:, 0] if class_token else weights[:, prefix:].mean(1)
    torch.testing.assert_close(model.attention_maps(x).double(), patch_map(row, prefix, (4, 4)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear"])
def test_rollout_multiplies_layers(attention):
    model, x = small(attention, depth=3).double(), images().double()
    product = torch.eye(17, dtype=torch.float64)
    for weights in dense_layers(model, x):
        stochastic = weights / weights.sum(-1, keepdim=True)
        product = (stochastic + torch.eye(17, dtype=torch.float64)) / 2 @ product
    expected = patch_map(product[:, 0], 1, (4, 4))
    torch.testing.assert_close(model.attention_maps(x, method="rollout").double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear"])
def test_centralities_equal_networkx(attention):
    model, x = small(attention).double(), images(batch=1).double()
    matrix = dense_layers(model, x)[-1][0].numpy()
    graph = nx.from_numpy_array(matrix, create_using=nx.DiGraph)
    oracles = {
        "degree": dict(graph.in_degree(weight="weight")),
        "katz": nx.katz_centrality_numpy(graph, alpha=0.7, beta=1.0, normalized=False, weight="weight"),
        "tokenrank": nx.pagerank(graph, alpha=0.99, tol=1e-14, max_iter=10_000, weight="weight"),
    }
    for method, oracle in oracles.items():
        scores = torch.from_numpy(np.array([oracle[i] for i in range(17)]))
        actual = model.attention_maps(x, method=method)[0].double()
        torch.testing.assert_close(actual, patch_map(scores, 1, (4, 4)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("attention", "readout"), [("softmax", "last"), ("infsa_pure", "last"), ("infsa_pure", "series")]
)
def test_gradient_map_equals_explicit_attention(attention, readout):
    """Run the model once more with explicit weights, and take their gradients."""
    model, x = small(attention, readout=readout).double(), images(batch=1).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens, grid = model.embed(x)
    explicit, series = [], 0
    for layer, block in enumerate(model.blocks, start=1):
        normed = block.norm1(tokens)
        weights = block.attn.weights(normed, grid, 1)
        explicit.append(weights)
        joined = (weights @ block.attn.values(normed)).transpose(1, 2).flatten(2)
        tokens = block.add(tokens, block.attn.proj(joined))
        series = series + model.gamma**layer * block.attn.proj(joined / model.gamma)
    logits = model.forward_head(model.norm(tokens if readout == "last" else series))
    target = logits.argmax(-1)
    row = torch.zeros(1, 17, dtype=torch.float64)
    row[:, 0] = 1
    gradients = torch.autograd.grad(logits[0, target].sum(), explicit)
    for weights, gradient in reversed(list(zip(explicit, gradients, strict=True))):
        relevance = (weights * gradient).clamp_min(0).mean(1)
        row = row + (row.unsqueeze(1) @ relevance).squeeze(1)
    expected = patch_map(row.detach(), 1, (4, 4))
    actual = model.attention_maps(x, method="gradient").double()
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_layer_and_head_select():
    model, x = small("softmax", depth=3), images()
    assert torch.equal(model.attention_maps(x, layer=2), model.attention_maps(x))
    assert not torch.equal(model.attention_maps(x, layer=0), model.attention_maps(x))
    heads = torch.stack([model.attention_maps(x, head=h) for h in range(4)])
    assert (heads[0] - heads[1]).abs().max() > 0


def test_maps_leave_the_model_as_it_was():
    model = small("infsa_pure").train()
    model.attention_maps(images(), method="gradient")
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_gradient_map_depends_on_the_class():
    model = small("infsa_pure")
    first, second = (model.attention_maps(images(), method="gradient", target=t) for t in (0, 1))
    assert not torch.equal(first, second)


def test_gradient_map_works_where_gradients_are_off():
    model = small("infsa_pure")
    expected = model.attention_maps(images(), method="gradient")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.blocks[0].train()
    model.set_grad_checkpointing()
    with torch.inference_mode():
        assert torch.equal(model.attention_maps(images(), method="gradient"), expected)
    assert model.blocks[0].training
    assert not model.blocks[1].training
    assert model.grad_checkpointing
    with pytest.raises(ValueError, match="num_classes=0"):
        small(num_classes=0).attention_maps(images(), method="gradient")
    with pytest.raises(ValueError, match="queries=3"):
        small(attention_options={"queries": 3}).attention_maps(images(), method="gradient")


def test_random_is_seeded():
    model = small()
    assert torch.equal(model.attention_maps(images(), method="random"), model.attention_maps(images(), method="random"))
    assert not torch.equal(
        model.attention_maps(images(), method="random"), model.attention_maps(images(), method="random", seed=1)
    )


def test_all_zero_maps_become_uniform_and_are_counted():
    model = small("infsa_linear")
    torch.nn.init.zeros_(model.blocks[-1].attn.q.weight)
    torch.nn.init.zeros_(model.blocks[-1].attn.q.bias)
    with pytest.warns(UserWarning, match="2 of 2 attention maps were all zero"):
        maps = model.attention_maps(images())
    assert torch.equal(maps, torch.full((2, 4, 4), 1 / 16))


@pytest.mark.parametrize("attention", sorted(set(NAMES) - set(WITH_MAP)))
def test_mechanisms_without_maps_say_why(attention):
    with pytest.raises(ValueError, match=r"^no attention map: [^\n]+$"):
        small(attention).attention_maps(images())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "got 'magic'"),
        ({"layer": 2}, "got 2"),
        ({"head": 4}, "got 4"),
        ({"target": 1}, "method='last'"),
        ({"target": 9, "method": "gradient"}, "got 9"),
        ({"head": True}, "got True"),
    ],
)
def test_wrong_use_is_one_line(options, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        small().attention_maps(images(), **options)
    assert message in str(error.value)


@pytest.mark.parametrize("attention", ["infsa_pure", "infsa_linear"])
@pytest.mark.parametrize("method", ["last", "rollout", "tokenrank", "katz", "gradient", "degree"])
def test_gelu_maps_are_non_negative_and_sum_to_one(attention, method):
    maps = small(attention, activation="gelu").attention_maps(images(), method=method)
    assert (maps >= 0).all()
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))


@pytest.mark.parametrize("attention", ["infsa_pure", "infsa_linear"])
def test_gelu_map_averages_heads_then_clamps_then_normalises(attention):
    model = small(attention, activation="gelu").double()
    x, grid = model.embed(images().double())
    x = model.blocks[0](x, grid, 1)
    weights = model.blocks[1].attn.weights(model.blocks[1].norm1(x), grid, 1)
    assert (weights < 0).any()
    row = weights.mean(1)[:, 0, 1:].clamp_min(0)
    expected = (row / row.sum(-1, keepdim=True)).unflatten(-1, grid)
    torch.testing.assert_close(model.attention_maps(images().double()), expected)
