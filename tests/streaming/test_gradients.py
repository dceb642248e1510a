"""Streamed gradients equal autograd on the whole image."""

import pytest
import torch
from torch.nn import functional as F

from infsa.streaming import stream_backward

from .helpers import VARIANTS, picture, relative, small
from .test_errors import BAD, Damaged

EXACT = 1e-10


def loss(logits):
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), torch.tensor([2]))


def gradients(model):
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def on_the_whole(model, x):
    value = loss(model(x[None]))
    value.backward()
    return value.detach(), gradients(model)


@pytest.mark.parametrize("strategy", ["recompute", "spill"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_autograd(variant, strategy):
    model, x = small(**VARIANTS[variant]), picture(61, 45)
    value, expected = on_the_whole(model, x)
    result = stream_backward(model, x, loss, tile=24, strategy=strategy)
    found = gradients(model)
    assert result.strategy == strategy
    assert relative(result.loss, value) < EXACT
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(float(gradient.norm()), 1e-12)
        assert float((found[name] - gradient).norm()) / scale < EXACT, name


@pytest.mark.parametrize("tile", [1, 17, 500])
def test_any_tile(tile, tmp_path, monkeypatch):
    model, x = small(depth=2), picture(41, 30)
    expected = on_the_whole(model, x)[1]
    monkeypatch.setattr("infsa.streaming.plan.available", lambda: 0)  # no room in memory
    for options in ({"strategy": "recompute"}, {"strategy": "spill", "scratch": tmp_path}):
        stream_backward(model, x, loss, tile=tile, **options)
        assert all(relative(gradient, expected[name]) < EXACT for name, gradient in gradients(model).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype):
    """Error against float64 at most twice that of autograd in the same type, over all parameters together."""

    def joined(found):
        return torch.cat([found[name].double().flatten() for name in sorted(found)])

    exact = joined(on_the_whole(small(), picture(61, 45))[1])
    model, x = small(dtype), picture(61, 45, dtype)
    own = relative(joined(on_the_whole(model, x)[1]), exact)
    for strategy in ("recompute", "spill"):
        stream_backward(model, x, loss, tile=24, strategy=strategy)
        assert relative(joined(gradients(model)), exact) <= max(2 * own, torch.finfo(dtype).eps)


def test_gradients_add_up_and_frozen_parameters_stay_alone():
    model, x = small(), picture(40, 40)
    expected = on_the_whole(model, x)[1]
    model.blocks[1].attn.q.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    stream_backward(model, x, loss, tile=16)
    assert model.blocks[1].attn.q.weight.grad is None
    assert relative(model.head.weight.grad - 1, expected["head.weight"]) < EXACT
    assert relative(model.pos_embed.grad, expected["pos_embed"]) < EXACT


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="global_pool 'token' or 'avg', got 'max'"):
        stream_backward(small(global_pool="max"), picture(), loss)
    with pytest.raises(ValueError, match="scalar"):
        stream_backward(small(), picture(), lambda logits: logits[0], tile=32)
    with pytest.raises(TypeError, match="scalar tensor, got float"):
        stream_backward(small(), picture(), lambda logits: logits.sum().item(), tile=32)
    with pytest.raises(ValueError, match=r"tile 1 \(pixels 0:24, 24:48\): unreadable$"):
        stream_backward(small(), Damaged(picture(), BAD), loss, tile=24)
    with pytest.raises(ValueError, match="dropout"):
        stream_backward(small(drop_rate=0.1).train(), picture(), loss)
