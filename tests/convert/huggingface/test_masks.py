"""Padding does not leak, the future does not leak, and masks that cannot be kept are refused."""

import pytest
import torch
import transformers as hf
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

import infsa
from infsa.conversion.huggingface import infsa_mask

from .models import CAUSAL, CROSSED, LINEAR, build, inputs, settings
from .test_families import converted

TEXT = ["bert", "roberta", "clip", "siglip", *CAUSAL, *CROSSED]
BOTH = [(name, variant) for name in TEXT for variant in ("pure", "linear") if variant == "pure" or name in LINEAR]
ORDERED = [(name, variant) for name, variant in BOTH if name in [*CAUSAL, *CROSSED, "clip"]]


def ids_of(name):
    return ("decoder_input_ids", "decoder_attention_mask") if name == "whisper" else ("input_ids", "attention_mask")


def hidden(name, model, call):
    """One row of numbers per text token."""
    if name in ("clip", "siglip"):
        return model.text_model(input_ids=call["input_ids"], attention_mask=call["attention_mask"]).last_hidden_state
    return model(**call).logits


@pytest.mark.parametrize(("name", "variant"), BOTH)
def test_padding_does_not_leak(name, variant):
    model = converted(name, variant)
    call = inputs(name, model)
    tokens, mask = ids_of(name)
    other = {**call, tokens: torch.where(call[mask].bool(), call[tokens], 38 - call[tokens] // 2)}
    assert not torch.equal(other[tokens], call[tokens])
    real = call[mask].bool()
    with torch.no_grad():
        assert torch.equal(hidden(name, model, call)[real], hidden(name, model, other)[real])


@pytest.mark.parametrize(("name", "variant"), BOTH)
def test_a_padded_row_gives_what_it_gives_alone(name, variant):
    model = converted(name, variant)
    call = inputs(name, model)
    tokens, mask = ids_of(name)
    real = call[mask][0].bool()
    alone = {key: value[:1] for key, value in call.items()}
    alone |= {tokens: call[tokens][:1, real], mask: call[mask][:1, real]}
    if not name.startswith(("bert", "roberta", "clip", "siglip", "gpt2", "whisper")):
        place = (call[mask].cumsum(-1) - 1).clamp(min=0)
        call, alone = {**call, "position_ids": place}, {**alone, "position_ids": place[:1, real]}
    elif not real[0]:  # absolute positions, padding on the left: say which place each token has
        place = (call[mask].cumsum(-1) - 1).clamp(min=0)
        if name.startswith("roberta"):
            place = place + 1
        key = "decoder_position_ids" if name == "whisper" else "position_ids"
        call, alone = {**call, key: place}, {**alone, key: place[:1, real]}
    with torch.no_grad():
        torch.testing.assert_close(
            hidden(name, model, call)[0, real], hidden(name, model, alone)[0], rtol=1e-9, atol=1e-9
        )


def test_padded_pixels_do_not_leak_through_the_norm():
    model = infsa.convert(build("detr"))
    features = torch.randn(2, 4, 16, dtype=torch.float64)
    layer = model.model.encoder.layers[0].self_attn
    mask = torch.tensor([[True, False, True, False], [True] * 4])
    bias = torch.where(mask, 0.0, -torch.inf).double()[:, None, None]
    other = torch.where(mask[..., None], features, 9.0)
    first, second = (layer(x, attention_mask=bias)[0][mask] for x in (features, other))
    assert torch.equal(first, second)
    torch.testing.assert_close(layer(features[:1, ::2])[0][0], first[:2])


def test_a_hidden_patch_does_not_leak_beside_a_position_bias():
    for name in ("beit", "beit_shared"):
        model = infsa.convert(build(name)).beit
        images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
        other = images.clone()
        other[:, :, 8:, 8:] += 3  # the last of four patches
        seen = torch.tensor([[1, 1, 1, 1, 0]] * 2)
        hidden = [model(x, attention_mask=seen).last_hidden_state[:, :4] for x in (images, other)]
        assert torch.equal(*hidden)
        assert not torch.allclose(model(images).last_hidden_state[:, :4], hidden[0])


def test_padding_alone_costs_no_matrix():
    real = torch.tensor([[False, True, True]])
    for function in (causal_mask_function, bidirectional_mask_function):
        mask = infsa_mask(1, 3, 3, mask_function=function, attention_mask=real)
        assert torch.equal(mask, real[:, None, None])
        assert infsa_mask(1, 3, 3, mask_function=function) is None
    step = infsa_mask(1, 2, 3, q_offset=1, attention_mask=real)
    assert torch.equal(step, torch.tensor([[[[False, True, False], [False, True, True]]]]))


@pytest.mark.parametrize(("name", "variant"), ORDERED)
def test_no_earlier_output_changes_when_a_later_token_does(name, variant):
    model = converted(name, variant)
    call = inputs(name, model)
    tokens, _ = ids_of(name)
    for place in range(3, call[tokens].shape[1]):
        other = call[tokens].clone()
        other[:, place] = 38 - other[:, place] // 2
        with torch.no_grad():
            first, second = (hidden(name, model, {**call, tokens: x}) for x in (call[tokens], other))
        assert torch.equal(first[:, :place], second[:, :place])
        assert not torch.equal(first[:, place:], second[:, place:])


def test_a_window_keeps_edges_out_but_not_the_running_norm():
    layer = infsa.convert(build("mistral_sliding")).model.layers[0].self_attn
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    places = (torch.ones(1, 6, 4, dtype=torch.float64), torch.zeros(1, 6, 4, dtype=torch.float64))
    place = torch.arange(6)
    window = ((place <= place[:, None]) & (place > place[:, None] - 3))[None, None]
    other = x.clone()
    other[:, 0] *= -1
    first, second = (layer(y, places, window)[0] for y in (x, other))
    assert (first[0, 3:] - second[0, 3:]).abs().max() > 0  # token 0 left the window, its row stays in F


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("beit", {}, "relative position bias would be dropped"),
        ("mistral_sliding", {"chunk_size": 2}, "sliding window of 3"),
        ("whisper", {"chunk_size": 2}, r"decoder.layers.0.encoder_attn, .*future would leak"),
        ("llama", {}, r"model.layers.0.self_attn, .*chunk_size"),
        ("vit", {"level": "surgery"}, "surgery"),
    ],
)
def test_linear_refuses_what_it_would_drop(name, options, reason):
    with pytest.raises(ValueError, match=reason):
        infsa.convert(build(name), "linear", **options)


def test_packed_sequences_are_refused():
    model = infsa.convert(build("llama"))
    with pytest.raises(ValueError, match="packed sequences"):
        model(input_ids=torch.arange(3, 9)[None], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)


def test_a_causal_layer_refuses_a_mask_that_lets_the_future_in():
    model = infsa.convert(build("llama"))
    ids = torch.arange(3, 9)[None]
    both_ways = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    both_ways[..., :3, :3] = True
    with pytest.raises(ValueError, match=r"model.layers.0.self_attn: this layer is causal, but its mask"):
        model(input_ids=ids, attention_mask=both_ways)
    every = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    other = torch.cat([ids[:, :5], ids[:, :1]], 1)
    first, second = (
        model(input_ids=x, attention_mask=every, is_causal=False, use_cache=False).logits for x in (ids, other)
    )
    assert not torch.allclose(first[:, 0], second[:, 0])


def test_masks_between_groups_of_queries_are_refused():
    model = infsa.convert(build("rt_detr"))
    layer = model.model.decoder.layers[0].self_attn
    with pytest.raises(ValueError, match=r"model.decoder.layers.0.self_attn: a mask must be a 4-D tensor"):
        layer(torch.randn(1, 4, 16, dtype=torch.float64), attention_mask=torch.zeros(4, 4))


@pytest.mark.parametrize("option", ["softcap", "s_aux", "position_bias"])
def test_what_other_models_add_to_a_call_is_refused(option):
    layer = infsa.convert(build("vit")).vit.layers[0].attention
    with pytest.raises(ValueError, match=rf"vit.layers.0.attention: InfSA cannot keep {option}"):
        layer(torch.randn(1, 3, 16, dtype=torch.float64), **{option: torch.ones(1)})


def test_linear_refuses_a_mask_over_pairs():
    model = infsa.convert(build("bert"), "linear")
    pairs = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"bert.encoder.layer.0.attention.self: Linear-InfSA keeps masks of padding"):
        model(input_ids=torch.arange(3, 9)[None], attention_mask=pairs)
    causal = infsa.convert(build("llama"), "linear", chunk_size=2)
    with pytest.raises(ValueError, match=r"model.layers.0.self_attn: .*another mask over pairs"):
        causal(input_ids=torch.arange(3, 9)[None], attention_mask=~pairs.tril(-3) & pairs)


def test_a_model_of_an_unknown_class_is_refused():
    config = hf.MPNetConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ValueError, match=r"encoder.layer.0.attention.attn .*this attention class is not supported"):
        infsa.convert(hf.MPNetModel(config))


@pytest.mark.parametrize("variant", ["pure", "linear"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_other_masks_of_the_library_mean_the_same(variant, implementation):
    """Layers that keep their attention share the mask with converted ones; no converted layer may care which it is."""
    model = build("llama")
    model.set_attn_implementation(implementation)
    mixed = infsa.convert(model, variant, exclude="*.1.self_attn", **settings(variant))
    call = inputs("llama", model)
    real = call["attention_mask"].bool()
    other = {**call, "input_ids": torch.where(real, call["input_ids"], 5)}
    answers = [mixed(**x, use_cache=flag).logits[real] for x in (call, other) for flag in (False, True)]
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0])
