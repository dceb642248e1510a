"""The fast path gives the model's logits and gradients; 8 bits give them with a small, reported error."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import infsa
from infsa.models import embedding, fast, speed
from infsa.models.block import Block
from infsa.models.embedding import cubic_cells, embed_by_product
from infsa.models.fp8 import Fp8Linear, round_rows
from infsa.models.gelu import HALF, half_gelu

SMALL = {"embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5, "img_size": 24}


def small(name="infvit_linear_tiny", dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = infsa.create_model(name, **{**SMALL, **options})
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.to(dtype).eval()


def images(dtype=torch.float64, size=(24, 40), batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("short", [10**6, 0], ids=["whole", "chunks"])
@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("attention", ["infsa_linear", "infsa_pure", "softmax", "agent"])
@torch.no_grad()
def test_logits_are_those_of_the_model(attention, pool, short, monkeypatch):
    monkeypatch.setattr(speed, "SHORT", short)
    model = small(attention=attention, global_pool=pool)
    x = images()
    torch.testing.assert_close(fast(model, compile=False, chunk=4)(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("short", [10**6, 0], ids=["whole", "chunks"])
@torch.no_grad()
def test_padding_is_hidden(short, monkeypatch):
    monkeypatch.setattr(speed, "SHORT", short)
    model, x = small(), images()
    mask = torch.ones(2, *model.grid_of(x), dtype=torch.bool)
    mask[1, :, 2:] = False
    torch.testing.assert_close(fast(model, compile=False, chunk=4)(x, mask), model(x, mask), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"dynamic_img_pad": True}, {"patch_size": (4, 8), "class_token": False}])
def test_patches_are_embedded_by_one_product(options):
    """Values and the gradient of the convolution's weight are those of the model, and no convolution runs."""
    model, x = small(**options), images(size=(27, 45) if "dynamic_img_pad" in options else (24, 40))
    found, expected = embed_by_product(model, x), model.embed(x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    weight = model.patch_embed.proj.weight
    for f, e in zip(*(torch.autograd.grad(y.square().sum(), weight) for y in (found, expected)), strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)
    heard = []
    model.patch_embed.proj.register_forward_hook(lambda *_: heard.append(1))
    embed_by_product(model, x)
    assert heard, "a hook on the convolution is still called"


def halves(dtype=torch.bfloat16, **options):
    """A model whose positions are resized by the product that embeds its patches."""
    return small(dtype=dtype, **{"patch_size": 16, "img_size": 48, **options})


@pytest.fixture
def resized(monkeypatch):
    """Grids that the product has resized positions to."""
    seen = []
    monkeypatch.setattr(embedding, "cubic_cells", lambda *a: seen.append(a[1]) or cubic_cells(*a))
    return seen


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}], ids=str)
@pytest.mark.parametrize("size", [(48, 80), (32, 128), (64, 32), (16, 16)], ids=str)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_positions_of_one_image_are_resized_by_the_same_product(dtype, size, options, resized):
    """Values and gradients of everything that takes part, no further from float64 than the model's own."""
    model, x = halves(dtype, **options), images(dtype, size, batch=1)
    exact = copy.deepcopy(model).double()
    found, plain, wanted = (
        with_gradients(way, m, z)
        for way, m, z in ((embed_by_product, model, x), (own, model, x), (own, exact, x.double()))
    )
    for f, p, w in zip(found, plain, wanted, strict=True):
        assert (f.double() - w).norm() <= 1.5 * (p.double() - w).norm() + 1e-6 * w.norm()
    with torch.no_grad():
        model.pos_embed += 1
    assert not torch.equal(embed_by_product(model, x), found[0]), "a changed table is seen at once"
    assert len(resized) == 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("table", ["constant", "checkerboard"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@torch.no_grad()
def test_cubic_weights_lose_nothing_in_half_precision(dtype, table, compiled, resized):
    """Halved, enlarged and uneven grids, tables much larger than patches; compiled code drops casts to and fro."""
    model = halves(dtype, img_size=224)
    signs = torch.ones(14, 14) if table == "constant" else 1 - 2.0 * (torch.arange(14)[:, None] + torch.arange(14) & 1)
    model.pos_embed[:, 1:] = 100 * signs.flatten()[:, None] * torch.randn(model.embed_dim)
    way = torch.compile(embed_by_product, dynamic=False) if compiled else embed_by_product
    for size in ((112, 112), (448, 448), (112, 1024))[: 1 if compiled else 3]:
        x = images(dtype, size, batch=1)
        exact = own(copy.deepcopy(model).double(), x.double())
        ours, plain = ((f(model, x).double() - exact).norm() for f in (way, own))
        assert ours <= 1.05 * plain
    assert resized


def test_a_model_with_positions_of_its_own_keeps_them(resized):
    class Doubled(infsa.models.InfViT):
        def positions(self, grid):
            return 2 * super().positions(grid)

    model, x = halves(), images(torch.bfloat16, (48, 80), batch=1)
    model.__class__ = Doubled
    torch.testing.assert_close(embed_by_product(model, x), own(model, x), rtol=0.02, atol=0.02)
    assert not resized


def own(model, x):
    return model.embed(x)[0]


def with_gradients(way, model, x):
    """Tokens, and the gradients of what positions and patches are made of."""
    y = way(model, x)
    parts = [model.pos_embed, model.patch_embed.proj.weight, model.patch_embed.proj.bias]
    return [y, *torch.autograd.grad(y.double().square().sum(), parts)]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, {"batch": 2}),
        ({"dtype": torch.float32}, {"dtype": torch.float32}),
        ({}, {"size": (48, 48)}),  # as they are
        ({"img_size": (16, 528)}, {}),  # 1 x 33 cells, filled up to 16 x 48
        ({"patch_size": 8}, {}),
    ],
    ids=["batch", "single precision", "base grid", "long grid", "small patches"],
)
def test_other_models_and_images_resize_positions_by_themselves(options, kind, resized):
    model, x = halves(**options), images(**{"dtype": torch.bfloat16, "size": (48, 80), "batch": 1, **kind})
    torch.testing.assert_close(embed_by_product(model, x), own(model, x), rtol=0.03, atol=0.03)
    assert not resized


@torch.no_grad()
def test_a_series_readout_takes_the_ordinary_way(monkeypatch):
    monkeypatch.setattr(speed, "SHORT", 0)
    model = small(readout="series")
    torch.testing.assert_close(fast(model, compile=False)(images()), model(images()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_model(checkpointing):
    model, x = small().train(), images()
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()), allow_unused=True)
    model.set_grad_checkpointing(checkpointing)
    found = torch.autograd.grad(fast(model, compile=False)(x).square().sum(), list(model.parameters()))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)


def test_the_last_mlp_sees_the_class_token_alone():
    seen = []
    model = small()
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0].shape[1]))
    fast(model, compile=False)(images())
    assert seen == [16, 16, 1]


@torch.no_grad()
def test_blocks_share_their_compiled_code(monkeypatch):
    """A deep model must not compile every block anew, nor pass the limit after which nothing is compiled."""
    monkeypatch.setattr(speed, "SHORT", 0)
    torch._dynamo.reset()
    model = small(dtype=torch.float32, depth=10, num_heads=2)
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled(f, backend="aot_eager", dynamic=False))
    x = images(torch.float32)
    torch._dynamo.utils.counters.clear()
    torch.testing.assert_close(fast(model, chunk=8)(x), model(x), rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4  # embed, attend, chunks, the class token
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_cheaper_gelu_rounds_like_the_exact_one(dtype):
    """Every number of the type: one of the two neighbours of the result, nearly always the nearer."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = x[x.isfinite() & ((x > -12) | (x == 0))]
    exact = x.double() * torch.special.erfc(-x.double() / 2**0.5) / 2
    found = half_gelu(x)
    units = (found.view(torch.int16).int() - exact.to(dtype).view(torch.int16).int()).abs()
    assert units.max() <= 1
    assert (units > 0).double().mean() < 0.01
    assert half_gelu(torch.tensor([float("nan"), float("inf")], dtype=dtype)).tolist()[1] == float("inf")
    assert half_gelu(torch.tensor([float("nan")], dtype=dtype)).isnan()


@torch.no_grad()
def test_an_mlp_that_is_not_plain_is_called():
    model, x = small(dtype=torch.bfloat16), images(torch.bfloat16)
    quick = fast(model, compile=False)
    heard = []
    before = quick(x)
    model.blocks[0].mlp.act.register_forward_hook(lambda *_: heard.append(1))
    model.blocks[1].mlp.act = nn.GELU("tanh")
    assert (quick(x) - before).norm() <= 0.05 * before.norm()
    assert heard
    assert (before - model(x)).norm() <= 0.05 * before.norm()


@torch.no_grad()
@pytest.mark.parametrize("change", ["in place", "data", "fused optimizer", "state"])
def test_every_change_of_the_parameters_is_seen(change):
    model, x = small(), images()
    quick = fast(model, compile=False)
    quick(x)
    if change == "in place":
        model.pos_embed.add_(1)
    elif change == "data":
        model.pos_embed.data.copy_(model.pos_embed + 1)
    elif change == "state":
        model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()})
    else:
        with torch.enable_grad():
            quick(x).sum().backward()
        torch.optim.AdamW(model.parameters(), lr=0.5, fused=True).step()
    torch.testing.assert_close(quick(x), model(x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_images_lie_where_a_graph_finds_them(monkeypatch):
    quick = fast(small(), compile=False)
    small_one, large_one = images(), images(size=(40, 24))
    with torch.inference_mode():
        places = [quick._placed(x) for x in (small_one, large_one)]
    for x, place in ((small_one, places[0]), (2 * large_one, places[1])):
        assert quick._placed(x) is place
        assert torch.equal(place, x)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(quick._placed, small_one).result() is not places[0]
    monkeypatch.setattr(speed, "MOST_PLACES", 3)
    last = images(size=(24, 24))
    assert quick._placed(last) is last


def test_inference_mode_and_ordinary_calls_mix():
    model, x = small(), images()
    quick = fast(model, compile=False)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(quick(x), model(x), rtol=1e-10, atol=1e-10)


def test_a_frozen_model_has_gradients_of_the_images():
    model, x = small().requires_grad_(False), images().requires_grad_()
    found, expected = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (fast(model, compile=False), model))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_that_is_on_stays_on(dtype):
    """Also where only the dropout layers are in training mode, to sample predictions."""
    model, x = small(dtype=dtype, proj_drop_rate=0.5), images(dtype)
    quick = fast(model, compile=False)
    assert torch.equal(quick(x), quick(x))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(quick(x), quick(x))


@torch.no_grad()
def test_a_block_of_another_kind_is_called():
    class Loud(Block):
        def add(self, x, attended):
            return super().add(x, 2 * attended)

    model, x = small(), images()
    model.blocks[0].__class__ = Loud
    torch.testing.assert_close(fast(model, compile=False)(x), model(x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_fast_model_can_itself_be_compiled_and_exported():
    model, x = small(dtype=torch.float32), images(torch.float32)
    quick = fast(model, compile=False)
    torch._dynamo.reset()
    compiled = torch.compile(quick, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.export.export(quick, (x,)).module()(x), model(x), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@torch.no_grad()
@pytest.mark.parametrize("way", ["copied", "stored"])
def test_copies_run_their_own_parameters(way, monkeypatch):
    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, backend="eager", dynamic=False))
    quick, x = fast(small(dtype=torch.float32)), images(torch.float32)
    quick(x)
    if way == "copied":
        other = copy.deepcopy(quick)
    else:
        file = io.BytesIO()
        torch.save(quick, file)
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for p in other.model.parameters():
        p.mul_(1.5)
    torch.testing.assert_close(other(x), other.model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(quick(x), quick.model(x), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


def test_eight_bits_round_to_the_nearest_of_their_row():
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(2)) * torch.tensor([1e-3, 1, 1e3, 1, 1, 0])[:, None]
    eight, scale = round_rows(x)
    assert ((eight.float() * scale - x).abs() <= x.abs() * 2**-4 + scale * 2**-10).all()
    assert eight.float().abs().amax(1)[:5].tolist() == [448] * 5


@torch.no_grad()
def test_error_of_eight_bits_is_reported():
    model = small(dtype=torch.bfloat16)
    x = images(torch.bfloat16)
    quick = fast(model, compile=False, fp8=True).eval()
    error = quick.error(x)
    assert 0 < error["relative"] < 0.2
    assert 0 <= error["same_class"] <= 1
    layer = nn.Linear(32, 8, dtype=torch.bfloat16)
    x = torch.randn(2, 3, 32, dtype=torch.bfloat16)
    assert (Fp8Linear(layer)(x) - layer(x)).norm() <= 0.1 * layer(x).norm()


def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match="fast takes an InfViT, got Linear"):
        fast(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^fast takes models of attention and MLP .* got blocks of type MLLABlock$"):
        fast(small(attention="mlla", mlla_block=True))
    with pytest.raises(ValueError, match="chunk must be"):
        fast(small(), chunk=0)
    with pytest.raises(ValueError, match="fp8=True needs a bfloat16 model"):
        fast(small(), fp8=True)
    with pytest.raises(ValueError, match="fp8=True is for inference"):
        fast(small(dtype=torch.bfloat16), fp8=True).train()
