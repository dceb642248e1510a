"""Every family: converted equals the formula, trains, keeps its weights, reverts, and survives saving."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import infsa
from infsa.conversion import converted_layers

from .models import CASES, FAMILIES, PURE_ONLY, UNKNOWN, build, settings
from .oracle import Formula


def output(model, inputs):
    result = model(*inputs)
    return result[0] if isinstance(result, tuple) else result


def close(actual, expected):
    """Equal but for the order of float64 sums."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9 * expected.detach().abs().max().item())


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_converted_equals_the_formula_on_the_original_projections(name, variant):
    model, inputs, layers = build(name)
    converted = infsa.convert(model, variant, gamma=0.6, **settings(name, variant))
    with Formula(variant, 0.6, norm="row" if name in UNKNOWN else "frobenius") as formula:
        expected = output(model, inputs)
    assert formula.calls == layers == len(converted_layers(converted))
    close(output(converted, inputs), expected)
    difference = (output(model, inputs) - expected).abs().max()
    assert difference > 1e-4 * expected.abs().max(), "softmax would pass this test too"


@pytest.mark.parametrize("name", FAMILIES)
def test_either_norm_on_request(name):
    model, inputs, layers = build(name)
    for norm in ("frobenius", "row"):
        plan = infsa.plan_conversion(model, norm=norm)
        assert {layer.norm for layer in plan} == {norm}
        converted = infsa.convert(model, norm=norm)
        with Formula(norm=norm) as formula:
            expected = output(model, inputs)
        assert formula.calls == layers
        close(output(converted, inputs), expected)
        assert all(layer.infsa_settings.norm == norm for layer in converted_layers(converted).values())


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_weights_stay_and_learn(name, variant):
    model, inputs, _ = build(name)
    converted = infsa.convert(model, variant, learn_gamma=True, **settings(name, variant))
    before, after = model.state_dict(), converted.state_dict()
    assert {key for key in after if key not in before} == {
        f"{key}.decay.logit".lstrip(".") for key in converted_layers(converted)
    }
    for key, value in before.items():
        assert torch.equal(value, after[key])
    assert isinstance(converted, type(model))
    output(converted, inputs).square().sum().backward()
    for layer in converted_layers(converted).values():
        assert layer.decay.logit.grad.abs().min() > 0
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
        assert any(
            p.grad is not None and p.grad.abs().max() > 0 for n, p in layer.named_parameters() if "decay" not in n
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_revert_restores_the_original(name):
    model, inputs, _ = build(name)
    expected = output(model, inputs)
    classes = [type(module) for module in model.modules()]
    state = dict(model.state_dict())
    converted = infsa.convert(model, inplace=True, learn_gamma=True)
    assert converted is model
    assert not torch.allclose(output(model, inputs), expected)
    assert infsa.revert(model) is model
    assert [type(module) for module in model.modules()] == classes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(output(model, inputs), expected)
    assert not any(hasattr(module, "infsa_layer") for module in model.modules())


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_saved_and_reloaded_agree(name, variant, tmp_path):
    model, inputs, _ = build(name)
    converted = infsa.convert(model, variant, learn_gamma=True, **settings(name, variant))
    save_file({key: value.contiguous() for key, value in converted.state_dict().items()}, tmp_path / "weights")
    other = infsa.convert(build(name)[0], variant, learn_gamma=True, **settings(name, variant))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(load_file(tmp_path / "weights"))
    assert torch.equal(output(other, inputs), output(converted, inputs))


@pytest.mark.parametrize("name", PURE_ONLY)
def test_linear_refuses_biases_on_the_scores(name):
    model, _, layers = build(name)
    with pytest.raises(ValueError, match="relative position bias") as error:
        infsa.convert(model, "linear")
    assert infsa.plan_conversion(model, "linear").chosen("refuse")[0].name in str(error.value)
    assert len(infsa.plan_conversion(model, "linear").chosen("refuse")) == layers
    assert "\n" not in str(error.value)
