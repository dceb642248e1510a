"""Alignment: leading vectors equal the graph toolkit's, candidates equal their formulas."""

import pytest
import timm
import torch

import infsa
from infsa.evaluate.alignment import align, align_heads, power_iteration, queries_and_keys
from infsa.graph import AttentionGraph
from infsa.graph.statistics import cosine, spearman
from tests.models.helpers import images, small


def shared_direction(*shape):
    """Random vectors around a common one, as trained tokens are."""
    return torch.randn(shape, dtype=torch.float64) + 1.0


@pytest.mark.parametrize("tied", [True, False])
def test_agreement_equals_the_graph_toolkit(tied):
    q = shared_direction(2, 3, 20, 4)
    k = q if tied else shared_direction(2, 3, 20, 4)
    result = align_heads(q, k)
    a = infsa.linear_weights(q, k)
    for b in range(2):
        for h in range(3):
            graph = AttentionGraph.from_qk(q[b, h], k[b, h], 0.5)
            perron = graph.eigenvector("left")
            assert float(result.cosine["a"][b, h]) == pytest.approx(float(cosine(a[b, h], perron)), abs=1e-9)
            assert float(result.spearman["a"][b, h]) == pytest.approx(float(spearman(a[b, h], perron)), abs=1e-9)
            assert float(result.ratio[b, h]) == pytest.approx(graph.spectral_ratio(), abs=1e-9)
            degree = graph.degree("in")
            assert float(result.cosine["power, 1 step"][b, h]) == pytest.approx(float(cosine(degree, perron)), abs=1e-9)
    assert not result.degenerate.any()


def test_uniform_candidate_is_the_cosine_with_ones():
    q = shared_direction(1, 2, 12, 4)
    result = align_heads(q, q)
    for h in range(2):
        perron = AttentionGraph.from_qk(q[0, h], q[0, h], 0.5).eigenvector()
        expected = perron.sum() / (perron.norm() * 12**0.5)
        assert float(result.cosine["uniform"][0, h]) == pytest.approx(float(expected), abs=1e-9)
    assert (result.spearman["uniform"] == 0).all()  # a constant ranks nothing


def test_short_iterations_approach_the_leading_vector():
    q = shared_direction(3, 4, 30, 4)
    result = align_heads(q, q)
    steps = [result.cosine[f"power, {n} step{'s' * (n > 1)}"] for n in (1, 2, 3)]
    assert (steps[0] <= steps[1] + 1e-12).all()
    assert (steps[1] <= steps[2] + 1e-12).all()


def test_rank_one_operator_is_found_exactly():
    """q = k = one direction with positive lengths: Â = vvᵀ, and a is v after a single step."""
    length = torch.rand(1, 1, 10, 1, dtype=torch.float64) + 0.1
    q = length * torch.randn(3, dtype=torch.float64)
    result = align_heads(q, q)
    assert float(result.cosine["a"]) == pytest.approx(1, abs=1e-12)
    assert float(result.spearman["a"]) == pytest.approx(1, abs=1e-12)
    assert float(result.ratio) == pytest.approx(0, abs=1e-12)


def test_heads_without_a_leading_vector_are_counted():
    q = shared_direction(1, 3, 8, 4)
    k = q.clone()
    q[0, 0], k[0, 0] = 1, -1  # every score negative
    k[0, 1] = 0
    assert align_heads(q, k).degenerate.tolist() == [[True, True, False]]


def test_an_iteration_that_does_not_converge_is_degenerate():
    """Two groups of tokens that only see each other: eigenvalues ±ρ, and the iteration swings."""
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    q = torch.stack([one] * 3 + [other] * 5)[None, None].double()
    k = torch.stack([other] * 3 + [2 * one] * 5)[None, None].double()
    result = align_heads(q, k)
    assert result.degenerate.all()
    assert float(result.ratio) == pytest.approx(1)


def test_power_iteration_equals_repeated_products():
    weights = torch.rand(2, 6, 6, dtype=torch.float64)
    vectors, residual = power_iteration(weights, 50, keep=(2,))
    twice = weights @ (weights @ torch.ones(2, 6, 1, dtype=torch.float64))
    torch.testing.assert_close(vectors[2], (twice / twice.sum(1, keepdim=True)).squeeze(-1))
    assert (residual < 1e-10).all()


@pytest.mark.parametrize("attention", ["infsa_linear", "infsa_pure", "softmax"])
def test_every_layer_of_a_model(attention):
    model = small(attention)
    result = align(model, images())
    assert list(result) == ["blocks.0.attn", "blocks.1.attn"]
    for layer in result.values():
        assert layer.ratio.shape == (2, 4)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_last_layer_equals_the_weights_of_the_model():
    model = small("infsa_linear").double()
    with infsa.evaluate.captured(model) as inputs:
        model(images().double())
    layer = model.blocks[1].attn
    q, k = queries_and_keys(layer, inputs["blocks.1.attn"])
    torch.testing.assert_close(infsa.linear_weights(q, k), layer.weights(inputs["blocks.1.attn"], (4, 4))[:, :, 0])


def test_foreign_models():
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
    assert list(align(vit, images())) == ["blocks.0.attn"]
    with pytest.raises(ValueError, match="Sequential has no attention layer"):
        align(torch.nn.Sequential(torch.nn.Flatten()), images())


def test_gelu_is_refused():
    q = torch.randn(1, 1, 4, 2)
    with pytest.raises(ValueError, match="got 'gelu'"):
        align_heads(q, q, activation="gelu")
