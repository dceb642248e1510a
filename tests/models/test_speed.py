"""The fast path gives the model's logits and gradients."""

import copy
import io
import warnings

import pytest
import torch
from timm.layers import Mlp
from torch import nn

import infsa
from infsa.models import fast
from infsa.models.blocks import Block
from infsa.models.embedding import embed
from infsa.models.graphs import Snapshot
from infsa.models.tokenwise import chunks

SMALL = {"embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5, "img_size": 24}


def small(name="infvit_linear_tiny", dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = infsa.create_model(name, **{**SMALL, **options})
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.to(dtype).eval()


def images(dtype=torch.float64, size=(24, 40), batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("chunk", [10**6, 4], ids=["whole", "chunks"])
@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("attention", ["infsa_linear", "infsa_pure", "softmax", "agent"])
@torch.no_grad()
def test_logits_are_those_of_the_model(attention, pool, chunk):
    model = small(attention=attention, global_pool=pool)
    quick, sizes = fast(model, chunk=chunk), ((24, 40), (8, 8), (40, 16))
    for batch, size in enumerate((*sizes, *sizes)):
        x = images(size=size, batch=1 + batch % 3)
        torch.testing.assert_close(quick(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"global_pool": "avg"}, {"readout": "series"}], ids=str)
@torch.no_grad()
def test_padding_is_hidden(options):
    model, x = small(**options), images()
    mask = torch.ones(2, *model.grid_of(x), dtype=torch.bool)
    mask[1, :, 2:] = False
    torch.testing.assert_close(fast(model, chunk=4)(x, mask), model(x, mask), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_layers_of_different_attention_mix():
    model, x = small(), images()
    model.blocks[1].attn = small(attention="softmax").blocks[1].attn
    model.blocks[2].attn = small(attention="infsa_pure").blocks[2].attn
    torch.testing.assert_close(fast(model, chunk=4)(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options", [{}, {"dynamic_img_pad": True}, {"patch_size": (4, 8), "class_token": False}, {"pos_embed": "sincos"}]
)
@torch.no_grad()
def test_patches_are_embedded_as_the_model_does(options):
    """Also where somebody listens to the convolution, and where a subclass has positions of its own."""

    class Doubled(infsa.models.InfViT):
        def positions(self, grid):
            return 2 * super().positions(grid)

    model, x = small(**options), images(size=(27, 45) if "dynamic_img_pad" in options else (24, 40))
    torch.testing.assert_close(embed(model, x), model.embed(x)[0], rtol=1e-10, atol=1e-10)
    heard = []
    model.patch_embed.proj.register_forward_hook(lambda *_: heard.append(1))
    embed(model, x)
    assert heard
    model.__class__ = Doubled
    torch.testing.assert_close(embed(model, x), model.embed(x)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("count", [1, 7, 8, 10, 11, 100])
def test_chunks_cover_every_row_once_and_none_is_short(count):
    found = list(chunks(count, 8))
    assert [row for part in found for row in range(count)[part]] == list(range(count))
    lengths = [part.stop - part.start for part in found]
    assert max(lengths) <= 10
    assert len(lengths) == 1 or min(lengths) > 2


@torch.no_grad()
def test_a_series_readout_takes_the_ordinary_way():
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

    class Seeing(Mlp):
        def forward(self, x):
            seen.append(x.shape[1])
            return super().forward(x)

    model = small()
    for block in model.blocks:
        block.mlp.__class__ = Seeing
    quick = fast(model, compile=False)
    quick(images())
    with torch.no_grad():
        quick(images())
    assert seen == 2 * [16, 16, 1]


@torch.no_grad()
def test_nothing_is_compiled_for_inference(monkeypatch):
    quick = fast(small())
    monkeypatch.setattr(quick, "_with_gradients", lambda *_: pytest.fail("compiled"))
    for size in ((24, 40), (8, 8)):
        quick(images(size=size))


def test_the_gelu_of_the_product_is_near_the_exact_one():
    """The tanh form that bfloat16 products compute on a GPU."""
    x = torch.linspace(-12, 12, 2**18, dtype=torch.float64)
    distance = (nn.functional.gelu(x, approximate="tanh") - nn.functional.gelu(x)).abs()
    assert 4e-4 < distance.max() < 4.8e-4


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


@pytest.mark.parametrize("change", ["number", "module", "parameter", "address", "mode"])
def test_a_changed_model_is_noticed(change):
    model = small()
    before = Snapshot(model)
    assert before.holds()
    with torch.no_grad():
        model.pos_embed.add_(1)
    assert before.holds(), "graphs read the numbers that are there"
    if change == "number":
        model.blocks[1].attn.eps = 1e-5
    elif change == "module":
        model.blocks[1].mlp.act = nn.GELU("tanh")
    elif change == "parameter":
        model.head.bias = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    elif change == "address":
        model.norm.weight.data = model.norm.weight.data.clone()
    else:
        model.blocks[0].drop.train()
    assert not before.holds()
    assert Snapshot(model).holds()


def test_listeners_are_noticed():
    model = small()
    before = Snapshot(model)
    assert not before.heard()
    handle = model.blocks[1].mlp.act.register_forward_hook(lambda *_: None)
    assert before.heard()
    handle.remove()
    assert not before.heard()
    with nn.modules.module.register_module_forward_hook(lambda *_: None):
        assert before.heard()


@torch.no_grad()
def test_hooks_are_called():
    """On blocks, norms, attention, MLPs and their parts; the logits are the model's."""
    model, x, heard = small(), images(), []
    block = model.blocks[1]
    expected = model(x)
    for module in (model.blocks[0], block.norm1, block.attn, block.norm2, block.mlp.fc1, model.norm, model.head):
        module.register_forward_hook(lambda module, *_: heard.append(module))
    torch.testing.assert_close(fast(model, chunk=4)(x), expected, rtol=1e-10, atol=1e-10)
    assert len(heard) == 7


@torch.no_grad()
def test_autocast_is_followed():
    model, x = small(dtype=torch.float32), images(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = fast(model)(x), model(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert (found - expected).norm() <= 0.05 * expected.norm()


@torch.no_grad()
def test_warming_up_says_what_it_did():
    quick = fast(small(), chunk=4)
    seen = []
    quick.model.register_forward_pre_hook(lambda *_: None)
    quick.register_forward_hook(lambda module, inputs, out: seen.append(tuple(inputs[0].shape)))
    report = quick.warm_up(8, (16, 24), batch=2)
    assert seen == [(2, 3, 8, 8), (2, 3, 16, 24)]
    assert report["seconds"] > 0
    assert {name: report[name] for name in ("graphs", "graph_bytes")} == quick.graph_memory()
    quick.warm_up()
    assert seen[-1] == (1, 3, 24, 24)
    with pytest.raises(ValueError, match="batch must be an integer >= 1, got 0"):
        quick.warm_up(batch=0)


def test_a_first_call_within_a_capture_is_refused(monkeypatch):
    quick, x, capturing = fast(small()), images(), [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    with pytest.raises(RuntimeError, match="the first call of a fast model compiles its kernels: call it once before"):
        quick._met_before(x, None)
    capturing[0] = False
    assert quick._met_before(x, None)
    capturing[0] = True
    assert not quick._met_before(x, None), "no graph within a graph"


@torch.no_grad()
def test_no_images_give_no_logits():
    assert fast(small())(images(batch=0)).shape == (0, 5)


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


def test_where_compiling_fails_training_is_eager_and_a_warning_says_so(monkeypatch):
    def fails(graph, inputs):
        raise RuntimeError("no kernel for this\nsecond line")

    torch._dynamo.reset()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, backend=fails, dynamic=False))
    model, x = small(dtype=torch.float32, drop_path_rate=0.5).train(), images(torch.float32, batch=8)
    quick, found = fast(model), []
    with pytest.warns(
        UserWarning, match=r"^not compiled, fast runs eagerly with gradients: RuntimeError: no kernel for this$"
    ):
        found.append(seeded_gradients(quick, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.append(seeded_gradients(quick, x))
    torch.manual_seed(5)
    expected = torch.autograd.grad(model.classify(*model.embed(x)).sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for own in found for a, b in zip(own, expected, strict=True))
    with pytest.raises(ValueError, match="patch_mask must be boolean"):
        quick(x, torch.ones(8, 1, 1))
    torch._dynamo.reset()


def seeded_gradients(quick, x):
    torch.manual_seed(5)
    return torch.autograd.grad(quick(x).sum(), list(quick.model.parameters()))


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
    with pytest.raises(ValueError, match=r"^fp8=True takes widths that are multiples of 16, got \(40, 160\)$"):
        fast(small(dtype=torch.bfloat16, embed_dim=40), fp8=True)
    quick = fast(small(dtype=torch.bfloat16), fp8=True)
    with pytest.raises(ValueError, match="fp8=True takes plain tensors"), torch.autocast("cpu", torch.bfloat16):
        quick(images(torch.bfloat16))
    quick.model.blocks[0].train()
    with pytest.raises(ValueError, match="fp8=True is for inference"):
        quick(images(torch.bfloat16))
