"""The scaffold: resolution, prefix tokens, masks, decay, read-out, long inputs."""

import pytest
import torch
from torch.nn.functional import interpolate

import infsa
from infsa.models.infvit import InfViT
from infsa.models.patches import learned_positions

from .helpers import NAMES, SMALL, images, small


@pytest.mark.parametrize("attention", NAMES)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 64), (64, 24)])
def test_every_mechanism_runs_at_any_size(attention, height, width):
    model = small(attention)
    with torch.no_grad():
        out = model(images(height=height, width=width))
    assert out.shape == (2, 5)
    assert out.isfinite().all()


@pytest.mark.parametrize("attention", NAMES)
@pytest.mark.parametrize(("class_token", "reg_tokens"), [(False, 0), (True, 0), (True, 3), (False, 2)])
def test_prefix_tokens(attention, class_token, reg_tokens):
    model = small(attention, class_token=class_token, reg_tokens=reg_tokens)
    assert model.global_pool == ("token" if class_token else "avg")
    with torch.no_grad():
        tokens = model.forward_features(images(height=24, width=40))
    assert tokens.shape == (2, model.num_prefix_tokens + 15, 32)


def test_no_two_mechanisms_agree():
    with torch.no_grad():
        outputs = [small(name)(images()) for name in NAMES]
    for i, first in enumerate(outputs):
        for second in outputs[:i]:
            assert (first - second).abs().max() > 1e-6


@pytest.mark.parametrize("attention", NAMES)
def test_every_parameter_receives_a_finite_gradient(attention):
    model = small(attention, paper_params=True, reg_tokens=1).train()
    for parameter in model.parameters():  # zero-initialised tables would hide what lies behind them
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = model.forward_features(images())  # all of them: the class token alone sees no convolution at the end
    weights = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model.forward_head(tokens), torch.tensor([1, 3]))
    (loss + (weights * tokens).mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("grid", [(4, 4), (7, 5), (2, 3), (16, 9)])
def test_positions_equal_torchs_bicubic(grid):
    table = torch.randn(6 * 4, 8, dtype=torch.float64)
    image = table.unflatten(0, (6, 4)).permute(2, 0, 1)[None]
    expected = interpolate(image, size=grid, mode="bicubic", align_corners=False, antialias=False)
    torch.testing.assert_close(learned_positions(table, (6, 4), grid), expected[0].permute(1, 2, 0).flatten(0, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_positions_are_resized_in_float32(dtype):
    table = torch.randn(16, 8).to(dtype)
    assert learned_positions(table, (4, 4), (5, 6)).dtype == torch.float32
    assert small().to(dtype).positions((5, 6)).dtype == dtype


@pytest.mark.parametrize("kind", ["sincos", "none"])
def test_other_positions(kind):
    model = small(pos_embed=kind)
    assert model.pos_embed is None
    with torch.no_grad():
        assert model(images(height=40, width=24)).isfinite().all()
        flipped = model(images(height=40, width=24).flip(-1))
    assert flipped.isfinite().all()
    if kind == "sincos":
        positions = model.positions((4, 4))[0, 1:]
        assert torch.unique(positions.round(decimals=5), dim=0).shape[0] == 16


def test_padding_to_the_patch():
    model = small(dynamic_img_pad=True)
    x = images(height=30, width=37)
    padded = torch.nn.functional.pad(x, (0, 3, 0, 2))
    torch.testing.assert_close(model(x), model(padded))


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear", "mean", "energy", "performer"])
@pytest.mark.parametrize("class_token", [True, False])
def test_patch_mask_hides_patches(attention, class_token):
    model = small(attention, class_token=class_token).double()
    x = images().double()
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[:, :, 3:] = False
    changed = x.clone()
    changed[..., 24:] = 7.0
    torch.testing.assert_close(model(x, mask), model(changed, mask))
    assert not torch.allclose(model(x), model(changed))


def test_mlp_chunk_changes_nothing():
    plain, chunked = small(), small(mlp_chunk=5)
    chunked.load_state_dict(plain.state_dict())
    torch.testing.assert_close(chunked(images()), plain(images()))


@pytest.mark.parametrize("attention", ["infsa_pure", "infsa_linear", "softmax", "mlla"])
def test_gradient_checkpointing_changes_nothing(attention):
    gradients = []
    for enable in (False, True):
        model = small(attention).train()
        model.set_grad_checkpointing(enable)
        model(images()).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_every_performer_layer_draws_its_own_features():
    first, second = (block.attn.directions for block in small("performer").blocks)
    assert not torch.equal(first, second)
    assert torch.equal(first, small("performer", seed=5).blocks[0].attn.directions)


def test_decay_is_constant_or_geometric():
    assert [block.attn.decay.gamma for block in small(gamma=0.5).blocks] == [0.5, 0.5]
    assert [block.attn.decay.gamma for block in small(gamma=0.5, decay="geometric").blocks] == [0.5, 0.25]
    learned = small(learn_gamma=True).train()
    learned(images()).sum().backward()
    assert all((block.attn.decay.logit.grad != 0).all() for block in learned.blocks)
    assert {"blocks.0.attn.decay.logit", "pos_embed"} <= learned.no_weight_decay()


@pytest.mark.parametrize("attention", ["infsa_pure", "infsa_linear"])
@pytest.mark.parametrize("decay", ["constant", "geometric"])
@pytest.mark.parametrize("paper_params", [True, False])
def test_series_read_out(attention, decay, paper_params):
    """head(LN(Σ γ^l Z^(l))), Z the attention output after its projection, without γ."""
    gamma = 0.6
    model = small(attention, readout="series", gamma=gamma, decay=decay, paper_params=paper_params).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x, grid = model.embed(images().double())
    total = 0
    for layer, block in enumerate(model.blocks, start=1):
        normed = block.norm1(x)
        weights, values = block.attn.weights(normed, grid, 1), block.attn.values(normed)
        joined = (weights @ values).transpose(1, 2).flatten(2) / (gamma**layer if decay == "geometric" else gamma)
        if paper_params:
            joined = block.attn.extra(joined)
        total = total + gamma**layer * block.attn.proj(joined)
        x = block(x, grid, 1)
    expected = model.forward_head(model.norm(total.expand_as(x)))
    torch.testing.assert_close(model(images().double()), expected)


def test_linear_attention_branch_has_rank_one():
    model = small("infsa_linear").double()
    x, grid = model.embed(images().double())
    branch = model.blocks[0].attend(x, grid, 1)
    assert all(torch.linalg.matrix_rank(item) == 1 for item in branch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attention", NAMES)
def test_half_precision_is_finite(attention, dtype):
    model = small(attention).to(dtype)
    with torch.no_grad():
        assert model(images().to(dtype)).isfinite().all()
        assert model((images() * 100).to(dtype)).isfinite().all()


def test_input_size_can_be_reset():
    model = small()
    x = images(height=64, width=48)
    with torch.no_grad():
        before = model(x)
        model.set_input_size((64, 48))
        assert model.patch_embed.grid_size == (8, 6)
        torch.testing.assert_close(model(x), before)
    model.set_input_size(patch_size=(16, 16))
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "sofmax"}, "'sofmax'"),
        ({"attention": "softmax", "gamma": 0.5}, "has no decay, got gamma=0.5"),
        ({"attention": "mlla", "decay": "geometric"}, "decay='geometric'"),
        ({"attention": "softmax", "attention_options": {"queries": 3}}, "queries"),
        ({"attention": "softmax", "activation": "relu"}, "activation"),
        ({"mlla_block": True}, "mlla_block=True"),
        ({"attention": "mlla", "mlla_block": True, "mlp_chunk": 4}, "mlp_chunk"),
        ({"global_pool": "token", "class_token": False}, "class_token=False"),
        ({"global_pool": "map"}, "'map'"),
        ({"pos_embed": "rope"}, "'rope'"),
        ({"num_heads": 5}, "got 5"),
        ({"mlp_chunk": 0}, "got 0"),
        ({"gamma": 1.0}, "got 1.0"),
        ({"depth": 0}, "got 0"),
        ({"reg_tokens": -1}, "got -1"),
        ({"drop_path_rate": 2.0}, "got 2.0"),
        ({"mlp_chunk": 3.5}, "got 3.5"),
        ({"attention_options": {"gamma": 0.5}}, "'gamma'"),
        ({"attention_options": {"grid": (2, 2)}}, "'grid'"),
        ({"attention": "infsa_pure", "readout": "series", "attention_options": {"hops": 3}}, "hops=3"),
    ],
)
def test_wrong_configuration_is_one_line(options, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        InfViT(**{**SMALL, **options})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({}, (1, 3, 33, 32), "got (33, 32)"),
        ({"dynamic_img_size": False}, (1, 3, 64, 64), "got (64, 64)"),
        ({}, (1, 1, 32, 32), "got (1, 1, 32, 32)"),
        ({}, (3, 32, 32), "got (3, 32, 32)"),
    ],
)
def test_wrong_images_are_one_line(options, shape, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        small(**options)(torch.randn(shape))
    assert message in str(error.value)


def test_wrong_patch_mask_is_one_line():
    with pytest.raises(ValueError, match="patch_mask must be boolean"):
        small()(images(), torch.ones(2, 16, dtype=torch.bool))


@pytest.mark.parametrize("attention", NAMES)
@pytest.mark.parametrize("size", [(224, 224), (256, 448), (1024, 1024)])
def test_every_mechanism_runs_at_the_sizes_of_the_paper(attention, size):
    model = small(attention, img_size=224, patch_size=16, depth=1)
    with torch.no_grad():
        assert model(images(1, *size)).isfinite().all()


def test_a_large_preset_runs():
    model = infsa.create_model("infvit_linear_4l64h_patch16_224", num_classes=3).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 256, 448)).shape == (1, 3)


def test_series_read_out_trains_every_parameter_and_keeps_its_promises():
    model = small("infsa_pure", readout="series").train()
    model(images()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.set_grad_checkpointing()
    model(images()).square().sum().backward()
    for a, p in zip(plain, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)
    final, _ = model.forward_intermediates(images())
    torch.testing.assert_close(final, model.forward_features(images()))


def test_masked_average_is_exact_in_half_precision():
    model = small(class_token=False).half()
    tokens = torch.full((1, 300 * 300, 32), 30.0, dtype=torch.float16)
    mask = torch.ones(1, 300, 300, dtype=torch.bool)
    assert torch.equal(model.pool(tokens, mask), torch.full((1, 32), 30.0, dtype=torch.float16))
    tokens[:, :300], mask[:, 0] = float("nan"), False
    assert torch.equal(model.pool(tokens, mask), torch.full((1, 32), 30.0, dtype=torch.float16))


def test_redrawn_features_agree_with_gradient_checkpointing():
    gradients = []
    for enable in (False, True):
        model = small("performer", attention_options={"redraw_every": 1}).train()
        model.set_grad_checkpointing(enable)
        for _ in range(2):
            model.zero_grad()
            model(images()).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_chunked_mlp_exports_for_any_length():
    model = small(mlp_chunk=4)
    h = torch.export.Dim("h", min=2, max=64)
    program = torch.export.export(model, (images(height=40),), dynamic_shapes=({2: 8 * h},))
    x = images(height=72)
    torch.testing.assert_close(program.module()(x), model(x))
