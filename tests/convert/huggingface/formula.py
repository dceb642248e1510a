"""What a converted layer must return, from the original layer's projections and the dense oracle of the operators."""

import math

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from ...ops import plain
from .models import CHUNK

GAMMA = 0.7


def calls_of(model, call):
    """The last call of every converted Hugging Face layer: arguments, keywords, first result."""
    calls, handles = {}, []

    def record(name):
        def hook(module, arguments, options, result):
            calls[name] = (arguments, options, result[0].detach())

        return hook

    for name, module in model.named_modules():
        if getattr(module, "infsa_layer", None) is not None and module.infsa_layer.family == "transformers":
            handles.append(module.register_forward_hook(record(name), with_kwargs=True))
    with torch.no_grad():
        model(**call)
    for handle in handles:
        handle.remove()
    return calls


def heads(x, width):
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def projections(module, arguments, options):
    """q, k, v (B, H, N, d), scaled as the layer does, by its own weights; grouped keys repeated."""
    width = getattr(module, "head_dim", None) or module.attention_head_size
    x = arguments[0] if arguments else options["hidden_states"]
    source = next((options[n] for n in ("key_value_states", "encoder_hidden_states") if options.get(n) is not None), x)
    if type(module).__name__ == "GPT2Attention":
        if module.is_cross_attention:
            parts = [module.q_attn(x), *module.c_attn(source).chunk(2, -1)]
        else:
            parts = module.c_attn(x).chunk(3, -1)
        return [heads(part, width) for part in parts]
    names = ("q_proj", "k_proj", "v_proj") if hasattr(module, "q_proj") else ("query", "key", "value")
    places = options.get("position_embeddings")
    detection = type(module).__name__.startswith(("Detr", "RTDetr"))
    asked, seen = x, source
    if detection and places is not None:
        asked = x + places
        seen = asked if source is x else source
    if options.get("encoder_position_embeddings") is not None:
        seen = source + options["encoder_position_embeddings"]
    q, k, v = (heads(getattr(module, n)(y), width) for n, y in zip(names, (asked, seen, source), strict=True))
    if hasattr(module, "q_norm"):
        q, k = module.q_norm(q), module.k_norm(k)
    if not detection and places is not None:
        q, k = apply_rotary_pos_emb(q, k, *places)
    groups = q.shape[1] // k.shape[1]
    return [q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)]


def joined(module, z):
    rows = z.transpose(1, 2).flatten(2)
    for name in ("o_proj", "out_proj", "c_proj"):
        if hasattr(module, name):
            return getattr(module, name)(rows)
    return rows


def padding(name, layer, call, k):
    """Which keys of a layer are real, from what the caller said, (B, Nk); None where nothing is padded."""
    if name == "detr":
        if layer.startswith("model.encoder") or "encoder_attn" in layer:
            stride = 32 // math.isqrt(k.shape[2])
            return call["pixel_mask"][:, ::stride, ::stride].flatten(1).bool()
        return None
    if "crossattention" in layer:
        return call["encoder_attention_mask"].bool()
    if name == "whisper":
        return None if "encoder" in layer else call["decoder_attention_mask"].bool()
    if layer.startswith("vision_model") or "attention_mask" not in call:
        return None
    return call["attention_mask"].bool()


def rows_so_far(q, k, v, key_mask, query_mask):
    """A decoder's cross-attention: row i divided by the norm of rows up to i."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    edges = scores.relu() * query_mask[:, None, :, None]
    if key_mask is not None:
        edges = edges * key_mask[:, None, None, :]
    norm = edges.square().sum(-1).cumsum(-1).sqrt()[..., None]
    return GAMMA * edges @ v / (norm + 1e-6)


def expected(name, variant, layer, module, arguments, options, call):
    with torch.no_grad():
        q, k, v = projections(module, arguments, options)
        key_mask = padding(name, layer, call, k)
        causal = getattr(module, "is_causal", False) or (layer.startswith("text_model") and name == "clip")
        if "crossattention" in layer or (name == "whisper" and "encoder_attn" in layer):
            decoder = call.get("decoder_attention_mask", call.get("attention_mask")).bool()
            return joined(module, rows_so_far(q, k, v, key_mask, decoder))
        crossed = name == "detr" and "encoder_attn" in layer
        masks = {"key_mask": key_mask}
        if crossed:
            masks["query_mask"] = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
        if variant == "linear":
            chunks = {"causal": "chunk", "chunk_size": CHUNK} if causal else {}
            z = plain.linear_attention(q, k, v, gamma=GAMMA, **masks, **chunks)
            return joined(module, z.expand(-1, -1, q.shape[2], -1))
        if name.startswith("beit"):
            masks["attn_mask"] = options["attention_mask"]
        if window := window_of(name, layer):
            place = torch.arange(q.shape[2])
            masks["attn_mask"] = place[:, None] - place < window
        return joined(module, plain.pure_attention(q, k, v, gamma=GAMMA, is_causal=causal, **masks))


def window_of(name, layer):
    if name == "mistral_sliding" or (name == "qwen2_sliding" and ".1." in layer):
        return 3
    return None
