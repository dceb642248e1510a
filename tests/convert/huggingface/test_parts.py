"""Parts of models: one layer, one of two encoders, layers converted apart; a shared configuration never misleads."""

import pickle
import sys

import peft
import pytest
import torch
import transformers as hf
from transformers import DynamicCache, EncoderDecoderCache

import infsa
from infsa.conversion import converted_layers
from infsa.conversion.huggingface import load_converted

from .models import CROSSED, build, inputs


def logits(model, call):
    """What a model answers to its real tokens."""
    with torch.no_grad():
        return model(**call).logits[call["attention_mask"].bool()]


def test_one_layer_converted_in_place_leaves_the_others():
    model, whole = build("llama"), infsa.convert(build("llama"), include="*.0.*")
    infsa.convert(model.model.layers[0].self_attn, inplace=True)
    call = inputs("llama", model)
    assert torch.equal(logits(model, call), logits(whole, call))
    assert model.config._attn_implementation == "sdpa"
    infsa.convert(model, inplace=True)
    torch.testing.assert_close(logits(model, call), logits(infsa.convert(build("llama")), call))
    layer = infsa.convert(build("llama").model.layers[0].self_attn)
    assert infsa.revert(layer).config._attn_implementation == "sdpa"


def test_one_layer_reverted_leaves_the_others():
    """And it receives masks that its softmax can use: those of InfSA leave causality out."""
    model, whole = infsa.convert(build("llama")), infsa.convert(build("llama"), include="*.0.*")
    infsa.revert(model.model.layers[1])
    call = inputs("llama", model)
    assert list(converted_layers(model)) == ["model.layers.0.self_attn"]
    assert torch.equal(logits(model, call), logits(whole, call))
    infsa.revert(model.model)
    assert torch.equal(logits(model, call), logits(build("llama"), call))


def test_an_encoder_converted_alone_leaves_the_decoder():
    """Both share one configuration object."""
    model, wanted = build("whisper"), infsa.convert(build("whisper"), include="model.encoder.*")
    infsa.convert(model.model.encoder, inplace=True)
    call = inputs("whisper", model)
    with torch.no_grad():
        torch.testing.assert_close(model(**call).logits, wanted(**call).logits)


def test_asking_for_other_attention_does_not_undo_a_conversion():
    model = infsa.convert(build("llama"))
    call = inputs("llama", model)
    before = logits(model, call)
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(logits(model, call), before)


@pytest.mark.parametrize("name", CROSSED)
def test_cross_attention_alone_keeps_its_sums_in_the_cache(name):
    """Though the self-attention before it, which is not converted, fills the cache first."""
    pattern = "*encoder_attn" if name == "whisper" else "*crossattention*"
    model = infsa.convert(build(name), include=pattern)
    call = inputs(name, model)
    if name == "whisper":
        call.pop("decoder_attention_mask")
        call["decoder_input_ids"] = call["decoder_input_ids"][:, :3]
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2, "pad_token_id": 0}
    with torch.no_grad():
        without = model.generate(**call, **options, use_cache=False)
        if name in ("bert_cross", "roberta_cross"):
            call["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        assert torch.equal(model.generate(**call, **options, use_cache=True), without)


@pytest.mark.parametrize("cached", [True, False])
def test_the_shared_norm_of_cross_attention_without_its_decoder_is_refused(cached):
    model = build("whisper")
    infsa.convert(model.model.decoder.layers[0].encoder_attn, norm="frobenius", inplace=True)
    with pytest.raises(ValueError, match=r"^WhisperAttention: .*know its padding: .*whole model"):
        model(**inputs("whisper", model), use_cache=cached)


def saved_and_loaded(model, folder, model_class=None):
    model.save_pretrained(folder)
    return load_converted(model_class or type(model), folder, dtype=torch.float64).eval()


def test_layers_converted_apart_are_saved_apart(tmp_path):
    model = infsa.convert(build("llama"), include="*.0.*", gamma=0.3)
    infsa.convert(model, gamma=0.9, activation="abs", inplace=True)
    again = saved_and_loaded(model, tmp_path)
    call = inputs("llama", model)
    torch.testing.assert_close(logits(again, call), logits(model, call), rtol=1e-12, atol=1e-12)
    plain = hf.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="infsa_pure", dtype=torch.float64)
    with pytest.raises(ValueError, match=r"LlamaAttention: .*use load_converted"):
        plain(**call)


def test_a_model_is_loaded_without_its_head(tmp_path):
    model = infsa.convert(build("llama"), learn_gamma=True)
    again = saved_and_loaded(model, tmp_path, hf.AutoModel)
    call = {**inputs("llama", model), "use_cache": False}
    assert list(converted_layers(again)) == ["layers.0.self_attn", "layers.1.self_attn"]
    with torch.no_grad():
        torch.testing.assert_close(again(**call).last_hidden_state, model.model(**call).last_hidden_state)


def test_merged_adapters_are_saved_and_loaded(tmp_path):
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    model = infsa.convert(peft.get_peft_model(build("llama"), config)).merge_and_unload()
    again = saved_and_loaded(model, tmp_path)
    call = inputs("llama", model)
    torch.testing.assert_close(logits(again, call), logits(model, call), rtol=1e-12, atol=1e-12)


def test_what_is_saved_follows_what_is_reverted(tmp_path):
    model = infsa.convert(build("clip"))
    infsa.revert(model.text_model)
    again = saved_and_loaded(model, tmp_path)
    assert all(name.startswith("vision_model") for name in converted_layers(again))
    assert "infsa" not in str(infsa.revert(again).config.to_dict())


def test_a_layer_of_torch_inside_is_noted_too(tmp_path):
    model = infsa.convert(build("siglip"), include="vision_model.head.attention")
    again = saved_and_loaded(model, tmp_path)
    assert list(converted_layers(again)) == ["vision_model.head.attention"]
    infsa.revert(again.vision_model.head)
    assert "infsa" not in str(again.config.to_dict())


def test_changes_of_the_configuration_survive_revert():
    model = infsa.convert(build("llama"), inplace=True)
    model.resize_token_embeddings(48)
    infsa.revert(model)
    assert model.config.vocab_size == 48
    assert {id(module.config) for module in model.modules() if hasattr(module, "config")} == {id(model.config)}


def test_a_pickled_layer_finds_its_attention_function(monkeypatch):
    """In a process that has not imported the adapter."""
    layer = pickle.dumps(infsa.plan_conversion(build("vit")).layers[0])
    monkeypatch.delitem(sys.modules, "infsa.conversion.huggingface")
    assert pickle.loads(layer).heads == 4
    assert "infsa.conversion.huggingface" in sys.modules


def test_layers_that_keep_flash_attention_are_named():
    model = build("llama")
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn keeps its attention, .*'flash_attention_2'"):
        infsa.convert(model, exclude="*.0.*")
