"""Models with another attention mechanism at each layer."""

import json

import pytest
import torch

import infsa
from infsa.models import InfViT, fast, load_weights, save_weights
from infsa.models.exporting import export_model
from infsa.models.maps import METHODS
from infsa.train.module import build_model
from infsa.train.recipe import Recipe

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
MIXED = ["softmax", "infsa_pure", "infsa_linear"]
OPTIONS = {"infsa_linear": {"tied": False}}


def mixed(attention=MIXED, **options) -> InfViT:
    torch.manual_seed(0)
    return InfViT(**{**SMALL, **options}, attention=attention).eval()


def images(count: int = 2, size: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def by_hand(model: InfViT, x: torch.Tensor) -> torch.Tensor:
    """Logits from the layers of three models that each have one mechanism only, block by block."""
    tokens, grid = model.embed(x)
    for block, name in zip(model.blocks, model.attentions, strict=True):
        own = InfViT(**SMALL, attention=name, attention_options=OPTIONS.get(name)).double().eval()
        own.blocks[0].load_state_dict(block.state_dict())
        tokens = own.blocks[0](tokens, grid, 1)
    return model.forward_head(model.norm(tokens))


def test_every_layer_computes_its_own_mechanism():
    model, x = mixed(attention_options=OPTIONS).double(), images().double()
    assert model.attentions == tuple(MIXED)
    assert model.attention == "softmax, infsa_pure, infsa_linear"
    torch.testing.assert_close(model(x), by_hand(model, x), rtol=1e-12, atol=1e-12)


def test_gradients_reach_every_layer():
    model = mixed().double()
    model(images().double()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.blocks.parameters())


def test_equal_names_are_the_model_of_one_name():
    model, same = mixed(["infsa_pure"] * 3), mixed("infsa_pure")
    assert model.arguments == same.arguments
    assert model.attention == "infsa_pure"


def test_model_arguments_go_to_the_layers_that_take_them():
    model = mixed(gamma=0.4, learn_gamma=True, activation="abs", attn_drop_rate=0.1)
    softmax, pure, linear = (block.attn for block in model.blocks)
    assert not hasattr(softmax, "decay")
    assert pure.decay.gamma == linear.decay.gamma == 0.4
    assert pure.decay.logit is not None
    assert pure.activation == linear.activation == "abs"
    assert softmax.dropout == pure.dropout == 0.1


def test_geometric_decay_counts_all_layers():
    gammas = [b.attn.decay.gamma for b in mixed(decay="geometric", gamma=0.5).blocks[1:]]
    assert gammas == [0.25, 0.125]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"attention": ["softmax"]}, "3 layers, got 1"),
        ({"attention": ["softmax", "nothing", "softmax"]}, "'nothing'"),
        ({"attention": 3}, "got 3"),
        ({"attention": ["softmax", 3, "softmax"]}, "a list of names"),
        ({"attention": ["softmax", "mlla", "softmax"], "gamma": 0.5}, "has no decay, got gamma=0.5"),
        ({"attention": ["softmax", "mlla", "softmax"], "activation": "gelu"}, "'activation'"),
        ({"readout": "series"}, "decay at every layer"),
        ({"attention_options": {"tied": False}}, "tables by name"),
        ({"attention_options": {"linformer": {"rank": 4}}}, "tables by name"),
        ({"attention_options": {"softmax": {"tied": False}}}, "softmax takes no option 'tied'"),
        ({"attention_options": {"infsa_pure": {"gamma": 0.5}}}, "does not take 'gamma'"),
        ({"mlla_block": True}, "mlla_block"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options, named):
    with pytest.raises(ValueError, match=r".") as error:
        InfViT(**{**SMALL, "attention": MIXED, **options})
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_saved_and_loaded(tmp_path):
    model = mixed(attention_options=OPTIONS)
    save_weights(model, tmp_path)
    again = infsa.create_model("infvit_linear_tiny", pretrained=tmp_path).eval()
    assert again.attentions == tuple(MIXED)
    torch.testing.assert_close(again(images()), model(images()), rtol=0, atol=0)
    with pytest.raises(ValueError, match="saved with attention="):
        load_weights(mixed(["softmax", "infsa_linear", "infsa_linear"]), tmp_path)
    assert "rank 1" in (tmp_path / "README.md").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_args"]["attention"] == MIXED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_maps(method, layer):
    maps = mixed().attention_maps(images(), layer=layer, method=method)
    assert maps.shape == (2, 4, 4)
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))


def test_a_map_needs_weights_only_of_the_layers_that_are_read():
    model = mixed(["mlla", "softmax", "infsa_linear"])
    assert model.attention_maps(images()).shape == (2, 4, 4)
    with pytest.raises(ValueError, match="no attention map: mlla"):
        model.attention_maps(images(), method="rollout")


def test_fast_agrees():
    model = mixed().double()
    with torch.no_grad():
        torch.testing.assert_close(fast(model)(images().double()), model(images().double()), rtol=1e-12, atol=1e-12)


def test_streaming_is_refused():
    with pytest.raises(ValueError, match="at every layer"):
        infsa.stream(mixed(), torch.zeros(3, 32, 32))


def test_hugging_face_round_trip(tmp_path):
    pytest.importorskip("transformers")
    from infsa.models.huggingface import InfViTForImageClassification

    model = mixed(attention_options=OPTIONS)
    InfViTForImageClassification.from_infvit(model).save_pretrained(tmp_path)
    again = InfViTForImageClassification.from_pretrained(tmp_path).eval()
    assert again.infvit.attentions == tuple(MIXED)
    torch.testing.assert_close(again(images()).logits, model(images()), rtol=0, atol=0)
    assert infsa.create_model("infvit_linear_tiny", pretrained=tmp_path).attentions == tuple(MIXED)


def test_exported(tmp_path):
    done = export_model(mixed(), tmp_path / "model.pt2")
    assert done.difference < 1e-5


def test_pruned_models_keep_the_names_of_their_layers(tmp_path):
    model = mixed(attention_options={**OPTIONS, "infsa_pure": {"hops": 2}})
    model.prune_intermediate_layers([1], prune_head=False)
    assert model.attentions == ("softmax", "infsa_pure")
    assert InfViT(**model.arguments).attentions == model.attentions
    model.prune_intermediate_layers([0], prune_head=False)
    assert model.attention == InfViT(**model.arguments).attention == "softmax"


@pytest.mark.parametrize(
    "options",
    [{"gamma": 0.5}, {"learn_gamma": True}, {"decay": "geometric"}, {"activation": "gelu"}, {"attn_drop_rate": 0.1}],
    ids=str,
)
def test_pruned_models_keep_no_option_of_layers_that_are_gone(options):
    model = InfViT(16, 4, embed_dim=16, depth=3, num_heads=2, attention=["agent", "infsa_linear", "softmax"], **options)
    model.prune_intermediate_layers([0])
    assert InfViT(**model.arguments).state_dict().keys() == model.state_dict().keys()


def test_a_recipe_takes_a_list():
    recipe = Recipe().override({"model": "vit_tiny", "model_options": {"attention": MIXED, "depth": 3}})
    assert build_model(recipe, 5).attentions == tuple(MIXED)
