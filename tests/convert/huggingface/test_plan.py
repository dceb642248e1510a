"""What the plan says about each family, and the registry used without conversion."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
import transformers as hf

import infsa
from infsa.conversion.huggingface.layers import CLASSES

from .models import FAMILIES, build, inputs, outputs

ROWS = {  # layer -> class, heads, key heads, causal, rotary, qk-norm, masks
    "vit": ("ViTAttention", 4, 4, "no", False, False, "padding"),
    "clip": ("CLIPAttention", 4, 4, "by call", False, False, "padding"),
    "gpt2": ("GPT2Attention", 4, 4, "yes", False, False, "padding, causal"),
    "llama": ("LlamaAttention", 4, 2, "yes", True, False, "padding, causal"),
    "qwen3": ("Qwen3Attention", 4, 2, "yes", True, True, "padding, causal"),
    "mistral_sliding": ("MistralAttention", 4, 2, "yes", True, False, "padding, causal, window of 3"),
    "bert": ("BertSelfAttention", 4, 4, "no", False, False, "padding"),
    "detr": ("DetrSelfAttention", 4, 4, "no", False, False, "padding"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_has_a_row_with_its_sizes(name):
    plan = infsa.plan_conversion(build(name))
    for layer in plan:
        if layer.action == "convert" and layer.family == "transformers":
            assert (layer.heads, layer.width, layer.head_width) == (4, 16, 4)
            assert layer.key_heads in (2, 4)
            assert bool(layer.lost) == (layer.causal == "yes" or "RTDetr" in layer.kind)
        elif layer.family == "transformers":
            assert layer.action == "keep"
            assert "no scores between tokens" in layer.reason
    assert str(plan)


@pytest.mark.parametrize("name", ROWS)
def test_rows_say_what_a_layer_is(name):
    layer = infsa.plan_conversion(build(name)).layers[0]
    found = layer.kind.rsplit(".", 1)[-1], layer.heads, layer.key_heads
    assert (*found, layer.causal, layer.rotary, layer.qk_norm, layer.masks) == ROWS[name]


def test_biases_and_losses_are_named():
    beit, whisper = (
        infsa.plan_conversion(build("beit")),
        infsa.plan_conversion(build("whisper"), "linear", chunk_size=2),
    )
    assert beit.layers[0].biases == "of q_proj, v_proj, o_proj; relative position on the scores"
    assert any("not its own" in item for layer in whisper for item in layer.lost)
    bert = infsa.plan_conversion(build("bert"), "linear")
    assert any("attention dropout of 0.1" in item for item in bert.layers[0].lost)
    rows = infsa.plan_conversion(build("rt_detr"))
    kinds = [(layer.kind.rsplit(".", 1)[-1], layer.action) for layer in rows]
    assert ("RTDetrMultiscaleDeformableAttention", "keep") in kinds
    assert ("RTDetrSelfAttention", "convert") in kinds


def test_every_known_class_exists_and_asks_the_registry():
    root = Path(importlib.import_module("transformers.models").__file__).parent
    known = re.compile(rf"^class ({'|'.join(CLASSES)})\(", re.MULTILINE)
    files = (path for path in root.glob("*/modeling_*.py") if known.search(path.read_text()))
    modules = [importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}") for path in files]
    found = {name: getattr(module, name) for module in modules for name in CLASSES if hasattr(module, name)}
    for name in CLASSES:
        if name not in found and name.startswith("Dinov2"):  # SelfAttention or Attention, by version
            continue
        assert "ALL_ATTENTION_FUNCTIONS.get_interface(" in inspect.getsource(found[name])
        if "past_key_values" in inspect.signature(found[name].forward).parameters:
            assert "**kwargs" in inspect.getsource(found[name].forward).split("attention_interface(", 1)[1]


@pytest.mark.parametrize("name", ["vit", "bert", "llama", "clip", "detr", "gpt2"])
def test_the_registry_alone_gives_what_conversion_gives(name):
    model = build(name)
    call = inputs(name, model)
    converted = infsa.convert(model)
    model.set_attn_implementation("infsa_pure")
    if name == "llama" or name == "gpt2":
        call["use_cache"] = False
    for found, wanted in zip(outputs(model(**call)), outputs(converted(**call)), strict=True):
        assert torch.equal(found, wanted)


def test_the_registry_alone_refuses_what_needs_conversion():
    model = hf.AutoModelForCausalLM.from_config(build("llama").config, attn_implementation="infsa_pure")
    with pytest.raises(ValueError, match=r"LlamaAttention: 6 cached tokens came without .*infsa.convert"):
        model.generate(torch.arange(3, 9)[None], max_new_tokens=3)
    assert model.generate(torch.arange(3, 9)[None], max_new_tokens=3, use_cache=False).shape == (1, 9)
    assert infsa.convert(model).generate(torch.arange(3, 9)[None], max_new_tokens=3).shape == (1, 9)
    whisper = build("whisper")
    whisper.set_attn_implementation("infsa_pure")
    with pytest.raises(ValueError, match=r"WhisperAttention: cross-attention of a decoder .*infsa.convert"):
        whisper(**inputs("whisper", whisper))
    unknown = hf.AutoModelForCausalLM.from_config(
        hf.PersimmonConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=4),
        attn_implementation="infsa_pure",
    )
    with pytest.raises(ValueError, match=r"PersimmonAttention: this attention class is not supported"):
        unknown(torch.arange(3, 9)[None])


@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_excluded_layers_keep_their_attention(variant):
    model = build("vit")
    mixed = infsa.convert(model, variant, exclude="*.0.attention")
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    first, second = ([m.vit.layers[i].attention(x)[0] for m in (model, mixed)] for i in (0, 1))
    assert torch.equal(*first)
    assert not torch.allclose(*second)
    assert mixed.vit.layers[0].attention.config._attn_implementation == "sdpa"
    assert mixed.vit.layers[1].attention.config._attn_implementation == f"infsa_{variant}"
    assert torch.equal(infsa.revert(mixed).vit.layers[1].attention(x)[0], second[0])
