"""The maps: non-negative, of the right shape, and what the forward pass applies to the values."""

import pytest
import torch

from .helpers import BASE, DIM, HEADS, LARGER, MAPPED, NAMES, build, heads_of, joined, tokens

ONE_ROW = ("infsa_linear", "mean", "energy")
ROWS_SUM_TO_ONE = ("softmax", "performer", "agent")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grid", [BASE, LARGER])
@pytest.mark.parametrize("name", MAPPED)
def test_shape_type_and_sign(name, grid, dtype):
    module, x = build(name, dtype=dtype), tokens(grid, dtype=dtype)
    weights = module.weights(x, grid)
    n = x.shape[1]
    assert weights.shape == (2, HEADS, 1 if name in ONE_ROW else n, n)
    assert weights.dtype == dtype
    assert (weights >= 0).all()
    sums = weights.double().sum(-1)
    if name in ROWS_SUM_TO_ONE:
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=8 * torch.finfo(dtype).eps)
    elif name == "infsa_pure":
        norms = weights.double().square().sum((-2, -1))
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-5 + 8 * torch.finfo(dtype).eps)
    else:
        assert (sums <= 1 + 8 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("extra_proj", [False, True])
@pytest.mark.parametrize("grid", [BASE, LARGER])
@pytest.mark.parametrize("name", MAPPED)
def test_forward_applies_the_map_to_the_values(name, grid, extra_proj):
    """Without the convolutions of agent and flatten; ``test_values`` says what the values are."""
    module, x = build(name, extra_proj=extra_proj), tokens(grid)
    if hasattr(module, "conv"):
        torch.nn.init.zeros_(module.conv.weight)
        torch.nn.init.zeros_(module.conv.bias)
    heads = joined(module.weights(x, grid) @ module.values(x))
    expected = module.proj(module.extra(heads) if extra_proj else heads)
    torch.testing.assert_close(module(x, grid), expected.expand_as(x))
    offset = module.proj(module.extra(torch.zeros_like(heads)) if extra_proj else torch.zeros_like(heads))
    torch.testing.assert_close(module.offset().expand_as(offset), offset)


@pytest.mark.parametrize("name", MAPPED)
def test_values_are_projections_times_gamma(name):
    module, x = build(name), tokens()
    v = module.qkv(x)[..., 2 * DIM :] if hasattr(module, "qkv") else module.v(x)
    gamma = 0.7 if hasattr(module, "decay") else 1.0
    torch.testing.assert_close(module.values(x), gamma * heads_of(v))


def test_map_of_several_central_queries_has_a_row_per_token():
    module, x = build("infsa_linear", queries=4), tokens()
    weights = module.weights(x, BASE)
    assert weights.shape == (2, HEADS, 16, 16)
    torch.testing.assert_close(module(x, BASE), module.proj(joined(weights @ module.values(x))))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MAPPED])
def test_mechanisms_without_a_map_say_why(name):
    module = build(name)
    with pytest.raises(ValueError, match=rf"^{name} has no attention map: [^\n]+$"):
        module.weights(tokens(), BASE)
    with pytest.raises(ValueError, match=rf"^{name} has no attention map: [^\n]+$"):
        module.values(tokens())


@pytest.mark.parametrize("name", ["infsa_pure", "infsa_linear"])
def test_gelu_weights_are_signed(name):
    """They are what the heads are made of; maps clamp them."""
    module, x = build(name, activation="gelu").double(), tokens().double()
    weights = module.weights(x, BASE)
    assert (weights < 0).any()
    heads = (weights @ module.values(x)).transpose(1, 2).flatten(2)
    expected = module.proj(heads).expand_as(x)
    torch.testing.assert_close(module(x, BASE), expected, rtol=1e-10, atol=1e-10)


def effective_weights(name, module, x):
    """How a mixed channel of each token depends on that channel of each value, all else held fixed: (N, N)."""
    layer = {"linformer": "qkv", "soft": "v", "mlla": "qk"}[name]
    fixed = getattr(module, layer)(x).detach().requires_grad_()
    getattr(module, layer).register_forward_hook(lambda _, args, out: fixed)
    mixed = []
    module.proj.register_forward_hook(lambda _, args, out: mixed.append(args[0]))
    if hasattr(module, "conv"):
        torch.nn.init.zeros_(module.conv.weight)
    module(x, BASE)
    values, channel = (x, 0) if name == "mlla" else (fixed, 2 * module.dim if name == "linformer" else 0)
    rows = [torch.autograd.grad(y[0], values, retain_graph=True)[0][0, :, channel] for y in mixed[0][0]]
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["linformer", "soft", "mlla"])
def test_mechanisms_without_a_map_do_have_negative_weights(name):
    """The refusal is about the mathematics."""
    options = {"soft": {"landmarks": 3}, "mlla": {"dim": 4, "heads": 1}}
    module = build(name, **options.get(name, {}))
    x = 2 * tokens(batch=1, dim=module.dim)
    assert effective_weights(name, module, x.requires_grad_()).min() < -1e-9
