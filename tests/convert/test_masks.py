"""Padding does not leak, the future does not leak, and a mask that cannot be kept is an error that names the layer."""

import pytest
import torch
import torchvision
from timm.layers import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

import infsa

from .models import build
from .oracle import Formula

N, REAL = 10, 7


def layer(kind):
    torch.manual_seed(0)
    if kind is EvaAttention:
        return kind(16, 2, scale_norm=False).double().eval()
    return kind(16, 2).double().eval()


def padding(form):
    real = torch.arange(N) < REAL
    return {
        "keys": real[None, None, None].expand(2, 1, 1, N),
        "pairs": (real[:, None] & real)[None, None].expand(2, 1, N, N),
        "additive": torch.zeros(2, 1, 1, N).double().masked_fill(~real, -torch.inf),
    }[form]


@pytest.mark.parametrize("form", ["keys", "pairs", "additive"])
@pytest.mark.parametrize("variant", ["pure", "linear"])
@pytest.mark.parametrize("kind", [Attention, AttentionRope, EvaAttention])
def test_padded_tokens_change_nothing(kind, variant, form):
    converted = infsa.convert(layer(kind), variant)
    x = torch.randn(2, N, 16, dtype=torch.float64)
    other = x.clone()
    other[:, REAL:] = torch.randn(2, N - REAL, 16).double() * 100
    mask = padding(form)
    alone = converted(x[:, :REAL])
    for tokens in (x, other):
        torch.testing.assert_close(converted(tokens, attn_mask=mask)[:, :REAL], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("variant", ["pure", "linear"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_attended_to_as_padded_ones(variant):
    """torch packs a padded batch into a nested tensor when an encoder runs without gradients."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = infsa.convert(nn.TransformerEncoder(block, 2, enable_nested_tensor=True).eval(), variant)
    x, hidden = torch.randn(2, N, 16), (torch.arange(N) >= REAL).expand(2, N)
    with torch.no_grad():
        nested = encoder(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(nested[:, :REAL], encoder(x, src_key_padding_mask=hidden)[:, :REAL])


@pytest.mark.parametrize("variant", ["pure", "linear"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_in_torch_layers(variant, batch_first):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first).double().eval()
    converted = infsa.convert(encoder, variant)
    x = torch.randn(2, N, 16, dtype=torch.float64)
    hidden = (torch.arange(N) >= REAL).expand(2, N)

    def run(tokens, **mask):
        y = converted(tokens if batch_first else tokens.transpose(0, 1), **mask)
        return y if batch_first else y.transpose(0, 1)

    other = x.clone()
    other[:, REAL:] = 50
    alone = run(x[:, :REAL])
    for tokens in (x, other):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):  # torch's fused path, which would run softmax, opens without gradients
                out = run(tokens, src_key_padding_mask=hidden)[:, :REAL]
                torch.testing.assert_close(out, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("additive", [True, False])
def test_a_token_that_a_mask_hides_from_all_is_padding(additive):
    torch.manual_seed(0)
    layer = infsa.convert(nn.MultiheadAttention(16, 2, batch_first=True).double())
    x = torch.randn(2, N, 16, dtype=torch.float64)
    hidden = (torch.arange(N) >= REAL).expand(N, N)
    mask = torch.zeros(N, N).double().masked_fill(hidden, -torch.inf) if additive else hidden
    alone = layer(x[:, :REAL], x[:, :REAL], x[:, :REAL])
    for found, wanted in zip(layer(x, x, x, attn_mask=mask), alone, strict=True):
        torch.testing.assert_close(found[:, :REAL, : wanted.shape[-1]], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", ["flag", "boolean", "additive"])
@pytest.mark.parametrize("kind", [Attention, AttentionRope, EvaAttention])
def test_causal_calls_have_no_future(kind, how):
    original = layer(kind)
    converted = infsa.convert(original)
    lower = torch.ones(N, N, dtype=torch.bool).tril()
    call = {
        "flag": {"is_causal": True},
        "boolean": {"attn_mask": lower},
        "additive": {"attn_mask": torch.zeros(N, N).double().masked_fill(~lower, -torch.inf)},
    }[how]
    x = torch.randn(2, N, 16, dtype=torch.float64)
    out = converted(x, **call)
    with Formula():
        torch.testing.assert_close(out, original(x, **call), rtol=1e-9, atol=1e-10)
    later = x.clone()
    later[:, -1] += 5
    torch.testing.assert_close(converted(later, **call)[:, :-1], out[:, :-1], rtol=1e-12, atol=1e-13)
    assert not torch.allclose(converted(later, **call)[:, -1], out[:, -1])


def decoder(**options):
    torch.manual_seed(0)
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, 0.0, **options), 2).double().eval()


@pytest.mark.parametrize("options", [{"batch_first": True}, {"norm_first": True}])
@pytest.mark.parametrize("memory_mask", [False, True])
def test_a_decoder_has_no_future(options, memory_mask):
    """Nor does its cross-attention, where a norm over all targets would let later ones in."""
    converted = infsa.convert(decoder(**options))
    target, memory = (torch.randn(2, n, 16, dtype=torch.float64) for n in (N, 6))
    mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64)
    hidden = (torch.rand(N, 6) < 0.3) if memory_mask else None

    def run(target):
        x, y = (target, memory) if "batch_first" in options else (target.transpose(0, 1), memory.transpose(0, 1))
        out = converted(x, y, tgt_mask=mask, memory_mask=hidden)
        return out if "batch_first" in options else out.transpose(0, 1)

    out = run(target)
    later = target.clone()
    later[:, -1] += 5
    change = (run(later) - out).abs().amax((0, 2))
    assert change[:-1].max() < 1e-12
    assert change[-1] > 1e-3


def test_causal_cross_attention_is_divided_by_the_norm_of_the_rows_so_far():
    torch.manual_seed(0)
    original = nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True).double().eval()
    cross = infsa.convert(original).multihead_attn
    query, memory = (torch.randn(2, n, 16, dtype=torch.float64) for n in (N, 6))
    out, weights = cross(query, memory, memory, query_causal=True)
    for i in range(N):
        upto = cross(query[:, : i + 1], memory, memory)
        torch.testing.assert_close(out[:, i], upto[0][:, i], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(weights[:, i], upto[1][:, i], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_padded_targets_of_a_decoder_change_nothing(causal):
    converted = infsa.convert(decoder(batch_first=True))
    target, memory = (torch.randn(2, n, 16, dtype=torch.float64) for n in (N, 6))
    hidden = (torch.arange(N) < N - REAL).expand(2, N)  # padding first: then causality alone does not hide it
    mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64) if causal else None
    short = mask[:REAL, :REAL] if causal else None
    alone = converted(target[:, N - REAL :], memory, tgt_mask=short)
    padding = torch.zeros(2, N).double().masked_fill(hidden, -torch.inf) if causal else hidden  # torch wants one type
    out = converted(target, memory, tgt_mask=mask, tgt_key_padding_mask=padding)
    torch.testing.assert_close(out[:, N - REAL :], alone, rtol=1e-10, atol=1e-12)


def test_linear_refuses_causal_targets():
    converted = infsa.convert(decoder(batch_first=True), "linear", chunk_size=2)
    target, memory = (torch.randn(2, n, 16, dtype=torch.float64) for n in (N, 6))
    mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64)
    assert converted(target, memory).isfinite().all()
    with pytest.raises(ValueError, match=r"^layers.0.multihead_attn: .*later"):
        converted(target, memory, tgt_mask=mask)


class Custom(nn.TransformerDecoderLayer):
    """A block whose forward may do anything."""


def test_layers_of_a_foreign_decoder_get_the_row_norm():
    plan = infsa.plan_conversion(Custom(16, 2))
    assert [layer.norm for layer in plan] == ["row", "row"]
    assert "norm='row'" in plan.notes()[0]
    assert "pure (row norm)" in str(plan)


@pytest.mark.parametrize("kind", [Attention, AttentionRope, EvaAttention])
def test_linear_is_causal_by_chunks_or_not_at_all(kind):
    model = nn.Sequential(layer(kind))
    x = torch.randn(2, N, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^0: Linear-InfSA is causal by chunks only"):
        infsa.convert(model, "linear")[0](x, is_causal=True)
    chunked = infsa.convert(model, "linear", chunk_size=3)[0]
    out = chunked(x, is_causal=True)
    with Formula("linear", chunk_size=3):
        torch.testing.assert_close(out, model[0](x, is_causal=True), rtol=1e-9, atol=1e-10)
    later = x.clone()
    later[:, -1] += 5
    torch.testing.assert_close(chunked(later, is_causal=True)[:, :-1], out[:, :-1], rtol=1e-12, atol=1e-13)


def test_linear_refuses_other_masks_by_name():
    x = torch.randn(2, N, 16, dtype=torch.float64)
    band = torch.ones(N, N, dtype=torch.bool).triu(-2).tril(2)
    timm_layer = infsa.convert(nn.Sequential(layer(Attention)), "linear")[0]
    for mask in (band, torch.zeros(N, N).double().masked_fill(~band, -torch.inf), torch.randn(N, N).double()):
        with pytest.raises(ValueError, match=r"^0: Linear-InfSA keeps masks of padding only"):
            timm_layer(x, attn_mask=mask)
    encoder = infsa.convert(nn.TransformerEncoderLayer(16, 2, batch_first=True).double().eval(), "linear")
    with pytest.raises(ValueError, match=r"^self_attn: .*attn_mask"):
        encoder(x, src_mask=~band)
    with pytest.raises(ValueError, match=r"^self_attn: .*chunk"):
        encoder(x, is_causal=True)


def test_pure_keeps_a_mask_over_pairs():
    original = layer(Attention)
    x = torch.randn(2, N, 16, dtype=torch.float64)
    band = torch.ones(N, N, dtype=torch.bool).triu(-2).tril(2)
    with Formula():
        expected = original(x, attn_mask=band)
    torch.testing.assert_close(infsa.convert(original)(x, attn_mask=band), expected, rtol=1e-9, atol=1e-10)


def test_padding_of_incomplete_windows_is_hidden():
    """Tokens of a map that no window size divides give what they give among themselves."""
    torch.manual_seed(0)
    attention = torchvision.models.swin_transformer.ShiftedWindowAttention(8, [4, 4], [0, 0], 2).double().eval()
    converted = infsa.convert(attention)
    x = torch.randn(1, 6, 6, 8, dtype=torch.float64)
    out = converted(x)
    corner = x[:, 4:, 4:]  # the tokens of the last window, alone
    q, k, v = attention.qkv(corner.flatten(1, 2)).view(1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
    bias = attention.get_relative_position_bias()[:, :, [0, 1, 4, 5]][..., [0, 1, 4, 5]]
    z = infsa.pure_attention(q, k, v, attn_mask=bias.detach())
    expected = attention.proj(z.transpose(1, 2).flatten(2)).view(1, 2, 2, 8)
    torch.testing.assert_close(out[:, 4:, 4:], expected, rtol=1e-10, atol=1e-12)


def test_windows_do_not_see_each_other():
    model, _, _ = build("torchvision swin")
    attention = infsa.convert(model.features[1][1].attn)  # shifted by one
    tokens = torch.randn(1, 12, 12, 8, dtype=torch.float64)
    later = tokens.clone()
    later[:, 0, 0] += 3
    changed = (attention(later) - attention(tokens)).abs().amax(-1)[0] > 1e-12
    window = torch.zeros(12, 12, dtype=torch.bool)
    window[[[-2], [-1], [0]], [-2, -1, 0]] = True  # the corners that the shift brings together, one norm
    assert not changed[~window].any()
    assert changed[0, 0]


def prefix_mask(prefix: int) -> torch.Tensor:
    """Both directions within the first tokens, causal after them."""
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    mask[:prefix, :prefix] = True
    return mask


@pytest.mark.parametrize("mask", [prefix_mask(3), torch.ones(N, N, dtype=torch.bool).triu()], ids=["prefix", "reverse"])
def test_a_direction_that_the_norm_would_leak_against_is_refused(mask):
    x = torch.randn(2, N, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="another direction"):
        infsa.convert(layer(Attention))(x, attn_mask=mask)
    encoder = infsa.convert(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 1).double())
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn: Pure InfSA keeps causal masks"):
        encoder.eval()(x, mask=~mask)


def test_masks_without_a_direction_are_kept():
    """Blocks, rows that see nothing, and rows of padding, which may hold anything."""
    x, converted = torch.randn(2, N, 16, dtype=torch.float64), infsa.convert(layer(Attention))
    blocks = torch.block_diag(torch.ones(2, 2), torch.ones(N - 2, N - 2)).bool()
    silent = torch.ones(N, N, dtype=torch.bool)
    silent[1] = False
    padded = torch.ones(N, N, dtype=torch.bool)
    padded[:, -2:] = False
    for mask in (blocks, silent, padded, prefix_mask(1)):
        assert converted(x, attn_mask=mask).isfinite().all()
