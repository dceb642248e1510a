"""Linear-InfSA with partly untied queries and keys."""

import pytest
import torch

import infsa
from infsa.models import InfViT, save_weights
from infsa.nn import LinearInfSA

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


def layer(drawn=True, **options):
    torch.manual_seed(0)
    found = LinearInfSA(8, 2, key_rank=2, **options).double()
    if drawn:
        torch.nn.init.normal_(found.key_difference.up)
    return found


def untied(part):
    """The layer with two projections that computes the same."""
    found = LinearInfSA(8, 2, tied=False).double()
    state = {name: value for name, value in part.state_dict().items() if "key_difference" not in name}
    weight = part.q.weight + part.key_difference.up @ part.key_difference.down
    found.load_state_dict(state | {"k.weight": weight, "k.bias": part.q.bias})
    return found


@pytest.mark.parametrize("impl", ["auto", "reference", "chunked"])
def test_keys_are_queries_plus_a_map_of_low_rank(impl):
    part, x = layer(impl=impl), torch.randn(2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(part(x), untied(part)(x))
    torch.testing.assert_close(part.weights(x), untied(part).weights(x))


def test_it_starts_tied():
    part, x = layer(drawn=False), torch.randn(2, 7, 8, dtype=torch.float64)
    tied = LinearInfSA(8, 2).double()
    tied.load_state_dict(part.state_dict(), strict=False)
    torch.testing.assert_close(part(x), tied(x))


def test_gradients():
    part, x = layer(activation="abs"), torch.randn(1, 5, 8, dtype=torch.float64)
    names = ["q.weight", "key_difference.down", "key_difference.up"]

    def output(*values):
        return torch.func.functional_call(part, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, [part.get_parameter(n).detach().clone().requires_grad_() for n in names])


def test_refused_beside_untied_keys():
    with pytest.raises(ValueError, match=r"^key_rank=2 needs tied=True, got tied=False$"):
        LinearInfSA(8, 2, tied=False, key_rank=2)


def test_models_are_saved_loaded_and_streamed(tmp_path):
    torch.manual_seed(0)
    model = InfViT(**SMALL, attention_options={"key_rank": 2}).eval()
    x = torch.randn(1, 3, 32, 32)
    tied = InfViT(**SMALL).eval()
    tied.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(x), tied(x))  # init_weights keeps the start
    for block in model.blocks:
        torch.nn.init.normal_(block.attn.key_difference.up)
    save_weights(model, tmp_path)
    again = infsa.create_model("infvit_linear_tiny", pretrained=tmp_path).eval()
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
    torch.testing.assert_close(infsa.stream(model, x[0]).logits, model(x), rtol=1e-4, atol=1e-4, check_dtype=False)
