"""The plan: every attention layer is named, nothing is changed or left out silently, errors name the layer."""

import json

import pytest
import torch
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import nn

import infsa
from infsa.conversion import ConversionPlan, Settings, converted_layers

from .models import FAMILIES, VIT, build


@pytest.mark.parametrize("name", FAMILIES)
def test_a_plan_describes_each_layer_and_changes_nothing(name):
    model, _, layers = build(name)
    classes = [type(module) for module in model.modules()]
    plan = infsa.plan_conversion(model)
    assert [type(module) for module in model.modules()] == classes
    assert len(plan.layers) == len(plan.chosen()) == layers
    for layer in plan:
        module = model.get_submodule(layer.name)
        assert layer.kind.endswith(type(module).__name__)
        assert layer.heads == module.num_heads
        assert layer.heads * layer.head_width == layer.width
        assert layer.rotary == name.startswith(("eva", "grouped"))
        assert layer.qk_norm == ("qk-norm" in name or "swin v2" in name)
        own_bias = name in ("beit", "relative") or "swin" in name
        assert ("relative position" in layer.biases) == own_bias
    assert plan.layers[0].name.split(".")[0] in str(plan)
    assert json.loads(json.dumps(plan.as_dict()))["settings"] == Settings().as_dict()


def test_neighbours_alike_share_a_row():
    model = VisionTransformer(**VIT | {"depth": 3})
    assert [row["layer"] for row in infsa.plan_conversion(model).rows()] == ["blocks.0-2.attn"]
    rows = infsa.plan_conversion(model, exclude="blocks.1.attn").rows()
    assert [row["layer"] for row in rows] == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
    named = nn.ModuleDict({name: nn.MultiheadAttention(8, 2) for name in ("a", "b", "c")})
    assert [row["layer"] for row in infsa.plan_conversion(named).rows()] == ["a, ..., c (3)"]
    gaps = nn.Sequential(nn.MultiheadAttention(8, 2), nn.ReLU(), nn.MultiheadAttention(8, 2))
    assert [row["layer"] for row in infsa.plan_conversion(gaps).rows()] == ["0, ..., 2 (2)"]
    pairs = nn.Sequential(*(nn.ModuleDict({"a": nn.MultiheadAttention(8, 2)}) for _ in range(2)))
    pairs[0]["b"] = nn.MultiheadAttention(8, 2)
    assert [row["layer"] for row in infsa.plan_conversion(pairs).rows()] == ["0.a, ..., 1.a (3)"]


def test_grouped_keys_are_counted():
    layer = infsa.plan_conversion(build("grouped keys")[0]).layers[0]
    assert (layer.heads, layer.key_heads) == (4, 2)
    assert "4/2" in str(ConversionPlan(Settings(), (layer,)))


def test_patterns_choose_layers():
    model, _, _ = build("timm vit")
    assert list(converted_layers(infsa.convert(model, include="blocks.0.*"))) == ["blocks.0.attn"]
    assert list(converted_layers(infsa.convert(model, exclude=["blocks.0.*"]))) == ["blocks.1.attn"]
    plan = infsa.plan_conversion(model, exclude="blocks.0.*")
    assert plan.chosen("keep")[0].reason == "excluded by 'blocks.0.*'"
    assert "excluded by" in str(plan)


def test_layers_may_be_converted_in_turn():
    model, _, _ = build("timm vit")
    infsa.convert(model, include="blocks.0.*", inplace=True)
    infsa.convert(model, "linear", inplace=True)
    assert [layer.infsa_settings.variant for layer in converted_layers(model).values()] == ["pure", "linear"]
    assert [layer.action for layer in infsa.plan_conversion(model)] == ["done", "done"]
    infsa.revert(model)
    assert not converted_layers(model)


class Mystery(nn.Module):
    """Attention as somebody wrote it at home."""

    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


def holds(*layers):
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (holds(nn.Linear(2, 2), nn.Flatten()), {}, "nothing to convert: the attention layers found are none"),
        (
            holds(nn.Linear(8, 8), Mystery()),
            {},
            r"cannot convert 1 \(.*Mystery\): this attention class is",
        ),
        (holds(Mystery()), {"exclude": "0"}, "nothing to convert.*excluded by '0'"),
        (holds(nn.MultiheadAttention(8, 2)), {"include": "1.*"}, r"'1\.\*' matches no attention layer; .* are 0"),
        (holds(nn.MultiheadAttention(8, 2, add_bias_kv=True)), {}, "cannot convert 0 .*sink"),
        (holds(nn.MultiheadAttention(8, 2, add_zero_attn=True)), {}, "cannot convert 0 .*sink"),
        (holds(ParallelScalingBlock(8, 2)), {}, "cannot convert 0 .*MLP"),
        (holds(nn.MultiheadAttention(8, 2)), {"gamma": 1.0}, "got 1.0"),
        (holds(nn.MultiheadAttention(8, 2)), {"variant": "softmax"}, "got 'softmax'"),
        (holds(nn.MultiheadAttention(8, 2)), {"chunk_size": 4}, "needs variant='linear'"),
        (holds(nn.MultiheadAttention(8, 2)), {"level": "surgery"}, "needs variant='linear'"),
        (
            holds(nn.MultiheadAttention(8, 2)),
            {"level": "surgery", "variant": "linear"},
            "cannot convert 0 .*another source",
        ),
    ],
)
def test_errors_are_one_line_and_name_the_layer(model, options, message):
    classes = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=message) as error:
        infsa.convert(model, inplace=True, **options)
    assert "\n" not in str(error.value)
    assert [type(module) for module in model.modules()] == classes


class Around(nn.Module):
    """Attention of its own around an attention layer that is known."""

    def __init__(self):
        super().__init__()
        self.to_qkv, self.inner = nn.Linear(8, 24), nn.MultiheadAttention(8, 2)


def test_a_known_layer_does_not_hide_an_unknown_one_around_it():
    assert [(layer.name, layer.action) for layer in infsa.plan_conversion(holds(Around()))] == [
        ("0", "refuse"),
        ("0.inner", "convert"),
    ]
    assert list(converted_layers(infsa.convert(holds(Around()), exclude="0"))) == ["0.inner"]


def test_converting_again_says_what_there_is():
    model = infsa.convert(build("timm vit")[0])
    with pytest.raises(
        ValueError, match=r"nothing to convert: .*blocks\.0\.attn, blocks\.1\.attn \(done: pure.*revert"
    ):
        infsa.convert(model, "linear")
    assert infsa.convert(infsa.revert(model), "linear").blocks[0].attn.infsa_settings.variant == "linear"


def test_only_modules_have_a_plan():
    with pytest.raises(TypeError, match=r"got str$"):
        infsa.convert("timm:vit")


def test_refused_layers_can_be_excluded():
    model = holds(nn.MultiheadAttention(8, 2), Mystery())
    assert list(converted_layers(infsa.convert(model, exclude="1"))) == ["0"]


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match=r"beta"):
        infsa.convert(nn.MultiheadAttention(8, 2), beta=1)


def test_revert_needs_a_converted_model():
    with pytest.raises(ValueError, match=r"nothing to revert"):
        infsa.revert(nn.Linear(2, 2))


def test_own_layers_are_left_alone():
    model = holds(infsa.nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2))
    plan = infsa.plan_conversion(model)
    assert [layer.action for layer in plan] == ["done", "convert"]
    assert [layer.action for layer in infsa.plan_conversion(infsa.create_model("infvit_linear_tiny", depth=1))] == [
        "done"
    ]
    with pytest.raises(ValueError, match=r"blocks\.0\.attn .*attention='infsa_pure'"):
        infsa.convert(infsa.create_model("vit_tiny", depth=1))


def test_differential_attention_is_refused_by_name():
    model = VisionTransformer(**{**VIT, "embed_dim": 32}, attn_layer="diff")
    with pytest.raises(ValueError, match=r"blocks.0.attn, blocks.1.attn .*DiffAttention.*subtracts"):
        infsa.convert(model)


def test_a_changed_weight_is_noticed(monkeypatch):
    from infsa.conversion.timm import FAMILY

    def meddle(self, module, layer, settings):
        with torch.no_grad():
            module.qkv.weight.mul_(2)

    monkeypatch.setattr(type(FAMILY), "convert", meddle)
    for inplace in (True, False):
        with pytest.raises(RuntimeError, match=r"changed 'blocks.0.attn.qkv.weight'"):
            infsa.convert(build("timm vit")[0], inplace=inplace)
