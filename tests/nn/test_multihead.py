"""infsa.nn.MultiheadAttention behaves as torch.nn.MultiheadAttention does, with InfSA inside."""

import copy

import pytest
import torch
from torch import nn

import infsa

E, H = 32, 4
VARIANTS = ["pure", "linear"]


SHARED = {"pure": {"norm": "frobenius"}, "linear": {"pool_queries": True}}  # queries of a call may know each other


def module(variant, **options):
    torch.manual_seed(0)
    return infsa.nn.MultiheadAttention(E, H, variant, **options).double()


def tokens(n=7, batch=3, width=E, seed=1):
    return torch.randn(batch, n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding(batch=3, n=7):
    mask = torch.zeros(batch, n, dtype=torch.bool)
    mask[1, 5:] = True
    mask[2, 2:] = True
    return mask


def expected(mha, query, key, value, **options):
    """Project every token with torch's parameters, run the operator, project back."""
    if mha.in_proj_weight is not None:
        weights = mha.in_proj_weight.chunk(3)
    else:
        weights = (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
    biases = (None,) * 3 if mha.in_proj_bias is None else mha.in_proj_bias.chunk(3)
    q, k, v = (
        nn.functional.linear(x, w, b).unflatten(-1, (H, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    attention = infsa.pure_attention if mha.variant == "pure" else infsa.linear_attention
    z = attention(q, k, v, impl="reference", **options)
    return mha.out_proj(z.expand(-1, -1, query.shape[1], -1).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 20, "vdim": 12}])
@pytest.mark.parametrize("batch_first", [True, False])
def test_equals_the_operator(variant, bias, widths, batch_first):
    mha = module(variant, bias=bias, batch_first=batch_first, **SHARED[variant], **widths)
    query, key, value = tokens(5), tokens(7, width=mha.kdim), tokens(7, width=mha.vdim, seed=2)
    hide = padding()
    want = expected(mha, query, key, value, key_mask=~hide, query_mask=torch.ones(3, 5, dtype=torch.bool))
    inputs = (query, key, value) if batch_first else tuple(x.transpose(0, 1) for x in (query, key, value))
    out, weights = mha(*inputs, key_padding_mask=hide)
    torch.testing.assert_close(out if batch_first else out.transpose(0, 1), want)
    assert weights.shape == (3, 5, 7)
    assert not weights.transpose(1, 2)[hide].any()
    per_head = mha(*inputs, key_padding_mask=hide, average_attn_weights=False)[1]
    torch.testing.assert_close(per_head.mean(1), weights)
    assert mha(*inputs, need_weights=False)[1] is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_those_of_torch(variant):
    for options in ({}, {"bias": False}, {"kdim": 20, "vdim": 12}):
        theirs = nn.MultiheadAttention(E, H, **options)
        ours = infsa.nn.MultiheadAttention(E, H, variant, **options)
        ours.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(ours.state_dict())
        assert isinstance(ours, nn.MultiheadAttention)
        ours._reset_parameters()


@pytest.mark.parametrize("variant", VARIANTS)
def test_unbatched_input(variant):
    mha = module(variant)
    x, hide = tokens()[0], padding()[1]
    out, weights = mha(x, x, x, key_padding_mask=hide)
    batched = x.unsqueeze(1)
    want, want_weights = mha(batched, batched, batched, key_padding_mask=hide[None])
    torch.testing.assert_close(out, want.squeeze(1))
    torch.testing.assert_close(weights, want_weights.squeeze(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_masks_boolean_and_float_agree_and_padding_changes_nothing(variant):
    mha = module(variant, batch_first=True)
    x, hide = tokens(), padding()
    out, _ = mha(x, x, x, key_padding_mask=hide)
    infinite = torch.zeros(3, 7, dtype=torch.float64).masked_fill(hide, -torch.inf)
    torch.testing.assert_close(mha(x, x, x, key_padding_mask=infinite)[0], out)
    lowest = torch.zeros(3, 7).masked_fill(hide, torch.finfo(torch.float32).min)
    torch.testing.assert_close(mha(x, x, x, key_padding_mask=lowest)[0], out)
    alone, _ = mha(x[1:2, :5], x[1:2, :5], x[1:2, :5])
    torch.testing.assert_close(out[1:2, :5], alone)


def test_cross_attention_of_equal_length_keeps_every_query():
    mha = module("pure", batch_first=True, norm="frobenius")
    x, memory, hide = tokens(), tokens(seed=5), padding()
    every = torch.ones(3, 7, dtype=torch.bool)
    out, _ = mha(x, memory, memory, key_padding_mask=hide)
    torch.testing.assert_close(out, expected(mha, x, memory, memory, key_mask=~hide, query_mask=every))
    out, _ = mha(x, memory, memory, key_padding_mask=hide, query_padding_mask=~every)
    torch.testing.assert_close(out, expected(mha, x, memory, memory, key_mask=~hide, query_mask=every))


def test_float_key_padding_mask_is_added_to_the_scores():
    mha = module("pure", batch_first=True)
    x, bias = tokens(), tokens(width=1, seed=9).squeeze(-1)
    out, _ = mha(x, x, x, key_padding_mask=bias)
    torch.testing.assert_close(out, expected(mha, x, x, x, attn_mask=bias[:, None, None, :]))
    with pytest.raises(ValueError, match="only 0 and -inf"):
        module("linear", batch_first=True)(x, x, x, key_padding_mask=bias)


@pytest.mark.parametrize("kind", ["bool", "float", "per head"])
def test_attention_masks(kind):
    mha = module("pure", batch_first=True, norm="frobenius")
    x = tokens()
    hide = torch.rand(3 * H, 7, 7, generator=torch.Generator().manual_seed(3)) < 0.3
    hide[:, 0, 6] = False  # keep one edge into the future: not causal
    given = hide if kind == "per head" else hide[0]
    if kind == "float":
        given = torch.randn(7, 7, dtype=torch.float64).masked_fill(hide[0], -torch.inf)
    ours = ~given if given.dtype == torch.bool else given
    if kind == "per head":
        ours = ours.unflatten(0, (3, H))
    out, _ = mha(x, x, x, attn_mask=given)
    torch.testing.assert_close(out, expected(mha, x, x, x, attn_mask=ours))
    out, _ = mha(x, x, x, attn_mask=given, key_padding_mask=padding())
    torch.testing.assert_close(out, expected(mha, x, x, x, attn_mask=ours, key_mask=~padding()))


@pytest.mark.parametrize("hint", [True, False])
def test_causal_mask_is_recognised_and_future_is_invisible(hint):
    mha = module("pure", batch_first=True)
    x = tokens()
    triangle = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    out, _ = mha(x, x, x, attn_mask=triangle, is_causal=hint)
    torch.testing.assert_close(out, expected(mha, x, x, x, is_causal=True))
    changed = x.clone()
    changed[:, -1] += 1
    assert torch.equal(mha(changed, changed, changed, attn_mask=triangle, is_causal=hint)[0][:, :-1], out[:, :-1])


def test_linear_is_causal_by_chunks_only():
    x = tokens()
    triangle = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    plain, chunked = module("linear", batch_first=True), module("linear", batch_first=True, chunk_size=3)
    with pytest.raises(ValueError, match="cannot apply an attn_mask, got shape"):
        plain(x, x, x, attn_mask=triangle)
    with pytest.raises(ValueError, match="chunk_size"):
        plain(x, x, x, attn_mask=triangle, is_causal=True)
    out, _ = chunked(x, x, x, attn_mask=triangle, is_causal=True, need_weights=False)
    torch.testing.assert_close(out, expected(chunked, x, x, x, causal="chunk", chunk_size=3))
    with pytest.raises(ValueError, match="no other attn_mask than the causal one"):
        chunked(x, x, x, attn_mask=triangle.tril(1), is_causal=True, need_weights=False)


def encoders(variant):
    """An encoder built around our module, and one built by torch whose attention is exchanged afterwards."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True)
    layer.self_attn = infsa.nn.MultiheadAttention(E, H, variant, batch_first=True)
    with pytest.warns(UserWarning, match="use_nested_tensor is False"):
        built = nn.TransformerEncoder(layer, 2)
    exchanged = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True), 2)
    for target, source in zip(exchanged.layers, built.layers, strict=True):
        target.load_state_dict(source.state_dict())
        target.self_attn = copy.deepcopy(source.self_attn)
    return [built.double(), exchanged.double()]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_encoder_never_bypasses_the_module(variant):
    """In eval mode under no_grad torch would run its fused softmax path, and nested tensors for padding."""
    x, hide = tokens(), padding()
    for encoder in encoders(variant):
        assert encoder.layers[0].self_attn.variant == variant
        want, want_padded = encoder.train()(x), encoder(x, src_key_padding_mask=hide)
        encoder.eval()
        with torch.no_grad():
            torch.testing.assert_close(encoder(x), want)
            torch.testing.assert_close(encoder(x, src_key_padding_mask=hide)[~hide], want_padded[~hide])
        with torch.inference_mode():
            torch.testing.assert_close(encoder.layers[0](x), encoder.train().layers[0](x))
        softmax = nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True).double()
        softmax.load_state_dict(encoder.layers[0].state_dict())
        assert (softmax(x) - encoder.layers[0](x)).abs().max() > 0.01


def test_torch_decoder_layer_runs_causally():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(E, H, 64, dropout=0.0, batch_first=True)
    layer.self_attn = infsa.nn.MultiheadAttention(E, H, "pure", batch_first=True)
    layer.multihead_attn = infsa.nn.MultiheadAttention(E, H, "pure", batch_first=True)
    layer = layer.double().eval()
    x, memory = tokens(), tokens(9, seed=4)
    triangle = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    hide = torch.zeros(3, 9, dtype=torch.bool)
    hide[0, 4:] = True
    out = layer(x, memory, tgt_mask=triangle, memory_key_padding_mask=hide)
    changed = memory.clone()
    changed[0, 4:] = 1e3
    torch.testing.assert_close(layer(x, changed, tgt_mask=triangle, memory_key_padding_mask=hide), out)
    later = x.clone()
    later[:, -1] += 1
    assert torch.equal(layer(later, memory, tgt_mask=triangle, memory_key_padding_mask=hide)[:, :-1], out[:, :-1])


def test_the_norm_follows_the_role():
    """Self-attention has the paper's norm, whether or not query and key are one tensor; the rest couples nothing."""
    mha, x, memory = module("pure", batch_first=True), tokens(), tokens(9, seed=4)
    hide = padding()
    want = expected(mha, x, x, x, key_mask=~hide)
    for key in (x, x.clone()):
        torch.testing.assert_close(mha(x, key, x, key_padding_mask=hide)[0], want)
    out, weights = mha(x, memory, memory)
    torch.testing.assert_close(out, expected(mha, x, memory, memory, norm="row"))
    for i in range(x.shape[1]):
        one, row = mha(x[:, i : i + 1], memory, memory)
        torch.testing.assert_close(one, out[:, i : i + 1])
        torch.testing.assert_close(row, weights[:, i : i + 1])


def test_the_row_norm_is_one_function_in_every_role():
    """A step with keys kept from before is the row of the whole causal pass; any mask is safe."""
    mha, x = module("pure", batch_first=True, norm="row"), tokens()
    triangle = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    whole = mha(x, x, x, attn_mask=triangle)[0]
    torch.testing.assert_close(whole, expected(mha, x, x, x, is_causal=True, norm="row"))
    torch.testing.assert_close(mha(x, x.clone(), x, is_causal=True)[0], whole)
    for i in range(7):
        past = x[:, : i + 1]
        torch.testing.assert_close(mha(x[:, i : i + 1], past, past)[0], whole[:, i : i + 1])
    any_mask = torch.rand(7, 7, generator=torch.Generator().manual_seed(3)) < 0.4
    out = mha(x, x, x, attn_mask=any_mask)[0]
    for j in range(7):
        changed = x.clone()
        changed[:, j] += 1
        blind = any_mask[:, j].clone()
        blind[j] = False  # a token knows itself
        assert torch.equal(mha(changed, changed, changed, attn_mask=any_mask)[0][:, blind], out[:, blind])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: module("pure", batch_first=True)(x[:, -1:], x, x), "norm='row' for decoding with cached keys"),
        (lambda x: module("pure", batch_first=True)(x, x, x, attn_mask=torch.eye(7).bool().roll(1, 0)), "norm='row'"),
        (lambda x: module("pure", batch_first=True)(x, x, x, attn_mask=torch.ones(7, 7).triu(1) * -50), "norm='row'"),
        (lambda x: module("pure", batch_first=True)(x, x, x, key_padding_mask=padding() * -50.0), "norm='row'"),
        (lambda x: module("pure", batch_first=True)(x, -x, x, query_padding_mask=padding() * -50.0), "entry -50.0"),
        (lambda x: module("linear", batch_first=True)(x, -x, x), "pool_queries=True"),
        (lambda x: module("linear", batch_first=True)(x, -x, x, query_causal=True), "pool_queries=True"),
        (lambda x: module("linear", norm="row"), "got norm='row'"),
        (lambda x: module("pure", norm="l2"), "got 'l2'"),
        (lambda x: module("pure", pool_queries=True), "norm='frobenius' instead"),
    ],
)  # fmt: skip
def test_what_would_leak_is_refused(use, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as raised:
        use(tokens())
    assert message in str(raised.value)


def test_a_compiled_module_refuses_equal_tensors_that_are_two():
    mha, x = module("pure", batch_first=True), tokens()
    compiled = torch.compile(mha, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, x, x)[0], mha(x, x, x)[0])
    torch.testing.assert_close(compiled(x, -x, x)[0], mha(x, -x, x)[0])
    with pytest.raises(RuntimeError, match="equal but two tensors"):
        compiled(x, x.clone(), x)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gamma_learns(variant):
    mha = module(variant, learn_gamma=True, batch_first=True)
    x = tokens()
    mha(x, x, x)[0].square().sum().backward()
    assert (mha.decay.logit.grad != 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiles_whole(variant):
    mha = module(variant, batch_first=True)
    x, hide = tokens(), padding()
    compiled = torch.compile(mha, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x, x, x, key_padding_mask=hide)[0], mha(x, x, x, key_padding_mask=hide)[0])


def test_a_compiled_linear_module_refuses_what_it_cannot_apply():
    mha = module("linear", batch_first=True)
    x = tokens()
    compiled = torch.compile(mha, fullgraph=True, backend="aot_eager")
    hidden = torch.zeros(3, 7, dtype=torch.float64).masked_fill(padding(), -torch.inf)
    torch.testing.assert_close(compiled(x, x, x, key_padding_mask=hidden)[0], mha(x, x, x, key_padding_mask=hidden)[0])
    with pytest.raises(RuntimeError, match="only 0 and -inf"):
        compiled(x, x, x, key_padding_mask=hidden + 1)


def test_dropout_acts_in_training_only():
    mha = module("pure", dropout=0.5, batch_first=True)
    x = tokens()
    assert not torch.equal(mha(x, x, x)[0], mha(x, x, x)[0])
    mha.eval()
    assert torch.equal(mha(x, x, x)[0], mha(x, x, x)[0])


X = tokens()


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: infsa.nn.MultiheadAttention(30, 4), ValueError, "num_heads must divide embed_dim=30, got 4"),
        (lambda: infsa.nn.MultiheadAttention(E, H, 0.1), ValueError, "got 0.1"),
        (lambda: infsa.nn.MultiheadAttention(E, 0), ValueError, "got 0"),
        (lambda: module("pure", dropout=2.0), ValueError, "dropout must lie in [0, 1), got 2.0"),
        (lambda: module("pure", impl="zzz"), ValueError, "got 'zzz'"),
        (lambda: module("pure", eps=-1.0), ValueError, "got -1.0"),
        (lambda: module("linear", chunk_size=0), ValueError, "got 0"),
        (lambda: module("pure", add_bias_kv=True), ValueError, "add_bias_kv=True"),
        (lambda: module("pure", add_zero_attn=True), ValueError, "add_zero_attn=True"),
        (lambda: module("linear", dropout=0.1), ValueError, "got dropout=0.1"),
        (lambda: module("pure", chunk_size=4), ValueError, "got chunk_size=4"),
        (lambda: module("pure", gamma=0), ValueError, "got 0"),
        (lambda: module("pure", activation="elu"), ValueError, "got 'elu'"),
        (lambda: module("pure")(X, X, X[0]), ValueError, "(7, 32)"),
        (lambda: module("pure")(X, X[:, :, :8], X), ValueError, "got (32, 8, 32)"),
        (lambda: module("pure")(X, X[:2], X), ValueError, "must share the batch"),
        (lambda: module("pure")(X, X, X, attn_mask=torch.ones(7, 7).bool()), ValueError, "got (7, 7)"),
        (lambda: module("pure")(X, X, X, attn_mask=torch.ones(3, 3).int()), TypeError, "got torch.int32"),
        (lambda: module("pure")(X, X, X, key_padding_mask=torch.ones(3, 7).bool()), ValueError, "got (3, 7)"),
        (lambda: module("pure")(X, X, X, key_padding_mask=torch.ones(7, 3).int()), TypeError, "torch.int32"),
    ],
)
def test_wrong_use_is_one_line(use, error, message):
    with pytest.raises(error, match=r"^[^\n]+$") as raised:
        use()
    assert message in str(raised.value)
