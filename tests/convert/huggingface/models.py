"""Minuscule models of every family, with random weights, and inputs for them."""

import torch
import transformers as hf

TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BLOCKS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
IMAGE = {**BLOCKS, "image_size": 16, "patch_size": 8}
DECODER = {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
GROUPED = {**DECODER, "num_key_value_heads": 2, "max_position_embeddings": 64}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 8], "depths": [1, 1, 1], "layer_type": "basic"}


def _vit():
    return hf.ViTForImageClassification(hf.ViTConfig(**IMAGE, num_labels=5))


def _deit():
    return hf.DeiTForImageClassification(hf.DeiTConfig(**IMAGE, num_labels=5))


def _beit(shared=False):
    bias = {"use_relative_position_bias": not shared, "use_shared_relative_position_bias": shared}
    return hf.BeitForImageClassification(hf.BeitConfig(**IMAGE, **bias, num_labels=5))


def _clip():
    text = {**TEXT, "max_position_embeddings": 16, "eos_token_id": 39, "pad_token_id": 0, "bos_token_id": 1}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=IMAGE, projection_dim=8))


def _siglip():
    text = {**TEXT, "max_position_embeddings": 6}
    return hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=IMAGE))


def _dinov2():
    return hf.Dinov2ForImageClassification(hf.Dinov2Config(**IMAGE, num_labels=5, layerscale_value=0.5))


def _dinov2_registers():
    config = hf.Dinov2WithRegistersConfig(**IMAGE, num_labels=5, layerscale_value=0.5, num_register_tokens=2)
    return hf.Dinov2WithRegistersForImageClassification(config)


def _bert():
    return hf.BertForMaskedLM(hf.BertConfig(**TEXT, max_position_embeddings=32))


def _bert_decoder(cross=False):
    config = hf.BertConfig(**DECODER, max_position_embeddings=32, is_decoder=True, add_cross_attention=cross)
    return hf.BertLMHeadModel(config)


def _roberta():
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**TEXT, max_position_embeddings=32))


def _roberta_decoder(cross=False):
    config = hf.RobertaConfig(**DECODER, max_position_embeddings=32, is_decoder=True, add_cross_attention=cross)
    return hf.RobertaForCausalLM(config)


def _gpt2(cross=False):
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **tokens, add_cross_attention=cross))


def _llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))


def _qwen2():
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED))


def _qwen2_sliding():
    window = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED, **window))


def _qwen3():
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=4))


def _mistral(window=None):
    return hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=window, head_dim=4))


def _detr():
    backbone = hf.ResNetConfig(**RESNET, out_features=["stage3"])
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "num_queries": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_labels": 5}
    return hf.DetrForObjectDetection(hf.DetrConfig(backbone_config=backbone, use_timm_backbone=False, **sizes))


def _rt_detr():
    backbone = hf.RTDetrResNetConfig(**RESNET, out_features=["stage1", "stage2", "stage3"])
    sizes = {"d_model": 16, "encoder_hidden_dim": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_queries": 4}
    sizes |= {"encoder_in_channels": [8, 8, 8], "decoder_in_channels": [16, 16, 16], "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "decoder_layers": 2, "feat_strides": [4, 8, 16], "num_labels": 5}
    return hf.RTDetrForObjectDetection(hf.RTDetrConfig(backbone_config=backbone, **sizes, num_denoising=4))


def _whisper():
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 40, "num_mel_bins": 4}
    places = {"max_source_positions": 6, "max_target_positions": 32}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return hf.WhisperForConditionalGeneration(hf.WhisperConfig(**sizes, **places, **tokens))


BUILDERS = {
    "vit": _vit,
    "deit": _deit,
    "beit": _beit,
    "beit_shared": lambda: _beit(shared=True),
    "clip": _clip,
    "siglip": _siglip,
    "dinov2": _dinov2,
    "dinov2_registers": _dinov2_registers,
    "bert": _bert,
    "bert_decoder": _bert_decoder,
    "bert_cross": lambda: _bert_decoder(cross=True),
    "roberta": _roberta,
    "roberta_decoder": _roberta_decoder,
    "roberta_cross": lambda: _roberta_decoder(cross=True),
    "gpt2": _gpt2,
    "gpt2_cross": lambda: _gpt2(cross=True),
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen2_sliding": _qwen2_sliding,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "mistral_sliding": lambda: _mistral(window=3),
    "detr": _detr,
    "rt_detr": _rt_detr,
    "whisper": _whisper,
}
FAMILIES = sorted(BUILDERS)
CAUSAL = ["bert_decoder", "gpt2", "llama", "mistral", "mistral_sliding", "qwen2", "qwen2_sliding", "qwen3"]
CAUSAL += ["roberta_decoder"]
CROSSED = ["bert_cross", "gpt2_cross", "roberta_cross", "whisper"]
LINEAR = [name for name in FAMILIES if name not in ("beit", "beit_shared", "mistral_sliding", "qwen2_sliding")]
CHUNK = 2


def build(name, dtype=torch.float64, seed=0):
    """A model with weights large enough that attention matters, in evaluation mode."""
    torch.manual_seed(seed)
    model = BUILDERS[name]().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.4 if parameter[0].numel() <= 64 else 0.1)
            elif (parameter == 0).all():
                parameter.normal_(std=0.2)
    return model


def settings(variant):
    return {"chunk_size": CHUNK} if variant == "linear" else {}


def kept(name, variant):
    """Layers that a variant cannot take, as patterns to exclude."""
    if variant == "pure" or name not in CROSSED:
        return None
    return "*encoder_attn" if name == "whisper" else "*crossattention*"


def inputs(name, model, rows=2, tokens=7, padded=True, seed=1):
    """Keyword arguments of a call; with ``padded``, the first row has three tokens (or pixels) of padding."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype

    def real(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    if name in ("detr", "rt_detr"):
        call = {"pixel_values": real(rows, 3, 32, 32)}
        if padded and name == "detr":
            mask = torch.ones(rows, 32, 32, dtype=torch.long)
            mask[0, :, 16:] = 0
            call |= {"pixel_mask": mask}
        return call
    if name in ("vit", "deit", "beit", "beit_shared", "dinov2", "dinov2_registers"):
        return {"pixel_values": real(rows, 3, 16, 16)}
    tokens = 6 if name == "siglip" else tokens
    ids = torch.randint(3, 39, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0
        if name in ("bert", "roberta", "clip", "siglip"):  # encoders pad on the right
            mask = mask.flip(1)
    if name == "whisper":
        return {"input_features": real(rows, 4, 12), "decoder_input_ids": ids, "decoder_attention_mask": mask}
    call = {"input_ids": ids, "attention_mask": mask}
    if name in ("clip", "siglip"):
        call["pixel_values"] = real(rows, 3, 16, 16)
    if name.endswith("_cross"):
        seen = torch.ones(rows, 5, dtype=torch.long)
        seen[0, 4:] = 0
        call |= {"encoder_hidden_states": real(rows, 5, 16), "encoder_attention_mask": seen}
    return call


def outputs(result):
    """The tensors of a model's answer that depend on its attention."""
    names = ("logits", "pred_boxes", "logits_per_image", "text_embeds", "image_embeds")
    found = [getattr(result, name, None) for name in names]
    return [tensor for tensor in found if tensor is not None]
