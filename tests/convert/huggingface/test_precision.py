"""Masks and tensors of any floating type: a finite stand-in for −inf masks, and mixed precision trains."""

import pytest
import torch
import transformers as hf

import infsa
from infsa.conversion.huggingface import linear_forward, pure_forward

from .models import build, inputs
from .more_models import build_more, call_more
from .test_families import converted

FILLS = {
    "-inf": (-torch.inf, torch.float64),
    "-1e9": (-1e9, torch.float32),
    "-1e4": (-1e4, torch.float64),
    "-65504": (-65504.0, torch.float16),
    "lowest bfloat16": (torch.finfo(torch.bfloat16).min, torch.bfloat16),
    "lowest float32": (torch.finfo(torch.float32).min, torch.float64),
}
TEXT = ["bert", "roberta", "distilbert", "llama", "gpt2", "gpt_neox", "t5", "bart"]
OLD = ("bert", "roberta", "llama", "gpt2")


def model_and_call(name):
    if name in OLD:
        model = build(name)
        return infsa.convert(model), {"input_ids": inputs(name, model)["input_ids"]}
    model = build_more(name)
    call = {key: value for key, value in call_more(name, model).items() if "mask" not in key}
    return infsa.convert(model), call


def masks_of(name, real, fill, dtype):
    """The 4-D additive mask that says the same as a 2-D one, in the shape that a model's layers take."""
    allowed = real[:, None, None, :]
    if name in ("llama", "gpt2", "gpt_neox"):
        allowed = allowed & torch.ones(real.shape[1], real.shape[1], dtype=torch.bool).tril()
    return torch.where(allowed, 0.0, fill).to(dtype)


@pytest.mark.parametrize("name", TEXT)
def test_a_finite_stand_in_masks(name):
    """It must not be added: a score above it, or an activation that takes scores below zero, would come through."""
    model, call = model_and_call(name)
    real = torch.ones_like(call["input_ids"], dtype=torch.bool)
    real[0, -2:] = False
    with torch.no_grad():
        wanted = model(**call, attention_mask=real.long()).logits
        assert torch.equal(model(**call, attention_mask=real.double()).logits, wanted)
        keep = (torch.ones_like(real) if name in ("t5", "bart") else real)[:, : wanted.shape[1]]
        for fill, dtype in FILLS.values():
            found = model(**call, attention_mask=masks_of(name, real, fill, dtype)).logits
            torch.testing.assert_close(found[keep], wanted[keep], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_linear_takes_a_finite_stand_in_too(name):
    model = converted(name, "linear")
    ids = inputs(name, model)["input_ids"]
    real = torch.ones_like(ids, dtype=torch.bool)
    real[0, -2:] = False
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=real.long()).logits[real]
        for fill, dtype in FILLS.values():
            found = model(input_ids=ids, attention_mask=masks_of(name, real, fill, dtype)).logits[real]
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_decoder_reads_its_padding_from_an_additive_mask():
    model, call = model_and_call("bart")
    real = torch.ones_like(call["decoder_input_ids"], dtype=torch.bool)
    real[0, :2] = False
    other = torch.where(real, call["decoder_input_ids"], 5)
    for fill, dtype in FILLS.values():
        mask = torch.where(real[:, None, None, :], 0.0, fill).to(dtype)
        with torch.no_grad():
            first, second = (
                model(**{**call, "decoder_input_ids": ids}, decoder_attention_mask=mask, use_cache=False).logits[real]
                for ids in (call["decoder_input_ids"], other)
            )
        assert torch.equal(first, second)


def test_a_mask_of_integers_is_refused():
    model, call = model_and_call("bert")
    with pytest.raises(ValueError, match=r"attention.self: a 4-D mask must be boolean or .*, got torch.int64"):
        model(**call, attention_mask=torch.ones(2, 1, 1, 7, dtype=torch.long))


@pytest.mark.parametrize("function", [pure_forward, linear_forward])
@pytest.mark.parametrize(
    "types", [("float32", "float32", "bfloat16"), ("bfloat16", "float32", "float16")], ids="-".join
)
def test_tensors_of_several_types(function, types):
    """Rotary positions promote queries and keys alone; the result has the type of the values."""
    layer = infsa.convert(build("bert"), "pure" if function is pure_forward else "linear").bert.encoder.layer[0]
    tensors = [torch.randn(1, 4, 5, 4).to(getattr(torch, kind)) for kind in types]
    z, _ = function(layer.attention.self, *tensors, None)
    wanted, _ = function(layer.attention.self, *(x.to(tensors[2].dtype) for x in tensors), None)
    assert z.dtype == tensors[2].dtype
    assert torch.equal(z, wanted)


@pytest.mark.parametrize(("name", "variant"), [("llama", "pure"), ("llama", "linear"), ("mistral", "pure")])
@pytest.mark.parametrize("cached", [True, False])
def test_autocast_trains_and_decodes(name, variant, cached):
    model = converted(name, variant, build(name, torch.float32))
    ids = inputs(name, model)["input_ids"]
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, labels=ids, use_cache=cached).loss.backward()
        with torch.no_grad():
            grown = model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=cached, pad_token_id=0)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert grown.shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "checkpointed"), [("llama", True), ("llama", False), ("mistral", True), ("qwen2", True)]
)
def test_the_trainer_of_the_library_trains_in_bfloat16(name, checkpointed, tmp_path):
    model = infsa.convert(build(name, torch.float32))
    before = model.model.layers[0].self_attn.q_proj.weight.clone()
    ids = torch.randint(3, 39, (4, 8), generator=torch.Generator().manual_seed(0))
    options = {"bf16": True, "use_cpu": True, "max_steps": 2, "per_device_train_batch_size": 2, "report_to": []}
    options |= {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-2}
    arguments = hf.TrainingArguments(tmp_path, gradient_checkpointing=checkpointed, **options)
    data = [{"input_ids": row, "labels": row} for row in ids]
    result = hf.Trainer(model=model, args=arguments, train_dataset=data).train()
    assert 0 < result.training_loss < 20
    after = model.model.layers[0].self_attn.q_proj.weight
    assert after.isfinite().all()
    assert not torch.equal(after, before)
