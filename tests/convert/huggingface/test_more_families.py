"""Every further family: nothing leaks, a cache changes nothing, and nothing is lost on the way there and back."""

import pytest
import torch
import transformers as hf
from transformers import AttentionInterface, DynamicCache, EncoderDecoderCache
from transformers.models.sam.modeling_sam import SamVisionAttention

import infsa
from infsa.conversion.huggingface import load_converted, pure_forward
from infsa.conversion.huggingface.layers import role_of

from .models import GROUPED
from .more_models import COPIES, DECODERS, ENCODERS, MIXED, MORE, SEQ2SEQ, answer, build_more, call_more
from .test_families import shapes

NAMES = sorted(MORE)
ORDERED = [*DECODERS, *SEQ2SEQ, "electra_cross"]
PADDED = [*ENCODERS, *ORDERED]
DISTINCT = [name for name in NAMES if name not in COPIES]


def sides(name):
    """Names of a call's tokens and their mask: of the decoder, where there are two."""
    return ("decoder_input_ids", "decoder_attention_mask") if name in SEQ2SEQ else ("input_ids", "attention_mask")


@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(name, tmp_path):
    """Conversion changes the answer and no weight; saving keeps the one, reverting restores the other to the bit."""
    original = build_more(name)
    call = call_more(name, original)
    with torch.no_grad():
        before = answer(name, original, call)
        model = infsa.convert(original)
        after = answer(name, model, call)
        assert type(model) is type(original)
        assert after.isfinite().all()
        assert not torch.allclose(before, after)
        assert torch.equal(answer(name, original, call), before)
        model.save_pretrained(tmp_path)
        experts = MIXED if hasattr(model.config, "num_experts_per_tok") else {}
        again = load_converted(type(model), tmp_path, dtype=torch.float64, **experts).eval()
        torch.testing.assert_close(answer(name, again, call), after, rtol=1e-12, atol=1e-12)
        assert torch.equal(answer(name, infsa.revert(model), call), before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    for own, other in zip(model.parameters(), original.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("name", DISTINCT)
def test_a_training_step_in_bfloat16(name):
    model = infsa.convert(build_more(name, torch.float32), learn_gamma=True).train()
    call = call_more(name, model)
    before = {key: value.clone() for key, value in model.named_parameters()}
    with torch.autocast("cpu", torch.bfloat16):
        loss = answer(name, model, call).float().square().mean()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    moved = [key for key, value in model.named_parameters() if not torch.equal(value, before[key])]
    assert any("decay.logit" in key for key in moved)


@pytest.mark.parametrize("name", ORDERED)
def test_the_future_does_not_leak(name):
    model = infsa.convert(build_more(name))
    call = call_more(name, model)
    tokens, _ = sides(name)
    with torch.no_grad():
        first = answer(name, model, call)
        for place in range(1, call[tokens].shape[1]):
            other = call[tokens].clone()
            other[:, place:] = 41 - other[:, place:]
            second = answer(name, model, {**call, tokens: other})
            assert torch.equal(first[:, :place], second[:, :place])
            assert not torch.equal(first[:, place:], second[:, place:])


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_does_not_leak(name, left):
    """Whatever stands in the padding, the real tokens give what they give without it."""
    model = infsa.convert(build_more(name))
    call = call_more(name, model)
    tokens, key = sides(name)
    length = call[tokens].shape[1]
    real = torch.arange(length) >= 2 if left else torch.arange(length) < length - 2
    mask = torch.stack([real.long(), torch.ones_like(real).long()])
    other = {**call, tokens: torch.where(mask.bool(), call[tokens], 41 - call[tokens])}
    with torch.no_grad():
        first, second = (answer(name, model, {**x, key: mask})[0, real] for x in (call, other))
        assert torch.equal(first, second)
        if not left:
            short = {name: value[:1] for name, value in call.items()}
            short |= {tokens: call[tokens][:1, real], key: mask[:1, real]}
            torch.testing.assert_close(answer(name, model, short)[0], first, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [*SEQ2SEQ, "electra_cross"])
def test_padding_of_the_source_does_not_leak(name):
    model = infsa.convert(build_more(name))
    call = call_more(name, model)
    source = "encoder_hidden_states" if name == "electra_cross" else "input_ids"
    key = "encoder_attention_mask" if name == "electra_cross" else "attention_mask"
    length = call[source].shape[1]
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, -2:] = 0
    other = call[source].clone()
    other[0, -2:] = 41 - other[0, -2:]
    short = {name: value[:1] for name, value in call.items()}
    short |= {source: call[source][:1, :-2], key: mask[:1, :-2]}
    with torch.no_grad():
        first, second = (answer(name, model, {**call, source: x, key: mask}) for x in (call[source], other))
        assert torch.equal(first, second)
        torch.testing.assert_close(answer(name, model, short), first[:1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_padded_patches_and_frames_do_not_leak(variant):
    """SigLIP 2 pads its patches, also for the head that pools them; speech models pad their frames."""
    model = infsa.convert(build_more("siglip2"), variant)
    call = call_more("siglip2", model)
    call |= {"spatial_shapes": torch.tensor([[3, 4], [4, 4]])}
    call["pixel_attention_mask"][0, 12:] = 0
    other = call["pixel_values"].clone()
    other[0, 12:] += 3
    with torch.no_grad():
        first, second = (model(**{**call, "pixel_values": x}).image_embeds for x in (call["pixel_values"], other))
        assert torch.equal(first, second)
        model = infsa.convert(build_more("wav2vec2"), variant)
        call = call_more("wav2vec2", model)
        call["attention_mask"][0, 48:] = 0
        short = {key: value[:1, :48] for key, value in call.items()}
        alone = answer("wav2vec2", model, short)
        padded = answer("wav2vec2", model, call)[:1, : alone.shape[1]]
    torch.testing.assert_close(padded, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ORDERED)
def test_steps_with_a_cache_equal_the_full_pass(name):
    model = infsa.convert(build_more(name))
    call = {key: value for key, value in call_more(name, model, tokens=6).items() if key != sides(name)[1]}
    tokens, _ = sides(name)
    cache = DynamicCache(config=model.config)
    if name not in DECODERS:
        cache = EncoderDecoderCache(cache, DynamicCache(config=model.config))
    with torch.no_grad():
        full = answer(name, model, call, use_cache=False)
        found = [
            answer(name, model, {**call, tokens: part}, past_key_values=cache, use_cache=True)
            for part in call[tokens].split([1, 1, 3, 1], 1)
        ]
    torch.testing.assert_close(torch.cat(found, 1), full, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in (*DECODERS, *SEQ2SEQ) if name not in COPIES])
def test_generation_with_and_without_a_cache_agrees(name):
    model = infsa.convert(build_more(name))
    call = {key: value for key, value in call_more(name, model).items() if "decoder" not in key}
    call["attention_mask"][0, :2] = 0
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2, "pad_token_id": 0}
    alone = {"input_ids": call["input_ids"][:1, 2:], "attention_mask": call["attention_mask"][:1, 2:]}
    with torch.no_grad():
        found, wanted = (model.generate(**call, **options, use_cache=flag) for flag in (True, False))
        assert torch.equal(found, wanted)
        if name in DECODERS or name in ("t5", "mt5", "umt5"):  # positions of the others count the padding
            short = model.generate(**alone, **options)
            assert torch.equal(found[:1, -5:], short[:, -5:])


def dense(module, q, k, v, mask, scaling, bias):
    """γ R v / norm, from whole matrices: of all rows, or of the rows so far where the layer is a decoder's."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if bias is None else scores + bias
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    if mask is not None and mask.is_floating_point():
        scores, allowed = scores + mask, mask > -1e30
    if role_of(module) == "causal":
        allowed = allowed & torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    edges = scores.relu() * allowed
    squares = edges.square().sum(-1)
    norm = squares.cumsum(-1) if "causal" in role_of(module) else squares.sum(-1, keepdim=True)
    return 0.7 * edges @ v / (norm.sqrt()[..., None] + 1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "swinv2"])
def test_layers_compute_the_formula(name, monkeypatch):
    """From the queries, keys, values and masks that reach the attention function."""
    model = infsa.convert(build_more(name))
    checked = []

    def spy(module, q, k, v, attention_mask, scaling=None, **options):
        z, weights = pure_forward(module, q, k, v, attention_mask, scaling, **options)
        wanted = dense(module, q, k, v, attention_mask, scaling, options.get("position_bias"))
        torch.testing.assert_close(z.transpose(1, 2), wanted, rtol=1e-8, atol=1e-9)
        checked.append(module)
        return z, weights

    monkeypatch.setitem(AttentionInterface._global_mapping, "infsa_pure", spy)
    call = call_more(name, model)
    with torch.no_grad():
        answer(name, model, {key: value for key, value in call.items() if not key.endswith("attention_mask")})
    asking = [m for m in model.modules() if hasattr(m, "infsa_layer") and m.infsa_layer.family == "transformers"]
    asking = [module for module in asking if hasattr(module, "config")]
    assert {id(module) for module in checked} == {id(module) for module in asking}


def edges_for_softmax(scores, dim, dtype=None):
    """Pure InfSA's Â in the place of softmax's."""
    edges = scores.relu()
    return 0.7 * edges / (edges.square().sum((-2, -1), keepdim=True).sqrt() + 1e-6)


@pytest.mark.parametrize("name", ["sam", "swinv2", "swin", "dinov3_vit", "segformer", "distilbert", "wav2vec2"])
def test_the_original_code_with_another_function_for_softmax_agrees(name, monkeypatch):
    """Positions, scales, shifts of windows and reductions of space are then those of the library itself."""
    original = build_more(name)
    call = call_more(name, original)
    with torch.no_grad():
        found = answer(name, infsa.convert(original), call)
        original.set_attn_implementation("eager")
        for module in original.modules():
            if type(module).__name__ == "SamVisionSdpaAttention":
                module.__class__ = SamVisionAttention
        monkeypatch.setattr(torch.nn.functional, "softmax", edges_for_softmax)
        torch.testing.assert_close(answer(name, original, call), found, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["sam", "swin", "swinv2", "t5", "bart", "segformer", "modernbert"])
def test_weights_are_not_left_out(name):
    """Wherever the original answers a request for weights, the converted model does, in the same shapes."""
    original = build_more(name)
    original.set_attn_implementation("eager")
    for module in original.modules():
        if type(module).__name__ == "SamVisionSdpaAttention":
            module.__class__ = SamVisionAttention
    call = call_more(name, original)
    with torch.no_grad():
        found, wanted = (shapes(model(**call, output_attentions=True)) for model in (infsa.convert(original), original))
    assert found == wanted
    assert wanted


def test_a_window_shift_removes_edges():
    """Swin writes −100 for it, which an activation that takes scores below zero would let through."""
    for name in ("swin", "swinv2"):
        model = infsa.convert(build_more(name), activation="abs")
        layer = next(module for key, module in model.named_modules() if key.endswith("blocks.1"))
        attention = layer.attention if name == "swin" else layer.attention.self
        x = torch.randn(4, 16, 16, dtype=torch.float64)
        mask = layer.get_attn_mask(8, 8, dtype=x.dtype, device=x.device)
        weights = attention(x, mask, output_attentions=True)[1]
        assert (weights[3] > 0).any()
        assert not weights[(mask != 0).unsqueeze(1).expand_as(weights)].any()


@pytest.mark.parametrize("name", DISTINCT)
def test_linear_or_the_reason_why_not(name):
    """Relative positions, windows and the cross-attention of decoders are named; all else runs and trains."""
    model = build_more(name)
    plan = infsa.plan_conversion(model, "linear", chunk_size=2)
    for layer in plan.chosen("refuse"):
        assert any(word in layer.reason for word in ("would be dropped", "future would leak"))
    if not plan.chosen():
        return
    model = infsa.convert(model, "linear", chunk_size=2, exclude=[layer.name for layer in plan.chosen("refuse")])
    answer(name, model, call_more(name, model)).square().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_registry_alone_refuses_a_window_shift():
    model = build_more("swin")
    model.set_attn_implementation("infsa_pure")
    with pytest.raises(ValueError, match=r"SwinAttention: the mask of a window shift .*infsa.convert"):
        model(**call_more("swin", model))


def test_soft_capping_and_sinks_are_refused_by_name():
    sizes = {**GROUPED, "head_dim": 4}
    with pytest.raises(ValueError, match=r"model.layers.0.self_attn, .*soft capping of the scores at 50"):
        infsa.convert(hf.Gemma2ForCausalLM(hf.Gemma2Config(**sizes)))
    with pytest.raises(ValueError, match=r"GptOssAttention\): attention sinks"):
        infsa.convert(hf.GptOssForCausalLM(hf.GptOssConfig(**sizes, num_local_experts=2)))
    with pytest.raises(ValueError, match=r"BloomAttention\): .*position bias"):
        infsa.convert(hf.BloomModel(hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=4)))
