"""Half precision, meta device, compilation, adapters, checkpointing, training, saving and loading."""

import peft
import pytest
import torch
import transformers as hf

import infsa
from infsa.conversion.huggingface import load_converted

from .models import BUILDERS, FAMILIES, build, inputs, kept, outputs, settings
from .test_families import CASES, converted

SOME = ["vit", "bert", "llama", "whisper"]


@pytest.mark.parametrize("name", [name for name in FAMILIES if "detr" not in name])  # those mix types themselves
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    model = converted(name, "pure", build(name, dtype))
    for answer in outputs(model(**inputs(name, model))):
        assert answer.dtype == dtype
        assert answer.isfinite().all()


@pytest.mark.parametrize("name", SOME)
def test_autocast(name):
    model = converted(name, "pure", build(name, torch.float32))
    call = inputs(name, model)
    with torch.autocast("cpu", torch.bfloat16):
        sum(answer.float().sum() for answer in outputs(model(**call))).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_meta_device(name, variant):
    with torch.device("meta"):
        model = BUILDERS[name]()
    model = infsa.convert(model, variant, exclude=kept(name, variant), inplace=True, **settings(variant))
    assert all(parameter.is_meta for parameter in model.parameters())
    if name in SOME and (variant, name) not in (("linear", "llama"), ("linear", "whisper")):
        call = {key: value.to("meta") for key, value in inputs(name, model, padded=False).items()}
        call = {key: value for key, value in call.items() if "mask" not in key}
        assert outputs(model(**call))[0].is_meta


@pytest.mark.parametrize(("name", "variant"), [("vit", "linear"), ("llama", "pure")])
def test_compiled(name, variant):
    model = converted(name, variant, build(name, torch.float32))
    call = inputs(name, model)
    wanted = outputs(model(**call))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for found, answer in zip(outputs(compiled(**call)), wanted, strict=True):
        torch.testing.assert_close(found, answer)


def test_a_model_compiled_before_conversion_runs_converted():
    model = build("vit", torch.float32)
    call = inputs("vit", model)
    compiled = torch.compile(model, backend="eager")
    before = compiled(**call).logits
    infsa.convert(compiled, inplace=True)
    after = compiled(**call).logits
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, infsa.convert(build("vit", torch.float32))(**call).logits)


@pytest.mark.parametrize(("name", "targets"), [("llama", ["q_proj", "v_proj"]), ("bert", ["query", "value"])])
def test_adapters(name, targets):
    model = peft.get_peft_model(build(name), peft.LoraConfig(target_modules=targets, r=2, init_lora_weights=False))
    converted_model = infsa.convert(model)
    call = inputs(name, model)
    converted_model(**call, labels=call["input_ids"]).loss.backward()
    trained = [p for n, p in converted_model.named_parameters() if "lora" in n]
    assert trained
    assert all(p.grad.abs().sum() > 0 for p in trained)
    merged = converted_model.merge_and_unload()
    torch.testing.assert_close(merged(**call).logits, converted_model(**call).logits)
    wrapped = peft.get_peft_model(infsa.convert(build(name)), peft.LoraConfig(target_modules=targets, r=2))
    plain = infsa.convert(build(name))
    torch.testing.assert_close(wrapped(**call).logits, plain(**call).logits)
    assert not torch.allclose(infsa.revert(wrapped)(**call).logits, plain(**call).logits)


@pytest.mark.parametrize("name", ["vit", "bert", "llama", "gpt2", "whisper", "bert_cross"])
def test_gradient_checkpointing(name):
    gradients = []
    for checkpointed in (False, True):
        model = converted(name, "pure").train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            for rate in ("dropout", "attention_dropout", "activation_dropout", "layerdrop", "p"):
                if isinstance(getattr(module, rate, None), float):
                    setattr(module, rate, 0.0)
        if checkpointed:
            model.gradient_checkpointing_enable()
        call = inputs(name, model)
        outputs(model(**call))[0].square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_a_short_training_lowers_the_loss(variant):
    model = converted("llama", variant, learn_gamma=True).train()
    call = inputs("llama", model, padded=False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(8):
        loss = model(**call, labels=call["input_ids"]).loss
        loss.backward()
        logit = model.model.layers[0].self_attn.decay.logit
        assert logit.grad.abs().sum() > 0
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_attention_dropout_acts_in_training_only():
    config = build("llama").config
    config.attention_dropout = 0.5
    model = infsa.convert(hf.LlamaForCausalLM(config).double())
    call = inputs("llama", model)
    assert torch.equal(model.eval()(**call).logits, model(**call).logits)
    assert not torch.equal(model.train()(**call).logits, model(**call).logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_save_and_load_agree(name, tmp_path):
    model = infsa.convert(build(name), gamma=0.6)
    model.save_pretrained(tmp_path)
    again = load_converted(type(model), tmp_path, dtype=torch.float64).eval()
    call = inputs(name, model)
    for found, wanted in zip(outputs(again(**call)), outputs(model(**call)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in model.named_parameters()}


def test_a_folder_loaded_by_the_registry_keeps_its_settings(tmp_path):
    model = infsa.convert(build("bert"), gamma=0.6, activation="gelu")
    model.save_pretrained(tmp_path)
    again = hf.BertForMaskedLM.from_pretrained(tmp_path, attn_implementation="infsa_pure", dtype=torch.float64).eval()
    call = inputs("bert", model)
    torch.testing.assert_close(again(**call).logits, model(**call).logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["vit", "llama"])
def test_learned_decay_and_chosen_layers_are_loaded(name, tmp_path):
    model = infsa.convert(build(name), learn_gamma=True, include="*.1.*")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("decay.logit"):
                parameter.normal_()
    model.save_pretrained(tmp_path)
    again = load_converted(type(model), tmp_path, dtype=torch.float64).eval()
    call = inputs(name, model)
    assert type(again) is type(model)
    torch.testing.assert_close(outputs(again(**call))[0], outputs(model(**call))[0], rtol=1e-12, atol=1e-12)
    plain = type(model).from_pretrained(tmp_path, attn_implementation="infsa_pure", dtype=torch.float64)
    with pytest.raises(ValueError, match="use load_converted"):
        plain(**call)


def test_a_folder_without_a_converted_model_is_refused(tmp_path):
    build("vit").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no converted model"):
        load_converted(hf.ViTForImageClassification, tmp_path)
