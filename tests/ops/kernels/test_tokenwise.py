"""The kernels of a fast model: residual and LayerNorm, 8 bits, patches and positions, no further off than PyTorch."""

import copy

import pytest
import torch
from torch import nn

import infsa
from infsa.models import embedding
from infsa.models.embedding import embed
from infsa.models.fp8 import round_rows
from infsa.models.tokenwise import RowNorm
from infsa.ops.dispatch import HAS_TRITON

from ..helpers import generator
from .helpers import DEVICE, DTYPES, rms, unit

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from infsa.models import token_kernels
from infsa.nn.peers.infsa import LinearInfSAAttention


def drawn(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=generator(seed)).to(dtype).to(DEVICE)


def assert_rounded(found, expected, dtype):
    """Within one unit in the last place of the largest number; sums in float32 lose a few of its own."""
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= (4 if dtype == torch.float32 else 1) * unit(
        expected.abs().max().item(), dtype
    )


@pytest.mark.parametrize("many", [None, 3], ids=["one step", "steps"])
@pytest.mark.parametrize("kind", ["nothing", "offset", "added", "all"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "tokens", "part", "begun"),
    [(3, 7, slice(5, 16), [1, 2]), (1, 21, slice(0, 15), [0]), (1, 21, slice(5, 16), [])],
    ids=["images", "first", "later"],
)
def test_residual_and_norm(batch, tokens, part, begun, dtype, kind, many, monkeypatch):
    """A part of the rows of a batch, which may cross from one image to the next; some images begin in it."""
    if many is not None:
        monkeypatch.setattr(token_kernels, "MANY", many)
    dim = 48
    x, added = drawn(0, batch, tokens, dim, dtype=dtype), drawn(1, batch * tokens, dim, dtype=dtype)
    norm = nn.LayerNorm(dim, eps=1e-6, device=DEVICE, dtype=dtype)
    norm.weight.data, norm.bias.data = drawn(3, dim, dtype=dtype), drawn(4, dim, dtype=dtype)
    offset = drawn(2, batch, dim) if kind in ("offset", "all") else None
    row, bias = (drawn(5, batch, dim, dtype=dtype), drawn(6, dim, dtype=dtype)) if kind == "all" else (None, None)
    is_added = kind in ("added", "all")
    kept = x.double().view(-1, dim) + (added.double() if is_added else 0)
    shared = sum((y.double() for y in (offset, row) if y is not None), torch.zeros(batch, dim, device=DEVICE).double())
    sums = kept + shared.repeat_interleave(tokens, 0)
    expected = nn.functional.layer_norm(sums, (dim,), norm.weight.double(), norm.bias.double(), 1e-6)
    for eight, wide in ((False, True), (True, False), (True, True)):
        rows, before = x.clone().view(-1, dim), x.view(-1, dim)
        following = torch.full((batch, dim), torch.nan, device=DEVICE)
        given = {"offset": offset, "row": row, "bias": bias, "following": following}
        run = RowNorm(norm, x, added=is_added, eight=eight, wide=wide, **given)
        out = torch.full_like(rows[part], torch.nan) if wide else None
        found = run(rows[part], part.start, added[part] if is_added else None, out)
        if eight:
            assert_in_eight_bits(*found, expected[part])
        else:
            assert found is out
        if wide:
            assert_rounded(out, expected[part], dtype)
        assert_rounded(rows[part], kept[part], dtype)
        assert torch.equal(rows[: part.start], before[: part.start])
        assert torch.equal(rows[part.stop :], before[part.stop :])
        if begun:
            assert_rounded(following[begun], (shared + (0 if bias is None else bias.double()))[begun], torch.float32)
        assert following[[image for image in range(batch) if image not in begun]].isnan().all()


def assert_in_eight_bits(eight, scale, expected):
    """The nearest of each row's numbers."""
    assert eight.dtype == torch.float8_e4m3fn
    found = eight.double() * scale.double()
    assert ((found - expected).abs() <= expected.abs() * 2**-3.99 + scale * 2**-9.99).all()
    largest = eight.double().abs().amax(1)[expected.abs().amax(1) > 0]
    assert (largest == 448).all()


@pytest.mark.parametrize("gelu", [False, True])
def test_eight_bits_of_rows(gelu):
    x = 3 * drawn(5, 9, 80, dtype=torch.bfloat16)
    x[4] = 0
    x[5] *= 1e-3
    expected = nn.functional.gelu(x.double(), approximate="tanh") if gelu else x.double()
    assert_in_eight_bits(*round_rows(x, gelu), expected)
    if DEVICE == "cuda":  # the interpreter knows no NaN of 8 bits
        x[2, 3] = torch.nan
        assert round_rows(x, gelu)[0][2, 3].isnan()


UNEVEN = {"class_token": False, "global_pool": "avg", "patch_size": (4, 8), "in_chans": 1}


@pytest.mark.parametrize("at_once", [embedding.AT_ONCE, 20])
@pytest.mark.parametrize("options", [{"reg_tokens": 2}, UNEVEN], ids=str)
@torch.no_grad()
def test_patches_and_positions(options, at_once, monkeypatch):
    """Enlarged, shrunk, uneven and unpadded grids, tables larger than patches; all at once, or a few lines."""
    monkeypatch.setattr(embedding, "AT_ONCE", at_once)
    torch.manual_seed(0)
    sizes = {"embed_dim": 48, "depth": 1, "num_heads": 4, "img_size": 40, "dynamic_img_pad": True}
    model = infsa.create_model("infvit_linear_tiny", **sizes, **options)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    model = model.to(DEVICE, torch.bfloat16).eval()
    exact = copy.deepcopy(model).double()
    for batch, size in enumerate(((16, 140), (50, 7)), start=1):
        x = drawn(size[0], batch, model.in_chans, *size, dtype=torch.bfloat16)
        found, plain, wanted = embed(model, x), model.embed(x)[0], exact.embed(x.double())[0]
        assert found.shape == wanted.shape
        assert rms(found - wanted) <= 1.05 * rms(plain - wanted)


@torch.no_grad()
def test_whole_models():
    torch.manual_seed(0)
    sizes = {"embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}
    model = infsa.create_model("infvit_linear_tiny", **sizes)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    model = model.to(DEVICE, torch.bfloat16).eval()
    x = drawn(6, 2, 3, 16, 24, dtype=torch.bfloat16)
    expected = copy.deepcopy(model).double()(x.double())
    assert rms(infsa.models.fast(model, chunk=3)(x) - expected) <= 3 * rms(model(x) - expected)


@pytest.mark.parametrize("changes", [{}, {"attention_options": {"tied": False}, "learn_gamma": True}], ids=str)
@torch.no_grad()
def test_queries_in_eight_bits(changes, monkeypatch):
    """Of one image and of two, with a mask and without; in the end no further off than 8 bits are."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}
    model = infsa.create_model("infvit_linear_tiny", **sizes, **changes)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    model = model.to(DEVICE, torch.bfloat16).eval()
    exact = copy.deepcopy(model).double()
    for block in model.blocks:
        block.attn.impl = "fused"
    given, context = [], LinearInfSAAttention.context
    heard = lambda self, x, mask, q: (given.append(q.shape), context(self, x, mask, q))[1]  # noqa: E731
    monkeypatch.setattr(LinearInfSAAttention, "context", heard)
    x = drawn(6, 2, 3, 64, 96, dtype=torch.bfloat16)
    mask = torch.ones(2, 8, 12, dtype=torch.bool, device=DEVICE)
    mask[1, :, 9:] = False
    for images, hidden in ((x, None), (x, mask), (x[:1], None)):
        expected = exact(images.double(), hidden)
        error = infsa.models.fast(model, chunk=10, fp8=True)(images, hidden) - expected
        assert rms(error) <= 0.1 * rms(expected)
        assert given == [(*images.shape[:1], 97, 48)] * 3
        given.clear()


class Halved(nn.Module):
    """An attention of its own kind: its result lies in memory between other numbers."""

    def forward(self, x, **_):
        return torch.cat([x, -x], 2)[..., : x.shape[2]]


@torch.no_grad()
def test_an_attention_whose_result_is_a_view():
    model = infsa.create_model("infvit_linear_tiny", embed_dim=48, depth=2, num_heads=4, num_classes=7)
    model = model.to(DEVICE).eval()
    model.blocks[0].attn = Halved().eval()
    x = drawn(7, 2, 3, 16, 24)
    torch.testing.assert_close(infsa.models.fast(model, graphs=False)(x), model(x), rtol=1e-4, atol=1e-5)
