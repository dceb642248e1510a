"""Models as they are found: in half precision, on the meta device, compiled, with LoRA, with gradient checkpointing."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import infsa
from infsa.conversion import converted_layers

from .models import build
from .oracle import Formula

BOTH = pytest.mark.parametrize("variant", ["pure", "linear"])
KINDS = ["encoder", "torchvision vit", "timm vit", "timm vit, qk-norm", "eva"]


def output(model, inputs):
    return model(*inputs)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*KINDS, "timm swin v2", "beit"])
def test_half_precision(name, dtype, variant):
    """Within twice the error of the original code in the same type with the formula in it, plus one rounding."""
    if variant == "linear" and name in ("timm swin v2", "beit"):
        pytest.skip("refused")
    model, inputs, _ = build(name)
    half, small = copy.deepcopy(model).to(dtype), tuple(x.to(dtype) for x in inputs)
    exact = copy.deepcopy(half).double()
    with Formula(variant):
        truth = output(exact, tuple(x.double() for x in small))
        plain = output(half, small)
    converted = infsa.convert(half, variant, learn_gamma=True)
    result = output(converted, small)
    assert result.dtype == dtype
    assert all(p.dtype == dtype for p in converted.parameters())
    slack = torch.finfo(dtype).eps * truth.abs().max()
    assert (result.double() - truth).abs().max() <= 2 * (plain.double() - truth).abs().max() + slack


@BOTH
@pytest.mark.parametrize("name", KINDS)
def test_meta_device(name, variant):
    """Converted without memory, then filled: the same model."""
    model, inputs, layers = build(name)
    hollow = infsa.convert(copy.deepcopy(model).to("meta"), variant, learn_gamma=True)
    assert len(converted_layers(hollow)) == layers
    assert all(p.is_meta for p in hollow.parameters())
    assert output(hollow, tuple(x.to("meta") for x in inputs)).is_meta
    full = infsa.convert(model, variant, learn_gamma=True)
    hollow.to_empty(device="cpu")
    for name_, buffer in full.named_buffers():
        hollow.get_buffer(name_).copy_(buffer)
    hollow.load_state_dict(full.state_dict())
    assert torch.equal(output(hollow, inputs), output(full, inputs))
    infsa.revert(hollow)
    assert torch.equal(output(hollow, inputs), output(model, inputs))


def test_a_compiled_model_recompiles():
    """Converting the model behind a compiled one takes effect, and so does reverting."""
    torch._dynamo.reset()
    model, inputs, _ = build("timm vit", torch.float32)
    compiled = torch.compile(model, backend="eager")
    expected = compiled(*inputs)
    infsa.convert(compiled, inplace=True)
    assert list(converted_layers(model)) == ["blocks.0.attn", "blocks.1.attn"]
    result = compiled(*inputs)
    torch.testing.assert_close(result, model(*inputs))
    assert not torch.allclose(result, expected, atol=1e-4)
    infsa.revert(compiled)
    torch.testing.assert_close(compiled(*inputs), expected)


def test_a_copy_of_a_compiled_model():
    torch._dynamo.reset()
    model, inputs, _ = build("timm vit", torch.float32)
    compiled = torch.compile(model, backend="eager")
    converted = infsa.convert(compiled, "linear")
    assert not converted_layers(model)
    torch.testing.assert_close(converted(*inputs), infsa.convert(model, "linear")(*inputs))


@pytest.mark.parametrize(
    ("name", "variant"), [("decoder", "pure"), ("encoder", "linear"), ("timm gate", "linear"), ("grouped keys", "pure")]
)
def test_converted_models_compile_whole(name, variant):
    torch._dynamo.reset()
    model, inputs, _ = build(name, torch.float32)
    converted = infsa.convert(model, variant, learn_gamma=True)
    expected = output(converted, inputs)
    result = output(torch.compile(converted, backend="aot_eager", fullgraph=True), inputs)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert all(layer.decay.logit.grad is not None for layer in converted_layers(converted).values())


@BOTH
@pytest.mark.parametrize(
    ("name", "targets"),
    [("timm vit", ["qkv", "proj"]), ("eva, separate", ["q_proj", "k_proj"]), ("encoder", ["self_attn"])],
)
def test_lora_before_conversion(name, targets, variant):
    """Adapters stay, act, and learn; merging them into the weights gives the same model."""
    model, inputs, layers = build(name)
    torch.manual_seed(2)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
    adapted.train()  # without dropout; in evaluation torch's fused encoder would pass PEFT's layers by
    converted = infsa.convert(adapted, variant)
    assert len(converted_layers(converted)) == layers
    with Formula(variant) as formula:
        expected = adapted(*inputs)
    assert formula.calls == layers
    result = converted(*inputs)
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(converted.merge_and_unload()(*inputs), result, rtol=1e-8, atol=1e-8)


@BOTH
def test_lora_after_conversion_learns(variant):
    model, inputs, _ = build("timm vit")
    adapted = get_peft_model(infsa.convert(model, variant), LoraConfig(r=2, target_modules=["qkv"]))
    adapted(*inputs).square().sum().backward()
    grads = [p.grad.abs().max() for n, p in adapted.named_parameters() if "lora_B" in n]
    assert len(grads) == 2
    assert min(grads) > 0


@BOTH
@pytest.mark.parametrize("name", ["timm vit", "eva"])
def test_gradient_checkpointing(name, variant):
    model, inputs, _ = build(name)
    converted = infsa.convert(model, variant).train()
    grads = []
    for on in (False, True):
        converted.set_grad_checkpointing(on)
        converted.zero_grad()
        converted(*inputs).square().sum().backward()
        grads.append([p.grad.clone() for p in converted.parameters() if p.grad is not None])
    for plain, checkpointed in zip(*grads, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_dropout_with_checkpointing_repeats_itself():
    from timm.models.vision_transformer import VisionTransformer

    from .models import VIT

    torch.manual_seed(0)
    model = infsa.convert(VisionTransformer(**VIT, attn_drop_rate=0.5)).train()
    x = torch.randn(2, 3, 24, 24)
    grads = []
    for on in (False, True):
        model.set_grad_checkpointing(on)
        model.zero_grad()
        torch.manual_seed(1)
        model(x).square().sum().backward()
        grads.append(model.blocks[0].attn.qkv.weight.grad.clone())
    torch.testing.assert_close(*grads)


def test_linear_keeps_the_dropout_for_revert():
    layer = nn.TransformerEncoderLayer(16, 2, dropout=0.3)
    converted = infsa.convert(layer, "linear")
    assert converted.self_attn.dropout == 0
    assert "dropout 0.3" in str(infsa.plan_conversion(layer, "linear"))
    assert infsa.revert(converted).self_attn.dropout == 0.3
