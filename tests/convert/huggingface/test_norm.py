"""The row norm in every role: no query knows another, no link is needed, and any mask or cache is safe."""

import peft
import pytest
import torch
import transformers as hf
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

import infsa
from infsa.conversion.huggingface import load_converted

from .models import GROUPED, IMAGE, build, inputs
from .more_models import SEQ2SEQ, WINDOW, answer, build_more, call_more

OLD = ("bert", "llama", "mistral_sliding", "gpt2", "whisper")
ORDERED = ["llama", "mistral_sliding", "gemma3", "whisper", "bart", "t5"]


def model_and_call(name, **settings):
    model = build(name) if name in OLD else build_more(name)
    call = inputs(name, model, padded=False) if name in OLD else call_more(name, model)
    return infsa.convert(model, norm="row", **settings), {key: x for key, x in call.items() if "mask" not in key}


def tokens_of(name):
    return "decoder_input_ids" if name in (*SEQ2SEQ, "whisper") else "input_ids"


@pytest.mark.parametrize("name", ORDERED)
def test_nothing_leaks_and_a_cache_changes_nothing(name):
    model, call = model_and_call(name)
    assert not any(module._forward_pre_hooks for module in model.modules())
    tokens = tokens_of(name)
    cache = DynamicCache(config=model.config)
    if tokens == "decoder_input_ids":
        cache = EncoderDecoderCache(cache, DynamicCache(config=model.config))
    other = torch.cat([call[tokens][:, :4], 41 - call[tokens][:, 4:]], 1)
    with torch.no_grad():
        full = answer(name, model, call, use_cache=False)
        later = answer(name, model, {**call, tokens: other}, use_cache=False)
        steps = [
            answer(name, model, {**call, tokens: part}, past_key_values=cache, use_cache=True)
            for part in call[tokens].split([3, 1, call[tokens].shape[1] - 4], 1)
        ]
    assert torch.equal(full[:, :4], later[:, :4])
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", *ORDERED])
def test_a_padded_row_gives_what_it_gives_alone(name):
    model, call = model_and_call(name)
    tokens = tokens_of(name)
    mask = torch.ones_like(call[tokens])
    mask[0, -2:] = 0
    short = {key: value[:1] for key, value in call.items()} | {tokens: call[tokens][:1, :-2]}
    with torch.no_grad():
        padded = answer(name, model, {**call, tokens.replace("input_ids", "attention_mask"): mask})
        torch.testing.assert_close(padded[:1, :-2], answer(name, model, short), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_cache_of_fixed_size_agrees(name):
    model, call = model_and_call(name)
    tokens = tokens_of(name)
    cache = StaticCache(model.config, max_cache_len=9)
    if name == "t5":
        cache = EncoderDecoderCache(cache, DynamicCache(config=model.config))
    with torch.no_grad():
        full = answer(name, model, call, use_cache=False)
        steps = [
            answer(name, model, {**call, tokens: part}, past_key_values=cache, use_cache=True)
            for part in call[tokens].split([3, 1, call[tokens].shape[1] - 4], 1)
        ]
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=1e-9, atol=1e-9)


def test_every_row_is_divided_by_its_own_norm():
    layer = infsa.convert(build("bert"), norm="row").bert.encoder.layer[0].attention.self
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    q, k, v = (part(x).view(1, 5, 4, 4).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    edges = (q @ k.mT / 2).relu()
    wanted = 0.7 * edges @ v / (edges.norm(dim=-1, keepdim=True) * 5**0.5 + 1e-6)
    torch.testing.assert_close(layer(x)[0], wanted.transpose(1, 2).flatten(2))


def test_a_cache_that_softmax_filled_is_taken():
    original = build("llama")
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        cache = original(input_ids=ids, use_cache=True).past_key_values
        model = infsa.convert(original, norm="row")
        assert model(input_ids=ids[:, :1], past_key_values=cache).logits.isfinite().all()


def test_packed_sequences_give_what_they_give_alone():
    model, call = model_and_call("llama")
    ids = call["input_ids"][:1, :6]
    place = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=place, use_cache=False).logits
        alone = [model(input_ids=part, use_cache=False).logits for part in ids.split(3, 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-9, atol=1e-9)


def test_a_prefix_seen_by_all_is_taken():
    """A mask with a direction of its own, which the shared norm would leak against."""
    model, call = model_and_call("llama")
    mask = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    mask[..., :3, :3] = True
    other = torch.cat([call["input_ids"][:, :3], 41 - call["input_ids"][:, 3:]], 1)
    with torch.no_grad():
        first, second = (model(input_ids=x, attention_mask=mask).logits for x in (call["input_ids"], other))
    assert torch.equal(first[:, :3], second[:, :3])


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_the_norm_is_planned_saved_and_loaded(name, tmp_path):
    original = build(name) if name in OLD else build_more(name)
    assert {layer.norm for layer in infsa.plan_conversion(original, norm="row")} == {"row"}
    assert {layer.norm for layer in infsa.plan_conversion(original)} == {"frobenius"}
    model, call = model_and_call(name)
    model.save_pretrained(tmp_path)
    again = load_converted(type(model), tmp_path, dtype=torch.float64).eval()
    assert {layer["norm"] for layer in again.config.infsa["layers"].values()} == {"row"}
    with torch.no_grad():
        torch.testing.assert_close(answer(name, again, call), answer(name, model, call), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cached", [True, False])
def test_cross_attention_without_its_decoder_has_the_row_norm(cached):
    """Nobody tells it which of its queries are padding, nor that they are in order."""
    model = build("whisper")
    cross = model.model.decoder.layers[0].encoder_attn
    (layer,) = infsa.plan_conversion(cross)
    assert layer.norm == "row"
    assert any("which queries are padding" in note for note in layer.lost)
    infsa.convert(cross, inplace=True)
    call = inputs("whisper", model, padded=False)
    ids = call.pop("decoder_input_ids")
    call.pop("decoder_attention_mask")
    with torch.no_grad():
        full = model(**call, decoder_input_ids=ids, use_cache=cached).logits
        short = model(**call, decoder_input_ids=ids[:, :4], use_cache=cached).logits
    torch.testing.assert_close(full[:, :4], short, rtol=1e-9, atol=1e-9)


def test_images_amid_text_have_the_row_norm():
    """Gemma 3 lets the tokens of an image see each other in both directions, the text only what came before."""
    text = {**GROUPED, **WINDOW, "head_dim": 4}
    tokens = {"image_token_index": 38, "boi_token_index": 36, "eoi_token_index": 37, "mm_tokens_per_image": 4}
    config = hf.Gemma3Config(text_config=text, vision_config={**IMAGE, "vision_use_head": False}, **tokens)
    torch.manual_seed(0)
    model = infsa.convert(hf.Gemma3ForConditionalGeneration(config).double().eval())
    norms = {name: layer["norm"] for name, layer in model.config.infsa["layers"].items()}
    assert {norm for name, norm in norms.items() if "language_model" in name} == {"row"}
    assert {norm for name, norm in norms.items() if "vision" in name} == {"frobenius"}
    ids = torch.tensor([[3, 36, 38, 38, 38, 38, 37, 5, 6, 7]])
    call = {"pixel_values": torch.randn(1, 3, 16, 16, dtype=torch.float64), "token_type_ids": (ids == 38).long()}
    other = torch.cat([ids[:, :8], ids[:, 8:] + 3], 1)
    with torch.no_grad():
        first, second = (model(input_ids=x, **call).logits[:, :8] for x in (ids, other))
        found, wanted = (
            model.generate(input_ids=ids, **call, max_new_tokens=4, do_sample=False, use_cache=flag)
            for flag in (True, False)
        )
    assert torch.equal(first, second)
    assert torch.equal(found, wanted)


PREFIX = {"llama": "CAUSAL_LM", "bert": "FEATURE_EXTRACTION", "t5": "SEQ_2_SEQ_LM", "bart": "SEQ_2_SEQ_LM"}


def prefixed(name, model):
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.PrefixTuningConfig(task_type=PREFIX[name], num_virtual_tokens=3)).eval()


@pytest.mark.parametrize("name", PREFIX)
def test_prefix_tuning(name):
    """Its keys have no queries: the shared norm says so in one line, the row norm takes them."""
    original = build(name, torch.float32) if name in OLD else build_more(name, torch.float32)
    call = inputs(name, original, padded=False) if name in OLD else call_more(name, original)
    with pytest.raises(ValueError, match=r"prefix tuning.*norm='row'"):
        prefixed(name, infsa.convert(original))(**call)
    after = prefixed(name, infsa.convert(original, norm="row"))
    before = infsa.convert(prefixed(name, original))
    plan = infsa.plan_conversion(prefixed(name, original))
    assert {layer.norm for layer in plan} == {"row"}
    assert all("prefix tuning gives it keys without queries" in layer.lost[0] for layer in plan)
    found, wanted = (model(**call)[0] for model in (before, after))
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in before.prompt_encoder.parameters())
