"""Blocks of one's own: whatever role a converted layer plays, no query learns of another that it may not know."""

import pytest
import torch
from torch import nn

import infsa

N, M, WIDTH = 7, 5, 16
LOW = [-torch.inf, -1e9, -1e4, torch.finfo(torch.float16).min, torch.finfo(torch.float32).min, -100.0]


def attention():
    return nn.MultiheadAttention(WIDTH, 2, batch_first=True)


class Decoder(nn.Module):
    """Causal self-attention, then cross-attention; one layer may serve for both."""

    def __init__(self, shared=False, twice=False):
        super().__init__()
        self.inner, self.norm = attention(), nn.LayerNorm(WIDTH)
        self.outer = self.inner if shared else attention()
        self.twice = twice

    def forward(self, x, memory, mask, padding=None):
        y = self.norm(x)
        key = self.norm(x) if self.twice else y  # equal to y, another tensor
        x = x + self.inner(y, key, y, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]
        return x + self.outer(self.norm(x), memory, memory, need_weights=False)[0]


def tensors(*lengths, batch=2, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, n, WIDTH, dtype=torch.float64, generator=g) for n in lengths]


def triangle(low=-torch.inf, n=N):
    return torch.full((n, n), low, dtype=torch.float64).triu(1).nan_to_num(nan=0.0, neginf=low)


def converted(block, variant="pure", **settings):
    torch.manual_seed(0)
    return infsa.convert(block.double().eval(), variant, **settings)


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("options", [{}, {"shared": True}, {"twice": True}], ids=str)
def test_the_future_stays_unknown(options, low):
    block = converted(Decoder(**options))
    (x, memory), mask = tensors(N, M), triangle(low)
    out = block(x, memory, mask)
    for i in range(1, N):
        later = x.clone()
        later[:, i:] += 1
        assert torch.equal(block(later, memory, mask)[:, :i], out[:, :i])


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("twice", [False, True], ids=["one tensor", "two tensors"])
def test_padding_changes_nothing(twice, low):
    block = converted(Decoder(twice=twice))
    x, memory = tensors(N, M)
    alone = block(x[:, :4], memory, None)
    for padding in (torch.arange(N) >= 4, torch.where(torch.arange(N) >= 4, low, 0.0).double()):
        torch.testing.assert_close(block(x, memory, None, padding.expand(2, N))[:, :4], alone, rtol=1e-10, atol=1e-12)
        other = torch.cat([x[:, :4], 100 * x[:, 4:]], 1)
        torch.testing.assert_close(block(other, memory, None, padding.expand(2, N))[:, :4], alone)


def test_a_step_with_keys_kept_from_before_is_the_row_of_the_whole_pass():
    layer = converted(attention())
    (x,) = tensors(N)
    whole = layer(x, x, x, attn_mask=triangle(), need_weights=False)[0]
    for i in range(N):
        step = layer(x[:, i : i + 1], x[:, : i + 1], x[:, : i + 1], need_weights=False)[0]
        torch.testing.assert_close(step, whole[:, i : i + 1], rtol=1e-12, atol=1e-13)


def test_one_layer_in_both_roles_of_torchs_decoder():
    block = nn.TransformerDecoderLayer(WIDTH, 2, 32, 0.0, batch_first=True)
    block.multihead_attn = block.self_attn
    assert [layer.norm for layer in infsa.plan_conversion(block)] == ["row"]
    block = converted(block)
    x, memory = tensors(N, M)
    out = block(x, memory, tgt_mask=triangle())
    later = x.clone()
    later[:, -1] += 1
    assert torch.equal(block(later, memory, tgt_mask=triangle())[:, :-1], out[:, :-1])


def test_a_class_that_only_bears_a_known_name_is_not_known():
    class EncoderBlock(Decoder):
        pass

    assert {layer.norm for layer in infsa.plan_conversion(EncoderBlock())} == {"row"}
    repeated = nn.TransformerEncoderLayer(WIDTH, 2)
    plan = infsa.plan_conversion(nn.ModuleList([repeated, repeated]))  # one layer twice, in one role
    assert [layer.norm for layer in plan] == ["frobenius"]


def test_a_mask_that_is_low_but_not_low_enough_is_refused_where_a_norm_is_shared():
    layer = converted(nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True))
    (x,) = tensors(N)
    assert layer(x, src_mask=torch.randn(N, N).double()).isfinite().all()  # a bias
    with pytest.raises(ValueError, match=r"^self_attn: .*norm='row' would not$"):
        layer(x, src_mask=triangle(-50.0))
    with pytest.raises(ValueError, match=r"^self_attn: .*norm='row' would not$"):
        layer(x, src_key_padding_mask=torch.tensor([[0.0] * 6 + [-50.0]] * 2).double())


def test_nan_in_a_mask_is_not_hidden():
    layer = converted(nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True))
    (x,) = tensors(N)
    mask = triangle()
    mask[4, 1] = torch.nan
    out = layer(x, src_mask=mask)
    assert out[:, :4].isfinite().all()
    assert out[:, 4:].isnan().all()


@pytest.mark.parametrize("options", [{}, {"shared": True}], ids=str)
def test_linear_refuses_to_pool_queries_that_may_not_know_each_other(options):
    block = converted(Decoder(**options), "linear", chunk_size=2)
    x, memory = tensors(N, M)
    with pytest.raises(ValueError, match=r"^(inner|outer): Linear-InfSA pools .* pool_queries=True"):
        block(x, memory, None)
    told = converted(Decoder(**options), "linear", pool_queries=True)
    assert told(x, memory, None).isfinite().all()


def test_linear_self_attention_with_two_equal_tensors_and_padding():
    layer = converted(attention(), "linear")
    (x,) = tensors(N)
    padding = (torch.arange(N) >= 4).expand(2, N)
    alone = layer(x[:, :4], x[:, :4], x[:, :4])[0]
    torch.testing.assert_close(layer(x, x.clone(), x, key_padding_mask=padding)[0][:, :4], alone)
