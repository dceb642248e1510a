"""Forward-mode derivatives and torch.func: the reference path answers, or one line says who does."""

import pytest
import torch
from torch.autograd import forward_ad

import infsa

from .helpers import tokens

ATTENTIONS = [infsa.pure_attention, infsa.linear_attention]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_forward_mode_equals_the_reference(attention):
    q, tangent = tokens(0, 6)[:2]
    derivatives = [
        torch.func.jvp(lambda x: attention(x, x, x, **options), (q,), (tangent,))[1]  # noqa: B023
        for options in ({}, {"impl": "reference"})
    ]
    torch.testing.assert_close(*derivatives)
    assert derivatives[0].abs().max() > 0
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, tangent)
        torch.testing.assert_close(forward_ad.unpack_dual(attention(dual, dual, dual)).tangent, derivatives[0])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_functional_gradients_and_batching(attention):
    q = tokens(1, 6)[0]
    gradient = torch.func.grad(lambda x: attention(x, x, x).square().sum())(q)
    leaf = q.clone().requires_grad_()
    attention(leaf, leaf, leaf).square().sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    stacked = torch.stack([q, 2 * q])
    mapped = torch.func.vmap(lambda x: attention(x, x, x))(stacked)
    torch.testing.assert_close(mapped[1], attention(2 * q, 2 * q, 2 * q))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_an_explicit_choice_is_refused_in_one_line(attention):
    q = tokens(2, 6)[0]
    with pytest.raises(ValueError, match=r"^impl='chunked' [^\n]+$"):
        torch.func.jvp(lambda x: attention(x, x, x, impl="chunked"), (q,), (q,))
