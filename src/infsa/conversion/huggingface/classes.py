"""What the attention classes of Hugging Face transformers are: one row per class that was read and tested."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..windows import ONE_NORM

Role = Literal["self", "causal", "cross", "causal cross"]


def _self_attention(module: Any) -> Role:
    causal = getattr(module, "is_causal", False) and getattr(module.config, "is_causal", True)
    return "causal" if causal else "self"


def _gpt2(module: Any) -> Role:
    return "causal cross" if module.is_cross_attention else _self_attention(module)


def _encoder_decoder(module: Any) -> Role:
    """One class for all three attentions: of a decoder's two, the cross-attention is the one that is not causal."""
    return "causal cross" if module.is_decoder and not module.is_causal else _self_attention(module)


def _segformer(module: Any) -> Role:
    return "cross" if module.sequence_reduction_ratio > 1 else "self"


@dataclass(frozen=True)
class Traits:
    """What a class does around its scores, beyond what its instances tell.

    Attributes:
        role: reads the role from an instance.
        rotary, qk_norm: whether queries and keys are rotated by position, normalised.
        by_call: a call can make it causal.
        bias: names a bias on the scores, if the configuration switches it on; it arrives inside the mask.
        bias_beside: the bias arrives beside the mask.
        shift: the bias holds the mask of a window shift, which must be told apart before.
        window: the sliding window is written in the configuration, not on the instance.
        cap: the attribute that caps the scores.
        lost: what conversion cannot preserve.
    """

    role: Callable[[Any], Role] = _self_attention
    rotary: bool = False
    qk_norm: Callable[[Any], bool] = lambda module: False
    by_call: bool = False
    bias: Callable[[Any], str] = lambda module: ""
    bias_beside: bool = False
    shift: bool = False
    window: bool = False
    cap: str = ""
    lost: tuple[str, ...] = ()


def _beit_bias(module: Any) -> str:
    config = module.config
    per_layer, shared = config.use_relative_position_bias, config.use_shared_relative_position_bias
    return RELATIVE if per_layer or shared else ""


def _t5_bias(module: Any) -> str:
    return "" if _encoder_decoder(module) == "causal cross" else RELATIVE


RELATIVE = "relative position"
PADDED = "padding of incomplete windows is made outside the layer and takes part, as it does with softmax"

BERTS = ["Bert", "Roberta", "Electra", "XLMRoberta", "Camembert", "RobertaPreLayerNorm", "Ernie", "Data2VecText"]
SWIN = Traits(bias=lambda module: RELATIVE, shift=True, lost=(ONE_NORM, PADDED))
T5 = Traits(_encoder_decoder, bias=_t5_bias, bias_beside=True)
LAYER_NORM = Traits(rotary=True, qk_norm=lambda module: module.qk_layernorm)

# what classes are -> their names without "Attention"; each was read and is tested
KNOWN: dict[Traits, str] = {
    Traits(): "DistilBertSelf Albert "
    "ViT DeiT ViTMAE ViTMSN IJepa Siglip Siglip2 Dinov2 Dinov2Self Dinov2WithRegisters Dinov2WithRegistersSelf "
    "DetrSelf RTDetrSelf Wav2Vec2 Hubert Data2VecAudio UniSpeech UniSpeechSat SEW AST OPT",
    Traits(rotary=True): "ModernBert DINOv3ViT GPTNeoX Llama Qwen2 Qwen2Moe Gemma Olmo Granite",
    Traits(rotary=True, window=True): "Mistral Mixtral Starcoder2 Phi3",
    Traits(rotary=True, qk_norm=lambda module: True): "Qwen3 Qwen3Moe Gemma3 Olmo2",
    Traits(rotary=True, cap="attn_logit_softcapping"): "Gemma2",
    Traits(_encoder_decoder): "Whisper Bart MBart Marian Pegasus Blenderbot BlenderbotSmall M2M100 PLBart",
    Traits(lambda module: "cross"): "Sam DetrCross",
    Traits(bias=_beit_bias): "Beit",
    Traits(by_call=True): "CLIP",
    Traits(_segformer): "Segformer",
    Traits(_gpt2): "GPT2",
    SWIN: "Swin",
    T5: "T5 MT5 UMT5",
    LAYER_NORM: "Phi StableLm",
}
CLASSES: dict[str, Traits] = {
    **{f"{name}Attention": traits for traits, names in KNOWN.items() for name in names.split()},
    **{f"{name}SelfAttention": Traits() for name in BERTS},
    **{f"{name}CrossAttention": Traits(lambda module: "causal cross") for name in BERTS},
}

INSIDE = ("SamVisionAttention", "SamVisionSdpaAttention", "Swinv2SelfAttention")  # they ask no registry

REFUSED = {  # classes whose scores InfSA cannot take, and why
    "GptOssAttention": "attention sinks: a learned score without a token, which only softmax can share weight with",
    "BloomAttention": "it adds its linear position bias inside its own softmax and does not use the attention registry",
    "MptAttention": "it adds its linear position bias inside its own softmax and does not use the attention registry",
    "FalconAttention": "it scores inside its own forward pass and does not use the attention registry",
    "DisentangledSelfAttention": "its scores are sums over content and positions, made inside its own forward pass",
    "LongformerSelfAttention": "its scores are bands of a matrix that is never made: there is no norm of all of them",
    "BigBirdBlockSparseAttention": "its scores are random blocks of a matrix: there is no norm of all of them",
    "WavLMAttention": "its position bias is gated by each query inside torch's own softmax attention",
    "DiffLlamaAttention": "it subtracts one softmax from another",
    "Gemma3nTextAttention": "later layers read the keys of earlier ones from the cache, without the sums of InfSA",
}
