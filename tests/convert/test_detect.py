"""Attention that no adapter knows is named, whatever it calls its parts; what is no attention is not."""

import warnings

import pytest
import timm
import torch
import torchvision
from timm.layers import EcaModule, SqueezeExcite
from timm.layers.cbam import CbamModule
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

import infsa
from infsa.conversion import converted_layers

from .models import VIT


class Parts(nn.Module):
    """Projections with given names and a forward pass that tells nothing."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, x):
        return x


class Weights(nn.Module):
    """Projections that are parameters."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.zeros(8, 8)))


class Kernel(nn.Module):
    """A block that calls torch's kernel itself."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 24)

    def forward(self, x):
        return F.scaled_dot_product_attention(*self.mix(x).chunk(3, -1))


class ByHand(Kernel):
    def forward(self, x):
        a, b, c = self.mix(x).chunk(3, -1)
        return torch.softmax(a @ b.mT, -1) @ c


def weigh(a, b, c):
    return torch.bmm(F.softmax(torch.bmm(a, b.mT), -1), c)


class ByFunction(Kernel):
    def forward(self, x):
        return self.helper(*self.mix(x).chunk(3, -1))

    def helper(self, a, b, c):
        return next(weigh(a, b, c) for _ in range(1))


class BySoftmaxModule(Kernel):
    def __init__(self):
        super().__init__()
        self.attend = nn.Softmax(-1)

    def forward(self, x):
        a, b, c = self.mix(x).chunk(3, -1)
        return torch.einsum("bij,bjd->bid", self.attend(torch.einsum("bid,bjd->bij", a, b)), c)


class Inherited(Kernel):
    def forward(self, x):
        return x + super().forward(x)


class Held(Kernel):
    def __init__(self):
        super().__init__()
        self.core = F.scaled_dot_product_attention

    def forward(self, x):
        return self.core(*self.mix(x).chunk(3, -1))


def short(module):
    """The class of a module and the names of what it has."""
    return " ".join([type(module).__name__, *dict(module.named_children()), *module._parameters])


UNKNOWN = [
    Parts("wq", "wk", "wv"),
    Parts("w_q", "w_k", "w_v"),
    Parts("Wq", "Wk", "Wv"),
    Parts("q_lin", "k_lin", "v_lin"),
    Parts("fc_q", "fc_k", "fc_v"),
    Parts("linear_queries", "linear_keys", "linear_values"),
    Parts("queryProj", "keyProj", "valueProj"),
    Parts("img_q_x", "img_k_x", "img_v_x"),
    Parts("kqv"),
    Parts("wq", "to_kv"),
    Weights("W_Q", "W_K", "W_V"),
    Weights("q_weight", "k_weight", "v_weight"),
    Kernel(),
    ByHand(),
    ByFunction(),
    BySoftmaxModule(),
    Inherited(),
    Held(),
]


@pytest.mark.parametrize("layer", UNKNOWN, ids=short)
def test_what_looks_like_attention_is_kept_and_named(layer):
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Sequential(layer))
    plan = infsa.plan_conversion(model)
    assert [(found.name, found.action) for found in plan] == [("0", "convert"), ("1.0", "keep")]
    assert "looks like attention" in str(plan)
    with pytest.warns(UserWarning, match=r"not converted: 1\.0 \(.*looks like attention") as caught:
        assert list(converted_layers(infsa.convert(model))) == ["0"]
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with pytest.raises(ValueError, match=r"nothing to convert.* 0 \(keep: it looks like attention"):
        infsa.convert(nn.Sequential(layer))


@pytest.mark.parametrize("options", [{"exclude": "1.*"}, {"include": "0"}])
def test_a_choice_needs_no_warning(options):
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Sequential(Kernel()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(converted_layers(infsa.convert(model, **options))) == ["0"]


class Wrapper(nn.Module):
    """Projections for an attention layer that is inside."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.inner = *(nn.Linear(8, 8) for _ in range(3)), nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.inner(self.wq(x), self.wk(x), self.wv(x))[0]


class Outer(nn.Module):
    """Projections for a kernel in a module of its own."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.core = *(nn.Linear(8, 8) for _ in range(3)), ByHand()

    def forward(self, x):
        return self.core(self.wq(x))


def test_attention_is_named_once():
    assert [layer.name for layer in infsa.plan_conversion(nn.Sequential(Wrapper()))] == ["0.inner"]
    assert [layer.name for layer in infsa.plan_conversion(nn.Sequential(Outer()))] == ["0"]
    converted = infsa.convert(nn.Sequential(Wrapper()))
    assert [(layer.name, layer.action) for layer in infsa.plan_conversion(converted)] == [("0.inner", "done")]


class ChannelAttention(nn.Module):
    """A gate as convolutional networks have it."""

    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Conv2d(8, 8, 1), nn.Sigmoid()

    def forward(self, x):
        return x * self.act(self.fc(x.mean((2, 3), keepdim=True)))


class Router(nn.Module):
    """Softmax over experts: one product, no attention."""

    def __init__(self):
        super().__init__()
        self.value, self.gate = nn.Linear(8, 8), nn.Parameter(torch.zeros(8, 4))

    def forward(self, x):
        return torch.softmax(x @ self.gate, -1)


class Contrast(Parts):
    """Two encoders, of queries and of keys, as in contrastive learning."""

    def __init__(self):
        super().__init__("encoder_q", "encoder_k")


@pytest.mark.parametrize("part", [SqueezeExcite(8), EcaModule(8), Router(), Contrast(), nn.LSTM(8, 8)], ids=short)
def test_ordinary_parts_are_not_named(part):
    assert not infsa.plan_conversion(nn.Sequential(part)).layers


@pytest.mark.parametrize("gate", [CbamModule(8, rd_ratio=0.5), ChannelAttention()])
def test_gates_are_kept_and_convert_in_silence(gate):
    model = nn.Sequential(gate, VisionTransformer(**VIT))
    plan = infsa.plan_conversion(model)
    assert {layer.action for layer in plan if layer.name.startswith("0")} == {"keep"}
    assert "no attention between tokens" in str(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(converted_layers(infsa.convert(model))) == 2


@pytest.mark.parametrize(
    "name",
    ["resnet18", "seresnet18", "convnext_atto", "efficientnet_lite0", "poolformer_s12", "lcnet_035"],
)
def test_networks_without_attention_have_an_empty_plan(name):
    assert not infsa.plan_conversion(timm.create_model(name)).layers


def test_networks_of_torchvision_without_attention_have_an_empty_plan():
    with torch.device("meta"):
        for build in (torchvision.models.resnet18, torchvision.models.mobilenet_v3_small):
            assert not infsa.plan_conversion(build()).layers
