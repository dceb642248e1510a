"""The read-out of S_L with a learned decay."""

import pytest
import torch

import infsa
from infsa.models import fast, save_weights
from infsa.models.huggingface import InfViTForImageClassification
from infsa.parallel import shard_model

from .helpers import images, small

MECHANISMS = ["infsa_pure", "infsa_linear", "mean", "energy"]
DECAYS = ["constant", "geometric"]


def learned(attention, decay="constant", **options):
    """A model whose heads have learned different decays."""
    model = small(attention, readout="series", learn_gamma=True, decay=decay, **options).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def by_hand(model, x):
    """head(LN(Σ_l Σ_h γ_h^l (W_h z_h + b/H))), from the weights of every head."""
    x, grid = model.embed(x)
    total = 0
    for layer, block in enumerate(model.blocks, start=1):
        attn, normed = block.attn, block.norm1(x)
        gamma = attn.decay.logit.sigmoid()
        power = gamma if model.decay == "geometric" else gamma**layer
        heads = attn.weights(normed, grid, 1) @ (attn.values(normed) / gamma[:, None, None])  # (B, H, N or 1, d)
        for head in range(attn.num_heads):
            own = torch.zeros_like(heads)
            own[:, head] = heads[:, head]
            joined = own.transpose(1, 2).flatten(2)
            through = attn.proj(joined if attn.extra is None else attn.extra(joined)) - attn.offset()
            total = total + power[head] * (through + attn.offset() / attn.num_heads)
        x = block(x, grid, 1)
    return model.forward_head(model.norm(total.expand_as(x)))


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("paper_params", [True, False])
def test_every_head_decays_by_its_own_power(attention, decay, paper_params):
    model, x = learned(attention, decay, paper_params=paper_params), images().double()
    torch.testing.assert_close(model(x), by_hand(model, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize("decay", DECAYS)
def test_it_starts_as_the_model_of_a_fixed_gamma(attention, decay):
    options = {"readout": "series", "gamma": 0.6, "decay": decay}
    fixed, model = small(attention, **options).double(), small(attention, learn_gamma=True, **options).double()
    model.load_state_dict(fixed.state_dict(), strict=False)
    x = images().double()
    torch.testing.assert_close(model(x), fixed(x), rtol=1e-7, atol=1e-7)  # the logit is drawn in float32


@pytest.mark.parametrize("attention", ["infsa_pure", "infsa_linear"])
def test_gradient_of_gamma(attention):
    model, x = learned(attention), images(1).double()
    names = [f"blocks.{layer}.attn.decay.logit" for layer in range(2)]

    def logits(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

    given = [model.get_parameter(name).detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(logits, given)


def test_checkpointing_and_speed_give_the_same():
    model, x = learned("infsa_pure"), images().double()
    expected = model(x)
    model.set_grad_checkpointing()
    torch.testing.assert_close(model(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(fast(model, compile=False)(x), expected)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_gradient_maps(attention):
    maps = learned(attention).attention_maps(images().double(), method="gradient")
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2).double())


def test_saved_and_loaded(tmp_path):
    model = learned("infsa_linear").float()
    save_weights(model, tmp_path)
    again = infsa.create_model("infvit_linear_tiny", pretrained=tmp_path).eval()
    torch.testing.assert_close(again(images()), model(images()), rtol=0, atol=0)
    torch.testing.assert_close(InfViTForImageClassification.from_infvit(model)(images()).logits, model(images()))


def test_streaming_and_ranks_refuse_it_in_one_line():
    with pytest.raises(
        ValueError, match=r"^streaming with readout='series' needs a fixed gamma, got learn_gamma=True$"
    ):
        infsa.stream(learned("infsa_linear"), torch.zeros(3, 32, 32, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^shard_model with readout='series' needs a fixed gamma, got "):
        shard_model(learned("infsa_linear"), None)
