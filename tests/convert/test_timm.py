"""timm's architectures: converted equals the formula inside the original code, keeps weights, reverts, stays apart."""

import copy
from unittest.mock import patch

import pytest
import torch
from timm.models import cait, davit, levit, tiny_vit

import infsa
from infsa.conversion import converted_layers
from tests.ops import plain

from .models import build_from, randn, tokens
from .oracle import Formula
from .timm_models import ARCHITECTURES, BIASED, CASES

NAMES = pytest.mark.parametrize("name", ARCHITECTURES)
EACH = pytest.mark.parametrize(("name", "variant"), CASES)


def build(name, dtype=torch.float64):
    return build_from(ARCHITECTURES[name], dtype)


def output(model, inputs):
    result = model(*inputs)
    return result[0] if isinstance(result, tuple) else result


class AnyLayout(Formula):
    """The formula for queries of any leading dimensions, and for Linear-InfSA where code multiplies by itself."""

    def __enter__(self):
        super().__enter__()
        product = torch.Tensor.__matmul__

        def remember(a, b):
            self.factors = (a, b)
            return product(a, b)

        self.patches.enter_context(patch.object(torch.Tensor, "__matmul__", remember))
        return self

    def attend(self, q, k, v, attn_mask=None, **rest):
        lead = q.shape[:-2]
        q, k, v = (y.expand(*lead, *y.shape[-2:]) for y in (q, k, v))
        if len(lead) != 2:
            q, k, v = (y.flatten(0, -3).unsqueeze(1) for y in (q, k, v))
            attn_mask = None if attn_mask is None else attn_mask.unsqueeze(1)
        z = super().attend(q, k, v, attn_mask=attn_mask, **rest)
        return z.reshape(*lead, *z.shape[-2:])

    def normalise(self, scores):
        if self.variant == "pure" and self.norm == "frobenius":
            return super().normalise(scores)
        self.calls += 1
        if self.norm == "row":  # nothing is masked here, so all keys are visible
            r = scores.relu()
            return self.gamma * r / (r.norm(dim=-1, keepdim=True) * scores.shape[-1] ** 0.5 + 1e-6)
        q, k = self.factors[0], self.factors[1].mT
        four = [y if y.dim() == 4 else y.unsqueeze(1) for y in (q, k)]
        weights, _ = plain.linear_rows(*four, self.activation, None, None, 1, 1, 1e-6)
        return self.gamma * weights.expand(-1, -1, four[0].shape[2], -1).view(scores.shape)


@EACH
def test_converted_equals_the_formula_inside_the_original_code(name, variant):
    model, inputs, layers = build(name)
    converted = infsa.convert(model, variant, gamma=0.6)
    before = output(model, inputs)
    with AnyLayout(variant, 0.6) as formula:
        expected = output(model, inputs)
    assert formula.calls == layers == len(converted_layers(converted))
    size = expected.abs().max().item()
    torch.testing.assert_close(output(converted, inputs), expected, rtol=1e-9, atol=1e-9 * size)
    assert (before - expected).abs().max() > 1e-4 * size, "softmax would pass this test too"


@pytest.mark.parametrize("name", ["levit", "hiera", "twins, global", "mvitv2", "maxvit", "sam"])
def test_the_row_norm(name):
    model, inputs, layers = build(name)
    converted = infsa.convert(model, norm="row")
    with AnyLayout(norm="row") as formula:
        expected = output(model, inputs)
    assert formula.calls == layers
    size = expected.abs().max().item()
    torch.testing.assert_close(output(converted, inputs), expected, rtol=1e-9, atol=1e-9 * size)


@NAMES
def test_revert_restores_the_original(name):
    model, inputs, layers = build(name)
    expected, state = output(model, inputs), copy.deepcopy(model.state_dict())
    classes = [type(module) for module in model.modules()]
    assert infsa.convert(model, inplace=True) is model
    assert list(model.state_dict()) == list(state)
    assert len(converted_layers(model)) == layers
    infsa.revert(model)
    assert [type(module) for module in model.modules()] == classes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(output(model, inputs), expected)


@EACH
def test_a_step_in_bfloat16(name, variant):
    """Under autocast a converted model trains, γ included, and a copy gives what it gives."""
    model, inputs, _ = build(name, torch.float32)
    converted = infsa.convert(model, variant, learn_gamma=True)
    twin = copy.deepcopy(converted)
    assert torch.equal(output(twin, inputs), output(converted, inputs))
    converted.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = output(converted, inputs).float().square().mean()
    loss.backward()
    for layer in converted_layers(converted).values():
        assert layer.decay.logit.grad.abs().max() > 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in converted.parameters())
    torch.optim.SGD(converted.parameters(), 1e-3).step()


@EACH
def test_items_of_a_batch_stay_apart(name, variant):
    if name == "gcvit, global":
        pytest.skip("windows of several images share the queries of each")
    model, inputs, _ = build(name)
    converted = infsa.convert(model, variant)
    x, *rest = inputs
    other = x.clone()
    other[1:] = 3 * randn(*x[1:].shape)
    first, second = output(converted, (x, *rest)), output(converted, (other, *rest))
    torch.testing.assert_close(first[0], second[0], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(first[1], second[1])


@NAMES
def test_a_plan_knows_each_layer_without_its_weights(name):
    model, _, layers = build(name)
    hollow = copy.deepcopy(model).to("meta")
    plan = infsa.plan_conversion(hollow)
    assert len(plan.layers) == len(plan.chosen()) == layers
    for layer in plan:
        assert layer.family == "timm"
        assert layer.heads > 0
        assert layer.width > 0
        assert layer.head_width > 0
        assert ("relative position" in layer.biases) == (name in BIASED)
    converted = infsa.convert(hollow, learn_gamma=True)
    assert all(p.is_meta for p in converted.parameters())


@pytest.mark.parametrize("name", BIASED)
def test_linear_refuses_biases_on_the_scores(name):
    model, _, layers = build(name)
    with pytest.raises(ValueError, match="relative position bias"):
        infsa.convert(model, "linear")
    assert len(infsa.plan_conversion(model, "linear").chosen("refuse")) == layers


def test_windows_and_units_stay_apart():
    """A token changes the norm of its own window, and nothing in another."""
    for name, x in (("hiera", randn(1, 32, 16)), ("nest", randn(1, 3, 5, 16)), ("twins, local", randn(1, 64, 16))):
        model, _, _ = build(name)
        layer = next(iter(converted_layers(infsa.convert(model)).values()))
        size = ((8, 8),) if "twins" in name else ()
        other = x.clone()
        other.view(-1, 16)[0] += 2
        changed = (layer(other, *size) - layer(x, *size)).abs().amax(-1) > 1e-12
        assert changed.any()
        assert changed.sum() <= changed.numel() // 2


def test_a_model_that_has_run_can_be_copied():
    """LeViT and TinyViT keep biases between calls, with the graph of their gradients, which no copy may hold."""
    for layer, count in ((tiny_vit.Attention(16, 4, 2, 1, (3, 3)), 9), (levit.Attention(16, 4, 2, resolution=3), 9)):
        original = layer.double()
        original.eval()
        x = tokens(count)[0]
        expected = original(x)
        converted = infsa.convert(original)
        for _ in range(2):
            converted(x).sum().backward()
        assert torch.equal(original(x), expected)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (cait.TalkingHeadAttn(16, 2), "talking heads"),
        (davit.ChannelAttention(16, 2), "pairs of channels"),
    ],
)
def test_others_are_refused_by_name(layer, reason):
    with pytest.raises(ValueError, match=rf"0 \(.*{type(layer).__name__}\): .*{reason}"):
        infsa.convert(torch.nn.Sequential(layer, cait.ClassAttn(16, 2)))
    assert list(converted_layers(infsa.convert(torch.nn.Sequential(layer, cait.ClassAttn(16, 2)), exclude="0"))) == [
        "1"
    ]


@pytest.mark.parametrize("name", ["efficientformer", "twins, global"])
def test_a_compiled_layer_runs(name):
    torch._dynamo.reset()
    model, inputs, _ = build(name, torch.float32)
    converted = infsa.convert(model)
    compiled = torch.compile(converted, backend="eager")
    torch.testing.assert_close(compiled(*inputs), converted(*inputs), rtol=1e-4, atol=1e-5)
