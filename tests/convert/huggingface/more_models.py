"""Minuscule models of further families, with random weights, and inputs for them."""

import torch
import transformers as hf

from .models import BLOCKS, DECODER, GROUPED, IMAGE, TEXT

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BART = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 40, "max_position_embeddings": 32}
BART |= {**TOKENS, "forced_eos_token_id": None}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4} | TOKENS
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
WINDOW = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
SOUND = {**BLOCKS, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [8, 3], "num_feat_extract_layers": 2}
SOUND |= {"num_conv_pos_embeddings": 3, "num_conv_pos_embedding_groups": 2, "vocab_size": 12, "pad_token_id": 0}
SOUND |= {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True, "hidden_dropout": 0.0}
SOUND |= {"feat_proj_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0, "mask_time_prob": 0.0}
MIXED = {"experts_implementation": "eager"}  # the fused experts take no float64
EXPERTS = {**MIXED, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [4], "window_size": 4}


def _seq2seq(kind, sizes, **options):
    config = getattr(hf, f"{kind}Config")(**sizes, **options)
    name = "MTModel" if kind == "Marian" else "ForConditionalGeneration"
    return getattr(hf, f"{kind}{name}")(config)


def _decoder(kind, **options):
    return getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}Config")(**{**GROUPED, **options}))


def _masked(kind, **options):
    sizes = {**TEXT, "max_position_embeddings": 32, "pad_token_id": 0, **options}
    return getattr(hf, f"{kind}ForMaskedLM")(getattr(hf, f"{kind}Config")(**sizes))


def _image(kind, head, **options):
    return getattr(hf, f"{kind}{head}")(getattr(hf, f"{kind}Config")(**{**IMAGE, **options}))


def _distilbert():
    sizes = {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 32}
    return hf.DistilBertForMaskedLM(hf.DistilBertConfig(**sizes, pad_token_id=0))


def _electra_decoder():
    sizes = {**DECODER, "embedding_size": 16, "max_position_embeddings": 32}
    return hf.ElectraForCausalLM(hf.ElectraConfig(**sizes, is_decoder=True, add_cross_attention=True))


def _modernbert():
    sizes = {**TEXT, "local_attention": 4, "max_position_embeddings": 32, "layer_types": WINDOW["layer_types"]}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "pad_token_id": 0}
    return hf.ModernBertForMaskedLM(hf.ModernBertConfig(**sizes, **tokens))


def _gpt_neox():
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**DECODER, max_position_embeddings=64))


def _opt():
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "word_embed_proj_dim": 16}
    return hf.OPTForCausalLM(hf.OPTConfig(**sizes, **tokens, max_position_embeddings=32))


def _gemma3():
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED, head_dim=4, **WINDOW))


def _siglip2():
    text = {**TEXT, "max_position_embeddings": 6}
    vision = {**BLOCKS, "num_patches": 16, "patch_size": 2}
    return hf.Siglip2Model(hf.Siglip2Config(text_config=text, vision_config=vision))


def _segformer():
    sizes = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 16]}
    sizes |= {"patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [4, 4], "mlp_ratios": [1, 1]}
    return hf.SegformerForImageClassification(hf.SegformerConfig(**sizes, num_labels=5))


def _sam():
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 24, "image_size": 32}
    vision |= {"patch_size": 8, "window_size": 2, "global_attn_indexes": [1], "output_channels": 16, "num_pos_feats": 8}
    prompt = {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4}
    decoder = {"hidden_size": 16, "num_attention_heads": 4, "mlp_dim": 24, "iou_head_hidden_dim": 16}
    decoder |= {"attention_downsample_rate": 1, "num_hidden_layers": 2}
    config = hf.SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder)
    return hf.SamModel(config)


def _swin(kind="Swin"):
    return getattr(hf, f"{kind}ForImageClassification")(getattr(hf, f"{kind}Config")(**SWIN, num_labels=5))


def _sound(kind):
    return getattr(hf, f"{kind}ForCTC")(getattr(hf, f"{kind}Config")(**SOUND))


ENCODERS = {
    "distilbert": _distilbert,
    "electra": lambda: _masked("Electra", embedding_size=16),
    "albert": lambda: _masked("Albert", embedding_size=16),
    "xlm_roberta": lambda: _masked("XLMRoberta"),
    "camembert": lambda: _masked("Camembert"),
    "ernie": lambda: _masked("Ernie"),
    "roberta_prelayernorm": lambda: _masked("RobertaPreLayerNorm"),
    "data2vec_text": lambda: _masked("Data2VecText"),
    "modernbert": _modernbert,
}
DECODERS = {
    "gemma": lambda: _decoder("Gemma", head_dim=4),
    "gemma2_uncapped": lambda: _decoder("Gemma2", head_dim=4, attn_logit_softcapping=None, **WINDOW),
    "gemma3": _gemma3,
    "phi": lambda: _decoder("Phi"),
    "phi3": lambda: _decoder("Phi3"),
    "phi3_sliding": lambda: _decoder("Phi3", sliding_window=3),
    "mixtral": lambda: _decoder("Mixtral", num_local_experts=2, num_experts_per_tok=1, **MIXED),
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "olmo": lambda: _decoder("Olmo"),
    "olmo2": lambda: _decoder("Olmo2"),
    "granite": lambda: _decoder("Granite"),
    "stablelm": lambda: _decoder("StableLm"),
    "starcoder2": lambda: _decoder("Starcoder2", sliding_window=None),
    "qwen2_moe": lambda: _decoder("Qwen2Moe", **EXPERTS, shared_expert_intermediate_size=8),
    "qwen3_moe": lambda: _decoder("Qwen3Moe", **EXPERTS, head_dim=4),
}
SEQ2SEQ = {
    "bart": lambda: _seq2seq("Bart", BART),
    "mbart": lambda: _seq2seq("MBart", BART),
    "marian": lambda: _seq2seq("Marian", BART),
    "pegasus": lambda: _seq2seq("Pegasus", BART),
    "blenderbot": lambda: _seq2seq("Blenderbot", BART),
    "blenderbot_small": lambda: _seq2seq("BlenderbotSmall", BART),
    "m2m_100": lambda: _seq2seq("M2M100", BART),
    "plbart": lambda: _seq2seq("PLBart", BART),
    "t5": lambda: _seq2seq("T5", T5),
    "mt5": lambda: _seq2seq("MT5", T5),
    "umt5": lambda: _seq2seq("UMT5", T5),
}
IMAGES = {
    "vit_mae": lambda: _image("ViTMAE", "Model", mask_ratio=0.0),
    "vit_msn": lambda: _image("ViTMSN", "ForImageClassification", num_labels=5),
    "ijepa": lambda: _image("IJepa", "ForImageClassification", num_labels=5),
    "dinov3_vit": lambda: _image("DINOv3ViT", "Model", num_register_tokens=2),
    "segformer": _segformer,
    "swin": _swin,
    "swinv2": lambda: _swin("Swinv2"),
    "sam": _sam,
    "ast": lambda: hf.ASTForAudioClassification(hf.ASTConfig(**BLOCKS, patch_size=4, max_length=12, num_mel_bins=8)),
}
KINDS = ("Wav2Vec2", "Hubert", "UniSpeech", "SEW")
SOUNDS = {name.lower(): (lambda kind=name: _sound(kind)) for name in KINDS}
SOUNDS |= {"unispeech_sat": lambda: _sound("UniSpeechSat"), "data2vec_audio": lambda: _sound("Data2VecAudio")}
MORE = {**ENCODERS, **DECODERS, **SEQ2SEQ, **IMAGES, **SOUNDS, "siglip2": _siglip2, "electra_cross": _electra_decoder}

COPIES = {"xlm_roberta", "camembert", "ernie", "roberta_prelayernorm", "data2vec_text", "olmo", "granite", "qwen2_moe"}
COPIES |= {"pegasus", "blenderbot", "blenderbot_small", "m2m_100", "plbart", "mt5", "vit_msn", "ijepa", "unispeech"}
COPIES |= {"sew", "unispeech_sat", "data2vec_audio"}  # attention that is, but for its name, that of another family


def build_more(name, dtype=torch.float64, seed=0):
    """A model with weights large enough that attention matters, in evaluation mode."""
    torch.manual_seed(seed)
    model = MORE[name]().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:  # sinusoids, which are not saved
                continue
            if parameter.dim() > 1:
                parameter.normal_(std=0.3 if parameter[0].numel() <= 64 else 0.1)
            elif (parameter == 0).all():
                parameter.normal_(std=0.2)
    return model


def call_more(name, model, rows=2, tokens=7, seed=1):
    """Keyword arguments of a call without padding."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype

    def real(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def ids(length):
        return torch.randint(3, 39, (rows, length), generator=generator)

    if name == "ast":
        return {"input_values": real(rows, 12, 8)}
    if name == "sam":
        points = torch.rand(rows, 1, 2, 2, generator=generator).to(dtype) * 30
        return {"pixel_values": real(rows, 3, 32, 32), "input_points": points}
    if name == "vit_mae":
        return {"pixel_values": real(rows, 3, 16, 16), "noise": real(rows, 4)}
    if name in IMAGES:
        return {"pixel_values": real(rows, 3, 16, 16)}
    if name in SOUNDS:
        return {"input_values": real(rows, 80), "attention_mask": torch.ones(rows, 80, dtype=torch.long)}
    if name == "siglip2":
        patches = {"pixel_values": real(rows, 16, 12), "spatial_shapes": torch.tensor([[4, 4]] * rows)}
        return {"input_ids": ids(6), **patches, "pixel_attention_mask": torch.ones(rows, 16, dtype=torch.long)}
    call = {"input_ids": ids(tokens), "attention_mask": torch.ones(rows, tokens, dtype=torch.long)}
    if name in SEQ2SEQ:
        call |= {"decoder_input_ids": ids(6), "decoder_attention_mask": torch.ones(rows, 6, dtype=torch.long)}
    if name == "electra_cross":
        call |= {"encoder_hidden_states": real(rows, 5, 16)}
    return call


def answer(name, model, call, **options):
    """One tensor that depends on all of the model's attention."""
    result = model(**call, **options)
    names = ("logits", "logits_per_image", "pred_masks", "last_hidden_state")
    return next(getattr(result, field) for field in names if getattr(result, field, None) is not None)
