"""Undoing: parts of a model, models inside others, and conversions that fail half way."""

import sys

import pytest
import torch
from torch import nn

import infsa
from infsa.conversion import converted_layers
from infsa.conversion.families import family_named

from .models import build


def state_of(model):
    """Everything a conversion touches: classes, attributes, hooks, values."""
    modules = [(type(m), sorted(vars(m)), sorted(m._modules), len(m._forward_pre_hooks)) for m in model.modules()]
    return modules, {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    assert first[0] == second[0]
    assert first[1].keys() == second[1].keys()
    return all(torch.equal(value, second[1][name]) for name, value in first[1].items())


def transformer():
    torch.manual_seed(0)
    return nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True).double().eval()


def test_a_part_is_reverted_alone():
    model, x = transformer(), torch.randn(2, 5, 16, dtype=torch.float64)
    for part in ("self_attn", "multihead_attn"):
        converted = infsa.convert(model)
        infsa.revert(converted.decoder.layers[0].get_submodule(part))
        wanted = infsa.convert(model, exclude=f"decoder.layers.0.{part}")
        assert list(converted_layers(converted)) == list(converted_layers(wanted))
        torch.testing.assert_close(converted(x, x), wanted(x, x))


def test_a_model_inside_another_is_reverted():
    model = transformer()
    before = state_of(model)
    outer = nn.ModuleDict({"inner": infsa.convert(model, inplace=True)})
    infsa.revert(outer)
    assert same(state_of(model), before)


@pytest.mark.parametrize("name", ["timm vit", "encoder", "torchvision swin"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_conversion_that_fails_leaves_no_trace(name, error, monkeypatch):
    """Not in the layers before the failure, not in the one that failed; layers converted earlier stay converted."""
    model, inputs, layers = build(name)
    names = [layer.name for layer in infsa.plan_conversion(model)]
    infsa.convert(model, include=names[0], gamma=0.3, inplace=True)
    handle = model.get_submodule(names[-1]).register_forward_pre_hook(lambda module, args: None)
    before, expected = state_of(model), model(*inputs)
    family = type(family_named(infsa.plan_conversion(model).layers[-1].family))
    convert, calls = family.convert, []

    def fail(self, module, layer, settings):
        convert(self, module, layer, settings)
        calls.append(layer.name)
        if len(calls) == layers - 1:
            raise error("stop")

    monkeypatch.setattr(family, "convert", fail)
    with pytest.raises(error, match="stop"):
        infsa.convert(model, gamma=0.5, inplace=True)
    assert calls[-1] == names[-1]
    assert same(state_of(model), before)
    assert list(converted_layers(model)) == names[:1]
    assert torch.equal(model(*inputs), expected)
    handle.remove()
    assert not model.get_submodule(names[-1])._forward_pre_hooks


@pytest.mark.parametrize("name", ["timm vit", "encoder"])
def test_a_failing_surgery_gives_the_projections_back(name, monkeypatch):
    model, _, _ = build(name)
    before = state_of(model)
    monkeypatch.setattr(sys.modules["infsa.conversion.convert"], "_verify", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        infsa.convert(model, "linear", level="surgery", inplace=True)
    assert same(state_of(model), before)


def test_revert_after_training_keeps_what_was_learned():
    model, inputs, _ = build("timm vit")
    converted = infsa.convert(model, learn_gamma=True).train()
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.1)
    converted(*inputs).square().mean().backward()
    optimizer.step()
    learned = {name: value.clone() for name, value in converted.state_dict().items() if "decay" not in name}
    state = infsa.revert(converted).state_dict()
    assert state.keys() == learned.keys() == model.state_dict().keys()
    assert all(torch.equal(value, learned[name]) for name, value in state.items())
    assert not torch.equal(state["blocks.0.attn.qkv.weight"], model.blocks[0].attn.qkv.weight)
