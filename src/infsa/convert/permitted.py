"""What the file of a converted model may choose: a model that a library is known by name for, its sizes, its layers."""

from typing import Any

import torch

from ..models.header import (
    DECAY,
    FLAG,
    NONE,
    RATE,
    SIDES,
    WIDTH,
    Rule,
    brief,
    either,
    number,
    one_of,
    permitted,
    some,
    whole,
)
from ..ops.activation import ACTIVATIONS
from ..ops.validate import IMPLEMENTATIONS

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DEPTH = whole(1, 1 << 10)
WIDTHS = either(WIDTH, some(WIDTH, 1, 16))
DEPTHS = some(DEPTH, 1, 16)
RATES = either(RATE, some(RATE, 1, 16))
RATIOS = either(number(1e-3, 1e3), some(number(1e-3, 1e3), 1, 16))
TABLE = Rule("a table of names and values", lambda value: isinstance(value, dict))
TEXT = Rule("text", lambda value: isinstance(value, str))

FACTS = {"source": TEXT, "options": TABLE, "layers": TABLE, "buffers": TABLE}

SETTINGS = {  # of infsa.convert
    "variant": one_of("pure", "linear"),
    "gamma": DECAY,
    "learn_gamma": FLAG,
    "activation": one_of(*ACTIVATIONS),
    "level": one_of("swap", "surgery"),
    "chunk_size": either(whole(1, 1 << 40), NONE),
    "eps": number(0, 1e6),
    "impl": one_of(*IMPLEMENTATIONS),
}

TIMM = {  # arguments of timm's transformers
    "act_layer": one_of("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "swish"),
    "always_partition": FLAG,
    "attn_drop_rate": RATE,
    "class_token": FLAG,
    "depth": DEPTH,
    "depths": DEPTHS,
    "drop_path_rate": RATE,
    "drop_rate": RATE,
    "dynamic_img_pad": FLAG,
    "dynamic_img_size": FLAG,
    "embed_dim": WIDTHS,
    "embed_dims": WIDTHS,
    "global_pool": one_of("", "token", "avg", "avgmax", "max", "map"),
    "head_init_scale": number(0, 1e3),
    "img_size": SIDES,
    "in_chans": whole(1, 1 << 12),
    "init_values": either(number(0, 1e3), NONE),
    "mlp_ratio": RATIOS,
    "mlp_ratios": RATIOS,
    "no_embed_class": FLAG,
    "num_classes": whole(0, 1 << 24),
    "num_heads": WIDTHS,
    "patch_drop_rate": RATE,
    "patch_size": SIDES,
    "pos_drop_rate": RATE,
    "pos_embed": one_of("", "none", "learn"),
    "pre_norm": FLAG,
    "proj_bias": FLAG,
    "proj_drop_rate": RATE,
    "qk_norm": FLAG,
    "qkv_bias": FLAG,
    "reg_tokens": whole(0, 1 << 12),
    "scale_attn_norm": FLAG,
    "scale_mlp_norm": FLAG,
    "strict_img_size": FLAG,
    "use_abs_pos_emb": FLAG,
    "use_rel_pos_bias": FLAG,
    "use_shared_rel_pos_bias": FLAG,
    "window_size": SIDES,
}

TORCHVISION = {
    "attention_dropout": RATE,
    "dropout": RATE,
    "image_size": SIDES,
    "input_size": SIDES,
    "num_classes": whole(1, 1 << 24),
    "representation_size": either(WIDTH, NONE),
    "stochastic_depth_prob": RATE,
}


def permitted_facts(asked: Any, where: str) -> dict[str, Any]:
    """What a file says of the conversion, if it says no more than it may.

    Example:
        >>> permitted_facts({"source": "timm:deit_tiny_patch16_224", "layers": {...}}, "model.safetensors: its header")
    """
    facts = {"source": "", "options": {}, "buffers": {}, **permitted(asked, FACTS, where)}
    if not facts.get("layers"):
        raise ValueError(f"{where} must name the converted layers, got {brief(facts.get('layers'))}")
    for name, fields in facts["layers"].items():
        permitted(fields, SETTINGS, f"{where}: layer {brief(name)}")
    permitted(facts["buffers"], dict.fromkeys(facts["buffers"], one_of(*DTYPES)), f"{where}: buffers")
    return facts


def check_source(source: str, options: dict[str, Any], where: str) -> None:
    """Refuse a source that is not an architecture which its library brings along, and options that are none of sizes.

    Example:
        >>> check_source("timm:deit_tiny_patch16_224", {"num_classes": 10}, "model.safetensors: its header")
    """
    library, _, name = source.partition(":") if ":" in source else ("timm", "", source)
    if library == "timm" and _is_timm(name):
        permitted(options, TIMM, where)
    elif library == "torchvision" and _is_torchvision(name):
        permitted(options, TORCHVISION, where)
    elif library == "hf" and (config := _config_class(name)) is not None:
        from .permitted_fields import permitted_fields

        permitted_fields(options, config, where)
    else:
        raise ValueError(
            f"{where} asks for the source {brief(source)}, which a file may not choose: "
            "give the model, load_converted(FILE, open_model(SOURCE))"
        )


def _is_timm(name: str) -> bool:
    import timm

    return timm.is_model(name)


def _is_torchvision(name: str) -> bool:
    from torchvision.models import list_models  # type: ignore[import-untyped]

    return name in list_models()


def _config_class(name: str) -> Any:
    from .permitted_fields import config_class, has_layers

    config = config_class(name)
    return config if config is not None and has_layers(config) else None
