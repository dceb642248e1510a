"""Generation: with and without a cache, greedy and by beams, and every way a cache is handled on the way."""

import copy

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

import infsa

from .models import CAUSAL, CROSSED, LINEAR, build, inputs
from .test_families import converted

BOTH = [(name, variant) for name in CAUSAL for variant in ("pure", "linear") if variant == "pure" or name in LINEAR]
STATE = [("llama", "pure"), ("gpt2", "pure"), ("mistral_sliding", "pure"), ("llama", "linear")]


@pytest.mark.parametrize(("name", "variant"), [*BOTH, *((name, "pure") for name in CROSSED)])
@pytest.mark.parametrize("beams", [1, 3])
def test_with_and_without_cache_agree(name, variant, beams):
    model = converted(name, variant)
    call = inputs(name, model)
    if name == "whisper":
        call.pop("decoder_attention_mask")
        call["decoder_input_ids"] = call["decoder_input_ids"][:, :3]
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    with torch.no_grad():
        without = model.generate(**call, **options, use_cache=False)
        if name in (
            "bert_cross",
            "roberta_cross",
        ):  # generate would build a cache that BERT's own cross-attention cannot use
            call["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        assert torch.equal(model.generate(**call, **options, use_cache=True), without)


@pytest.mark.parametrize(("name", "variant"), BOTH)
@pytest.mark.parametrize("sizes", [(1,) * 7, (3, 1, 3)], ids=["one by one", "in parts"])
def test_steps_of_any_size_equal_the_full_pass(name, variant, sizes):
    model = converted(name, variant)
    call = inputs(name, model)
    place = (call["attention_mask"].cumsum(-1) - 1).clamp(min=0) + (name == "roberta_decoder")
    with torch.no_grad():
        full = model(**call, position_ids=place, use_cache=False).logits
        assert_same(steps(model, call, place, sizes), full, call)


def steps(model, call, place, sizes, cache=None, start=0):
    """Logits of consecutive steps, joined."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    found = []
    for size in sizes:
        part = slice(start, start + size)
        mask = call["attention_mask"][:, : start + size]
        ids = call["input_ids"][:, part]
        found.append(
            model(
                input_ids=ids, attention_mask=mask, position_ids=place[:, part], past_key_values=cache, use_cache=True
            ).logits
        )
        start += size
    return torch.cat(found, 1)


def assert_same(found, full, call):
    real = call["attention_mask"].bool()
    torch.testing.assert_close(found[real], full[real], rtol=1e-8, atol=1e-8)


@pytest.fixture(params=STATE, ids="-".join)
def state(request):
    """A model, a padded call, its full logits, and a cache that has seen four of the seven tokens."""
    name, variant = request.param
    model = converted(name, variant)
    call = inputs(name, model)
    place = (call["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache() if name == "gpt2" else DynamicCache(config=model.config)
    with torch.no_grad():
        full = model(**call, position_ids=place, use_cache=False).logits
        steps(model, call, place, (4,), cache)
        yield model, call, place, full, cache


def rows(call, place, full, index):
    return {key: value[index] for key, value in call.items()}, place[index], full[index]


def test_the_state_survives_reordering(state):
    model, call, place, full, cache = state
    order = torch.tensor([1, 1])
    cache.reorder_cache(order)
    call, place, full = rows(call, place, full, order)
    assert_same(steps(model, call, place, (1, 2), cache, start=4), full[:, 4:], {"attention_mask": torch.ones(2, 3)})


def test_the_state_survives_repeating_and_selecting(state):
    model, call, place, full, cache = state
    cache.batch_repeat_interleave(2)
    index = torch.tensor([0, 0, 1, 1])
    cache.batch_select_indices(torch.tensor([3, 0, 1]))
    call, place, full = rows(call, place, full, index[[3, 0, 1]])
    assert_same(steps(model, call, place, (2, 1), cache, start=4), full[:, 4:], {"attention_mask": torch.ones(3, 3)})


def test_the_state_survives_a_copy_and_interleaved_generations(state):
    model, call, place, full, cache = state
    other = copy.deepcopy(cache)
    wrong = {**call, "input_ids": 38 - call["input_ids"] // 2}
    steps(model, wrong, place, (1,), other, start=4)
    first = steps(model, call, place, (1,), cache, start=4)
    steps(model, wrong, place, (1,), other, start=5)
    rest = steps(model, call, place, (2,), cache, start=5)
    assert_same(torch.cat([first, rest], 1), full[:, 4:], {"attention_mask": torch.ones(2, 3)})


def test_the_state_survives_cropping(state):
    model, call, place, full, cache = state
    cache.activate_past_recording()
    wrong = {**call, "input_ids": 38 - call["input_ids"] // 2}
    steps(model, wrong, place, (2,), cache, start=4)
    cache.crop(-2)
    assert_same(steps(model, call, place, (3,), cache, start=4), full[:, 4:], {"attention_mask": torch.ones(2, 3)})


def test_the_state_is_forgotten_by_a_reset(state):
    model, call, place, full, cache = state
    cache.reset()
    if any(layer.keys is not None and layer.keys.numel() for layer in cache.layers):
        pytest.skip("this version of transformers keeps the tokens of a growing cache")
    assert_same(steps(model, call, place, (4, 3), cache), full, call)


def test_the_sums_are_one_per_layer_row_and_head(state):
    model, _, _, _, cache = state
    ways = {settings["variant"] for settings in model.config.infsa["layers"].values()}
    name = "queries" if ways == {"linear"} else "squares"
    for layer in cache.layers:
        assert layer.series[name].shape[:2] == (2, 4)
        assert layer.last(name).shape[:2] == (2, 4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral_sliding", "qwen2_sliding"])
def test_a_static_cache_agrees(name):
    model = converted(name, "pure")
    call = inputs(name, model)
    place = (call["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        full = model(**call, position_ids=place, use_cache=False).logits
        assert_same(steps(model, call, place, (4, 1, 2), StaticCache(model.config, max_cache_len=9)), full, call)
        padded = {**call, "attention_mask": torch.ones_like(call["attention_mask"])}
        whole = torch.arange(7).expand(2, -1)
        full = model(**padded, position_ids=whole, use_cache=False).logits
        assert_same(steps(model, padded, whole, (4, 1, 2), StaticCache(model.config, max_cache_len=9)), full, padded)


def test_cross_attention_counts_its_rows_in_the_cache():
    model = converted("whisper", "pure")
    call = inputs("whisper", model)
    call.pop("decoder_attention_mask")
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    ids = call.pop("decoder_input_ids")
    with torch.no_grad():
        full = model(**call, decoder_input_ids=ids, use_cache=False).logits
        found = [
            model(**call, decoder_input_ids=ids[:, part], past_key_values=cache, use_cache=True).logits
            for part in (slice(0, 3), slice(3, 4), slice(4, 7))
        ]
        torch.testing.assert_close(torch.cat(found, 1), full, rtol=1e-8, atol=1e-8)
        cache.crop(-3)
        again = model(**call, decoder_input_ids=ids[:, 4:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(again, full[:, 4:], rtol=1e-8, atol=1e-8)


def test_a_cache_without_the_sums_is_refused():
    original = build("llama")
    ids = torch.arange(3, 9)[None]
    cache = original(input_ids=ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"model.layers.0.self_attn: the cache holds 6 tokens without the sums"):
        infsa.convert(original)(input_ids=ids[:, :1], past_key_values=cache)


@pytest.mark.parametrize(("name", "variant"), [("gpt2", "pure"), ("gpt2", "linear"), ("gpt2_cross", "pure")])
def test_a_step_has_the_gradient_of_its_own_tokens(name, variant):
    """The norm of the tokens before is a constant: the difference of the step's loss is that of moving it alone."""
    model = converted(name, variant)
    call = inputs(name, model, padded=False)
    ids = call.pop("input_ids")
    call.pop("attention_mask")
    with torch.no_grad():
        cache = model(input_ids=ids[:, :4], use_cache=True, **call).past_key_values
    embeddings = model.get_input_embeddings()(ids[:, 4:]).detach().requires_grad_()
    direction = torch.randn(embeddings.shape, dtype=torch.float64)

    def loss(x):
        return model(inputs_embeds=x, past_key_values=copy.deepcopy(cache), **call).logits.square().mean()

    (gradient,) = torch.autograd.grad(loss(embeddings), embeddings)
    with torch.no_grad():
        rise = (loss(embeddings + 1e-6 * direction) - loss(embeddings - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), rise, rtol=1e-5, atol=1e-8)


def test_gradients_reach_what_the_cache_holds():
    """Keys and values keep their history in it, as they do without conversion."""
    model = converted("llama", "pure")
    ids = torch.arange(3, 9)[None]
    first = model.get_input_embeddings()(ids).detach().requires_grad_()
    cache = model(inputs_embeds=first, use_cache=True).past_key_values
    model(input_ids=ids[:, :1], past_key_values=cache).logits.square().sum().backward()
    assert (first.grad.abs().sum(-1) > 0).all()
    assert all(layer.series["squares"].grad_fn is None for layer in cache.layers)


@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_training_with_a_cache_has_the_same_gradient(variant):
    gradients = []
    for flag in (True, False):
        model = converted("llama", variant)
        call = inputs("llama", model)
        model(**call, labels=call["input_ids"], use_cache=flag).loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients)
