"""Every family: it converts, runs both ways, keeps its weights, and its layers compute the formula."""

import pytest
import torch

import infsa

from .formula import calls_of, expected, joined, projections
from .models import FAMILIES, LINEAR, build, inputs, kept, outputs, settings

CASES = [*((name, "pure") for name in FAMILIES), *((name, "linear") for name in LINEAR)]


def converted(name, variant, model=None, **options):
    model = build(name) if model is None else model
    return infsa.convert(model, variant, exclude=kept(name, variant), **settings(variant), **options)


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_forward_backward_and_weights(name, variant):
    original = build(name)
    model = converted(name, variant, original)
    assert type(model) is type(original)
    call = inputs(name, model)
    answer = outputs(model(**call))
    assert any(not torch.allclose(a, b) for a, b in zip(answer, outputs(original(**call)), strict=True))
    sum(tensor.square().sum() for tensor in answer).backward()
    own = dict(model.named_parameters())
    for parameter_name, parameter in original.named_parameters():
        assert torch.equal(parameter, own[parameter_name])
    reached = [
        p.grad for n, p in own.items() if ("q_proj" in n or "query" in n or "c_attn" in n) and p.grad is not None
    ]
    assert reached
    assert any(gradient.abs().sum() > 0 for gradient in reached)
    assert all(p.grad is None or p.grad.isfinite().all() for p in own.values())


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_layers_compute_the_formula_from_the_original_projections(name, variant):
    original = build(name)
    model = converted(name, variant, original)
    call = inputs(name, model)
    calls = calls_of(model, call)
    names = {layer.name for layer in infsa.plan_conversion(model) if layer.action == "done"}
    own = {layer for layer in names if model.get_submodule(layer).infsa_layer.family == "transformers"}
    assert own == set(calls)
    for layer, (arguments, options, result) in calls.items():
        module = original.get_submodule(layer)
        wanted = expected(name, variant, layer, module, arguments, options, call)
        torch.testing.assert_close(result, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_revert_gives_the_original_back(name):
    original = build(name)
    before = outputs(original(**inputs(name, original)))
    model = infsa.revert(converted(name, "pure", original))
    for a, b in zip(before, outputs(model(**inputs(name, model))), strict=True):
        assert torch.equal(a, b)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert "infsa" not in model.config.to_dict()


@pytest.mark.parametrize("name", ["vit", "bert", "llama", "whisper", "mistral_sliding", "detr"])
def test_weights_on_request_are_those_of_the_output(name):
    """Â v γ is the output, so the weights that a call returns can be checked against the values of its layers."""
    model = converted(name, "pure")
    call = inputs(name, model)
    with torch.no_grad():
        result = model(**call, output_attentions=True)
    for field in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        for weights in getattr(result, field, None) or ():
            assert (weights >= 0).all()
            squares = weights.square().sum((-2, -1)) if field in ("encoder_attentions",) else weights.square().sum(-1)
            assert (squares <= 1 + 1e-9).all()
    layer, hidden = "attentions", {"whisper": "encoder_attentions", "detr": "encoder_attentions"}
    matrix = getattr(result, hidden.get(name, layer))[0]
    calls = calls_of(model, call)
    first = min((n for n in calls if "decoder" not in n or name not in hidden), key=lambda n: (n.count("."), n))
    _, _, v = projections(model.get_submodule(first), *calls[first][:2])
    torch.testing.assert_close(joined(model.get_submodule(first), 0.7 * matrix @ v), calls[first][2])


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_not_left_out(name):
    """Wherever the original answers a request for weights, the converted model does, in the same shapes."""
    original = build(name)
    original.set_attn_implementation("eager")
    call = inputs(name, original)
    with torch.no_grad():
        found, wanted = (shapes(model(**call, output_attentions=True)) for model in (infsa.convert(original), original))
    assert found == wanted
    assert wanted


def shapes(result):
    """The shapes of all weights in an answer, also of the models inside."""
    found = {}
    for key, value in result.items():
        if "attentions" in key:
            found[key] = [tuple(part.shape) for part in value]
        elif hasattr(value, "items"):
            found[key] = shapes(value)
    return found


def test_linear_weights_on_request():
    model = converted("bert", "linear")
    call = inputs("bert", model)
    weights = model(**call, output_attentions=True).attentions[0]
    assert weights.shape == (2, 4, 7, 7)
    assert torch.equal(weights[:, :, :1].expand_as(weights), weights)
    assert not weights[0, :, :, 4:].any()
    with pytest.raises(ValueError, match=r"model.layers.0.self_attn: causal Linear-InfSA has no weights"):
        converted("llama", "linear")(input_ids=call["input_ids"], output_attentions=True)
