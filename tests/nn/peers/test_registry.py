"""Names, options and what is refused, each in one line."""

import pytest
import torch

from infsa.nn.peers import ATTENTIONS, Attention, attention_options, create_attention

from .helpers import BASE, BLOCK, DIM, HEADS, NAMES, build, tokens


def test_names():
    expected = "softmax linformer performer soft flatten agent mlla infsa_pure infsa_linear mean energy fastformer"
    assert list(ATTENTIONS) == expected.split()
    for name, mechanism in ATTENTIONS.items():
        assert mechanism.name == name
        assert issubclass(mechanism, Attention)
        assert isinstance(create_attention(name, DIM, HEADS, grid=BASE), mechanism)
        assert mechanism.__doc__
        assert mechanism.has_map == (not mechanism.no_map)


def test_every_option_is_documented():
    for name, mechanism in ATTENTIONS.items():
        for option in set(attention_options(name)) - {"bias", "device", "dtype", "extra_proj"}:
            assert f"        {option}: " in mechanism.__doc__, (name, option)
        assert f"{mechanism.__name__}({'192, 3'}" in mechanism.__doc__


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_attention("sofmax", DIM, HEADS, grid=BASE), "got 'sofmax'"),
        (lambda: create_attention("sofmax", DIM, HEADS, grid=BASE), "'agent', 'energy'"),
        (lambda: create_attention("softmax", DIM, HEADS, grid=BASE, gamma=0.5), "softmax takes no option 'gamma'"),
        (lambda: create_attention("softmax", DIM, HEADS, grid=BASE, gamma=0.5), "'fused'"),
        (lambda: create_attention("mean", DIM, HEADS, grid=BASE, hops=2), "mean takes no option 'hops'"),
        (lambda: create_attention("agent", DIM, 3, grid=BASE), "num_heads must divide dim=16, got 3"),
        (lambda: create_attention("agent", DIM, HEADS, grid=14), "grid must be (h, w), got 14"),
        (lambda: create_attention("agent", DIM, HEADS, grid=(14, 0)), "w of grid must be an integer >= 1, got 0"),
        (lambda: create_attention("agent", DIM, HEADS, grid=BASE, num_prefix=-1), "num_prefix"),
        (lambda: create_attention("agent", DIM, HEADS, grid=BASE, agents=50), "agents must be a square number, got 50"),
        (lambda: create_attention("agent", DIM, HEADS, grid=BASE, kernel_size=4), "kernel_size must be odd, got 4"),
        (lambda: create_attention("linformer", DIM, HEADS, grid=BASE, rank=0), "rank must be an integer >= 1, got 0"),
        (lambda: create_attention("performer", DIM, HEADS, grid=BASE, features=0), "features"),
        (lambda: create_attention("performer", DIM, HEADS, grid=BASE, eps=-1.0), "eps must be finite and >= 0"),
        (lambda: create_attention("flatten", DIM, HEADS, grid=BASE, power=0), "power must be at least 1, got 0"),
        (lambda: create_attention("soft", DIM, HEADS, grid=BASE, newton_steps=0), "newton_steps"),
        (lambda: create_attention("mlla", 18, 2, grid=BASE), "dim must be a multiple of 4"),
        (
            lambda: create_attention("softmax", DIM, HEADS, grid=BASE, dropout=1.0),
            "dropout must lie in [0, 1), got 1.0",
        ),
        (lambda: create_attention("energy", DIM, HEADS, grid=BASE, gamma=1.5), "gamma"),
    ],
)
def test_wrong_construction_is_one_line(call, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_wrong_calls_are_one_line(name):
    module = build(name)
    x = tokens()
    for call, message in (
        (lambda: module(x, (4, 4)), "got N=16 with grid=(4, 4) and num_prefix=1"),
        (lambda: module(x, BASE, 0), "got N=16 with grid=(3, 5) and num_prefix=0"),
        (lambda: module(x[0], BASE), "x must have shape (B, N, 16), got (16, 16)"),
        (lambda: module(x[..., :8], BASE), "x must have shape (B, N, 16), got (2, 16, 8)"),
        (lambda: module(x, (3,)), "grid must be (h, w), got (3,)"),
        (lambda: module(x, BASE, key_mask=torch.ones(2, 15, dtype=torch.bool)), "key_mask must have shape (B, N)"),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            call()
        assert message in str(error.value)
    with pytest.raises(TypeError, match="key_mask must be boolean"):
        module(x, BASE, key_mask=torch.ones(2, 16))


@pytest.mark.parametrize("name", ["linformer", "agent"])
def test_learned_prefix_terms_fix_the_number_of_prefix_tokens(name):
    with pytest.raises(ValueError, match=rf"^{name} was built with learned terms for num_prefix=1, got 2$"):
        build(name)(tokens(num_prefix=2), BASE, 2)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("linformer", "agent")])
def test_other_mechanisms_take_any_number_of_prefix_tokens(name):
    assert build(name)(tokens(num_prefix=4), BASE, 4).shape == (2, 19, DIM)


def test_agents_without_biases_take_any_number_of_prefix_tokens():
    assert build("agent", position_bias=False)(tokens(num_prefix=4), BASE, 4).shape == (2, 19, DIM)
