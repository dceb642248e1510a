"""PureInfSA and LinearInfSA: equal to projecting every token, whatever is pooled first inside."""

import math

import pytest
import torch

import infsa
from infsa.nn import Decay, LinearInfSA, PureInfSA

DIM, HEADS = 24, 4


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def tokens(batch=2, n=9, seed=0):
    return torch.randn(batch, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mask():
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, 6:] = False
    return real


@pytest.mark.parametrize("hops", [1, 3, math.inf])
@pytest.mark.parametrize("key_mask", [None, mask()])
def test_pure_layer_is_projection_attention_projection(hops, key_mask):
    layer = PureInfSA(DIM, HEADS, hops=hops, gamma=0.6).double()
    x = tokens()
    q, k, v = (heads(part) for part in layer.qkv(x).chunk(3, -1))
    z = infsa.pure_attention(q, k, v, gamma=0.6, hops=hops, key_mask=key_mask, impl="reference")
    expected = layer.proj(z.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, key_mask=key_mask), expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "abs"])
@pytest.mark.parametrize("options", [{}, {"iterations": 3}, {"queries": 4}, {"queries": 2, "iterations": 2}])
@pytest.mark.parametrize("key_mask", [None, mask()])
def test_linear_layer_equals_projecting_every_token(tied, activation, options, key_mask):
    layer = LinearInfSA(DIM, HEADS, tied=tied, activation=activation, **options).double()
    x = tokens().requires_grad_()
    q, v = heads(layer.q(x)), heads(layer.v(x))
    k = q if tied else heads(layer.k(x))
    h = infsa.linear_attention(q, k, v, activation=activation, key_mask=key_mask, impl="reference", **options)
    expected = layer.proj(h.transpose(1, 2).flatten(2)).expand(2, 9, DIM)
    actual = layer(x, key_mask=key_mask)
    real = torch.ones(2, 9, dtype=torch.bool) if key_mask is None else key_mask
    torch.testing.assert_close(actual[real], expected[real])
    parameters = [x, *layer.parameters()]
    loss = [(out[real] * torch.arange(DIM)).square().sum() for out in (actual, expected)]
    for a, b in zip(*(torch.autograd.grad(value, parameters) for value in loss), strict=True):
        torch.testing.assert_close(a, b)


def test_linear_layer_chunk_causal_equals_projecting_every_token():
    layer = LinearInfSA(DIM, HEADS, chunk_size=4).double()
    x = tokens()
    q, v = heads(layer.q(x)), heads(layer.v(x))
    h = infsa.linear_attention(q, q, v, causal="chunk", chunk_size=4, impl="reference")
    expected = layer.proj(h.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, is_causal=True), expected)


def test_linear_layer_projects_no_value_over_tokens():
    """The value and output projections see one row per head and per image, not N."""
    layer = LinearInfSA(DIM, HEADS)
    rows = []
    layer.proj.register_forward_hook(lambda module, args, out: rows.append(args[0].shape[1]))
    layer.v.register_forward_hook(lambda module, args, out: rows.append("value projection ran over tokens"))
    layer(torch.randn(2, 500, DIM))
    assert rows == [1]


def test_linear_output_has_rank_one_over_tokens_and_context_is_its_row():
    layer = LinearInfSA(DIM, HEADS).double()
    x = tokens()
    out = layer(x)
    assert out.shape == x.shape
    assert all(torch.linalg.matrix_rank(item) == 1 for item in out)
    assert torch.equal(layer.context(x), out[:, :1])


@pytest.mark.parametrize("layer", [PureInfSA(DIM, HEADS), LinearInfSA(DIM, HEADS), LinearInfSA(DIM, 2, tied=False)])
def test_padding_changes_nothing(layer):
    layer = layer.double()
    x, real = tokens(), mask()
    out = layer(x, key_mask=real)
    torch.testing.assert_close(out[1:, :6], layer(x[1:, :6]))
    noisy = x.masked_fill(~real[..., None], float("nan"))
    out_of_noise = layer(noisy, key_mask=real)[real]
    assert torch.equal(out_of_noise, out[real])
    out_of_noise.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("make", [PureInfSA, LinearInfSA])
def test_gamma_learns(make):
    layer = make(DIM, HEADS, learn_gamma=True, gamma=0.5)
    torch.testing.assert_close(layer.decay(), torch.full((HEADS,), 0.5))
    optimizer = torch.optim.SGD([layer.decay.logit], lr=1.0)
    x = torch.randn(2, 9, DIM)
    layer(x).square().sum().backward()
    assert (layer.decay.logit.grad != 0).all()
    optimizer.step()
    assert (layer.decay() != 0.5).all()


def test_fixed_gamma_adds_no_parameter():
    assert not list(Decay(4, 0.7).parameters())
    assert Decay(4, 0.7)() == 0.7


def test_triangular_mask_is_recognised_as_causal():
    layer = PureInfSA(DIM, HEADS).double()
    x = tokens()
    triangle = torch.ones(9, 9, dtype=torch.bool).tril()
    out = layer(x, attn_mask=triangle)
    torch.testing.assert_close(out, layer(x, is_causal=True))
    changed = x.clone()
    changed[:, -1] += 1
    assert torch.equal(layer(changed, attn_mask=triangle)[:, :-1], out[:, :-1])


def test_dropout_only_in_training():
    layer = PureInfSA(DIM, HEADS, dropout=0.5)
    x = torch.randn(2, 9, DIM)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("make", [PureInfSA, LinearInfSA])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(make, dtype):
    layer, x = make(DIM, HEADS), torch.randn(2, 9, DIM)
    exact = layer(x)
    with torch.autocast("cpu", dtype=dtype):
        automatic = layer(x)
    half = make(DIM, HEADS)
    half.load_state_dict(layer.state_dict())
    cast = half.to(dtype)(x.to(dtype))
    for out in (automatic, cast):
        assert out.dtype == dtype
        assert (out.float() - exact).abs().max() < 8 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("layer", [PureInfSA(DIM, HEADS, learn_gamma=True), LinearInfSA(DIM, HEADS, queries=2)])
def test_compiles_whole_and_trains(layer):
    x = torch.randn(2, 9, DIM)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("make", [PureInfSA, LinearInfSA])
@pytest.mark.parametrize("options", [{}, {"learn_gamma": True}])
def test_trains_compiled_by_the_default_backend(make, options):
    """The layouts that the compiler plans with must be those that the operators return."""
    torch._dynamo.reset()
    layer = make(DIM, HEADS, **options)
    x = torch.randn(2, 9, DIM)
    torch.compile(layer, fullgraph=True)(x).square().sum().backward()
    compiled = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).square().sum().backward()
    for a, p in zip(compiled, layer.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, atol=1e-5, rtol=1e-4)


class Adapter(torch.nn.Module):
    """A low-rank adapter around a linear layer, as fine-tuning libraries put there."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.down = torch.nn.Linear(linear.in_features, 2, bias=False, dtype=linear.weight.dtype)
        self.up = torch.nn.Linear(2, linear.out_features, bias=False, dtype=linear.weight.dtype)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


@pytest.mark.parametrize("queries", [1, 3])
def test_an_adapted_value_projection_takes_part(queries):
    layer = LinearInfSA(DIM, HEADS, queries=queries).double()
    x = tokens()
    merged = LinearInfSA(DIM, HEADS, queries=queries).double()
    merged.load_state_dict(layer.state_dict())
    layer.v = Adapter(layer.v)
    with torch.no_grad():
        merged.v.weight += layer.v.up.weight @ layer.v.down.weight
    torch.testing.assert_close(layer(x), merged(x))
    layer(x).square().sum().backward()
    assert layer.v.up.weight.grad.abs().max() > 0


@pytest.mark.parametrize("layer", [PureInfSA(DIM, HEADS), LinearInfSA(DIM, HEADS)])
def test_exports_with_dynamic_length(layer):
    layer = layer.eval()
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(layer, (torch.randn(2, 9, DIM),), dynamic_shapes=({1: length},))
    x = torch.randn(2, 17, DIM)
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PureInfSA(30, 4), "num_heads must divide dim=30, got 4"),
        (lambda: LinearInfSA(30, 0), "num_heads must be an integer >= 1, got 0"),
        (lambda: PureInfSA(DIM, HEADS, gamma=1.0), "gamma must lie strictly between 0 and 1, got 1.0"),
        (lambda: LinearInfSA(DIM, HEADS, activation="silu"), "got 'silu'"),
        (lambda: PureInfSA(DIM, HEADS, dropout=0.1, hops=2), "needs hops=1, got hops=2"),
        (lambda: PureInfSA(DIM, HEADS, dropout=2.0), "dropout must lie in [0, 1), got 2.0"),
        (lambda: PureInfSA(DIM, HEADS, hops=0), "got 0"),
        (lambda: PureInfSA(DIM, HEADS, impl="zzz"), "got 'zzz'"),
        (lambda: PureInfSA(DIM, HEADS, eps=-3.0), "got -3.0"),
        (lambda: PureInfSA(DIM, HEADS)(torch.randn(4, DIM)), f"got (4, {DIM})"),
        (lambda: LinearInfSA(DIM, HEADS)(torch.randn(1, 4, 5)), "got (1, 4, 5)"),
        (lambda: LinearInfSA(DIM, HEADS, chunk_size=-3), "got -3"),
        (lambda: LinearInfSA(DIM, HEADS, chunk_size=3, queries=2), "needs queries=1"),
        (lambda: LinearInfSA(DIM, HEADS, queries=2).context(torch.randn(1, 4, DIM)), "queries=2"),
        (lambda: LinearInfSA(DIM, HEADS)(torch.randn(1, 4, DIM), is_causal=True), "chunk_size"),
    ],
)
def test_wrong_use_is_one_line(build, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        build()
    assert message in str(error.value)
