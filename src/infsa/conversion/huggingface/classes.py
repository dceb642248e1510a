"""What the attention classes of Hugging Face transformers are: one row per class that was read and tested."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..swap import ONE_NORM

Role = Literal["self", "causal", "cross", "causal cross"]


def _self_attention(module: Any) -> Role:
    causal = getattr(module, "is_causal", False) and getattr(module.config, "is_causal", True)
    return "causal" if causal else "self"


def _cross(module: Any) -> Role:
    return "cross"


def _causal_cross(module: Any) -> Role:
    return "causal cross"


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
    return "relative position" if per_layer or shared else ""


def _relative(module: Any) -> str:
    return "relative position"


def _t5_bias(module: Any) -> str:
    return "" if _encoder_decoder(module) == "causal cross" else "relative position"


def _always(module: Any) -> bool:
    return True


PADDED = "padding of incomplete windows is made outside the layer and takes part, as it does with softmax"

PLAIN = Traits()
DECODER = Traits(rotary=True)
WINDOWED = Traits(rotary=True, window=True)
NORMALISED = Traits(rotary=True, qk_norm=_always)
THREE_WAYS = Traits(_encoder_decoder)
T5 = Traits(_encoder_decoder, bias=_t5_bias, bias_beside=True)
BERTS = ("Bert", "Roberta", "Electra", "XLMRoberta", "Camembert", "RobertaPreLayerNorm", "Ernie", "Data2VecText")

CLASSES: dict[str, Traits] = {
    **{f"{name}SelfAttention": PLAIN for name in BERTS},
    **{f"{name}CrossAttention": Traits(_causal_cross) for name in BERTS},
    "DistilBertSelfAttention": PLAIN,
    "AlbertAttention": PLAIN,
    "ModernBertAttention": Traits(rotary=True),
    # images
    "ViTAttention": PLAIN,
    "DeiTAttention": PLAIN,
    "ViTMAEAttention": PLAIN,
    "ViTMSNAttention": PLAIN,
    "IJepaAttention": PLAIN,
    "BeitAttention": Traits(bias=_beit_bias),
    "CLIPAttention": Traits(by_call=True),
    "SiglipAttention": PLAIN,
    "Siglip2Attention": PLAIN,
    "Dinov2Attention": PLAIN,
    "Dinov2SelfAttention": PLAIN,
    "Dinov2WithRegistersAttention": PLAIN,
    "Dinov2WithRegistersSelfAttention": PLAIN,
    "DINOv3ViTAttention": Traits(rotary=True),
    "SegformerAttention": Traits(_segformer),
    "SwinAttention": Traits(bias=_relative, shift=True, lost=(ONE_NORM, PADDED)),
    "SamAttention": Traits(_cross),
    "DetrSelfAttention": PLAIN,
    "DetrCrossAttention": Traits(_cross),
    "RTDetrSelfAttention": PLAIN,
    # sound
    "Wav2Vec2Attention": PLAIN,
    "HubertAttention": PLAIN,
    "Data2VecAudioAttention": PLAIN,
    "UniSpeechAttention": PLAIN,
    "UniSpeechSatAttention": PLAIN,
    "SEWAttention": PLAIN,
    "ASTAttention": PLAIN,
    "WhisperAttention": THREE_WAYS,
    # text, encoder and decoder
    "BartAttention": THREE_WAYS,
    "MBartAttention": THREE_WAYS,
    "MarianAttention": THREE_WAYS,
    "PegasusAttention": THREE_WAYS,
    "BlenderbotAttention": THREE_WAYS,
    "BlenderbotSmallAttention": THREE_WAYS,
    "M2M100Attention": THREE_WAYS,
    "PLBartAttention": THREE_WAYS,
    "T5Attention": T5,
    "MT5Attention": T5,
    "UMT5Attention": T5,
    # text, decoder alone
    "GPT2Attention": Traits(_gpt2),
    "OPTAttention": PLAIN,
    "GPTNeoXAttention": DECODER,
    "LlamaAttention": DECODER,
    "Qwen2Attention": DECODER,
    "Qwen2MoeAttention": DECODER,
    "Qwen3Attention": NORMALISED,
    "Qwen3MoeAttention": NORMALISED,
    "MistralAttention": WINDOWED,
    "MixtralAttention": WINDOWED,
    "Starcoder2Attention": WINDOWED,
    "Phi3Attention": WINDOWED,
    "PhiAttention": Traits(rotary=True, qk_norm=lambda module: module.qk_layernorm),
    "GemmaAttention": DECODER,
    "Gemma2Attention": Traits(rotary=True, cap="attn_logit_softcapping"),
    "Gemma3Attention": NORMALISED,
    "OlmoAttention": DECODER,
    "Olmo2Attention": NORMALISED,
    "GraniteAttention": DECODER,
    "StableLmAttention": Traits(rotary=True, qk_norm=lambda module: module.qk_layernorm),
}

INSIDE = ("SamVisionAttention", "SamVisionSdpaAttention", "Swinv2SelfAttention")  # they ask no registry

REFUSED = {  # classes whose scores InfSA cannot take, and why
    "GptOssAttention": "attention sinks: a learned score without a token, which only softmax can share weight with",
    "BloomAttention": "it adds its linear position bias inside its own softmax and asks no registry",
    "MptAttention": "it adds its linear position bias inside its own softmax and asks no registry",
    "FalconAttention": "it scores inside its own forward pass, with or without a position bias, and asks no registry",
    "DisentangledSelfAttention": "its scores are sums over content and positions, made inside its own forward pass",
    "LongformerSelfAttention": "its scores are bands of a matrix that is never made: there is no norm of all of them",
    "BigBirdBlockSparseAttention": "its scores are random blocks of a matrix: there is no norm of all of them",
    "WavLMAttention": "its position bias is gated by each query inside torch's own softmax attention",
    "DiffLlamaAttention": "it subtracts one softmax from another",
    "Gemma3nTextAttention": "later layers read the keys of earlier ones from the cache, without the sums of InfSA",
}
