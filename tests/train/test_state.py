"""The state of a run: what is put back continues exactly as if it had never been taken away."""

import copy
import json

import pytest
import timm.optim
import torch
from timm.optim import create_optimizer_v2
from torch import nn

from infsa.train.module import Classifier
from infsa.train.state import WeightAverage, gather_state, restore_state
from tests.train.helpers import tiny

MISSING = ("bnb", "fused")  # need packages or devices that are not here


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def steps(model, optimizer, average, count, start=0):
    for step in range(start, start + count):
        torch.manual_seed(step)
        loss = nn.functional.cross_entropy(model(torch.randn(5, 6)), torch.arange(5) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)


def made(model, optimizer):
    return create_optimizer_v2(model, opt=optimizer, lr=1e-2, weight_decay=0.1), WeightAverage(model, 0.9)


@pytest.mark.parametrize("name", ["adamw", "sgd", "nmuon", "lamb", "lion", "adafactor", "adopt", "nadamw", "madgrad"])
def test_a_restored_run_continues_bit_by_bit(name):
    model = network()
    optimizer, average = made(model, name)
    steps(model, optimizer, average, 4)
    tensors, facts = gather_state(model, optimizer, average)
    tensors, facts = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(facts))
    steps(model, optimizer, average, 4, start=4)

    other = network(seed=1)
    again, their_average = made(other, name)
    restore_state(other, again, their_average, tensors, facts)
    steps(other, again, their_average, 4, start=4)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    for parameter in average.values:
        assert torch.equal(average.values[parameter], their_average.values[parameter])
    assert average.updates == their_average.updates == 8


@pytest.mark.parametrize("name", [n for n in timm.optim.list_optimizers() if not n.startswith(MISSING)])
def test_every_optimiser_that_a_recipe_accepts_can_be_saved(name):
    """A recipe that would fail at its first checkpoint is refused before its first step."""
    recipe = tiny(optimizer=name)
    try:
        recipe.check()
    except ValueError:
        return
    module = Classifier(recipe, classes=4, steps_per_epoch=4)
    module.model = network()
    optimizer = module.configure_optimizers()
    with torch.compiler.set_stance("force_eager"):  # kron compiles a part of its step
        steps(module.model, optimizer, WeightAverage(module.model, 0.9), 2)
    tensors, facts = gather_state(module.model, optimizer, None)
    restore_state(module.model, optimizer, None, tensors, json.loads(json.dumps(facts)))


def test_the_optimiser_is_built_from_the_recipe():
    recipe = tiny(optimizer="adamw", lr=0.01, weight_decay=0.3, beta2=0.91)
    module = Classifier(recipe, classes=4, steps_per_epoch=4)
    optimizer = module.configure_optimizers()
    assert type(optimizer) is torch.optim.AdamW
    names = {parameter: name for name, parameter in module.model.named_parameters()}
    decayed = {names[p] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    plain = set(names.values()) - decayed
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}
    assert all(group["betas"] == (0.9, 0.91) and group["lr"] == 0.01 for group in optimizer.param_groups)
    assert {"cls_token", "pos_embed", "norm.weight", "norm.bias", "head.bias", "patch_embed.proj.bias"} <= plain
    assert {"head.weight", "patch_embed.proj.weight"} <= decayed
    assert not [name for name in decayed if name.endswith("bias") or "norm" in name or "token" in name]


def test_the_average_is_the_textbook_sum():
    model, decay = nn.Linear(2, 2), 0.9
    average = WeightAverage(model, decay)
    expected = [p.detach().double() for p in model.parameters()]
    for update in range(1, 20):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        average.update(model)
        now = min(decay, (1 + update) / (10 + update))
        expected = [
            now * e + (1 - now) * p.detach().double() for e, p in zip(expected, model.parameters(), strict=True)
        ]
    for value, e in zip(average.values.values(), expected, strict=True):
        torch.testing.assert_close(value.double(), e, rtol=1e-5, atol=1e-6)


def test_exchanging_twice_changes_nothing():
    model = network()
    average = WeightAverage(model, 0.5)
    with torch.no_grad():
        model[0].weight.add_(1)
    before = copy.deepcopy(model.state_dict()), {n: v.clone() for n, v in average.values.items()}
    pointers = [p.data_ptr() for p in model.parameters()]
    average.exchange(model)
    assert torch.equal(model[0].weight, before[1]["0.weight"])
    assert torch.equal(average.values["0.weight"], before[0]["0.weight"])
    average.exchange(model)
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, before[1][name]) for name, value in average.values.items())
    assert [p.data_ptr() for p in model.parameters()] == pointers
