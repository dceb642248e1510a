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
from ..ops.checks import NORMS
from ..ops.dispatch import NAMES

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DEPTH = whole(1, 1 << 10)
WIDTHS = either(WIDTH, some(WIDTH, 1, 16))
DEPTHS = some(DEPTH, 1, 16)
RATIOS = either(number(1e-3, 1e3), some(number(1e-3, 1e3), 1, 16))
TABLE = Rule("a table of names and values", lambda value: isinstance(value, dict))
TEXT = Rule("text", lambda value: isinstance(value, str))

FACTS = {"source": TEXT, "options": TABLE, "layers": TABLE, "buffers": TABLE}

SETTINGS = {  # of infsa.convert
    "variant": one_of("pure", "linear"),
    "norm": one_of("auto", *NORMS),
    "pool_queries": FLAG,
    "gamma": DECAY,
    "learn_gamma": FLAG,
    "activation": one_of(*ACTIVATIONS),
    "level": one_of("swap", "surgery"),
    "chunk_size": either(whole(1, 1 << 40), NONE),
    "eps": number(0, 1e6),
    "impl": one_of(*NAMES),
}

SWITCHES = (
    "always_partition", "class_token", "dynamic_img_pad", "dynamic_img_size", "fc_norm", "final_norm", "fix_init",
    "no_embed_class", "pool_include_prefix", "pre_norm", "proj_bias", "qk_norm", "qkv_bias", "qkv_fused",
    "rope_rotate_half", "scale_attn_inner", "scale_attn_norm", "scale_mlp", "scale_mlp_norm", "shared_rel_pos",
    "strict_img_size", "swiglu_mlp", "use_abs_pos_emb", "use_fc_norm", "use_post_norm", "use_post_transformer_norm",
    "use_pre_transformer_norm", "use_rel_pos_bias", "use_rot_pos_emb", "use_shared_rel_pos_bias",
)  # fmt: skip
DROPS = ("attn_drop_rate", "drop_path_rate", "drop_rate", "patch_drop_rate", "pos_drop_rate", "proj_drop_rate")
TIMM = {  # arguments of timm's transformers
    **dict.fromkeys(SWITCHES, either(FLAG, NONE)),
    **dict.fromkeys(DROPS, RATE),
    **dict.fromkeys(("embed_dim", "embed_dims", "num_heads"), WIDTHS),
    **dict.fromkeys(("img_size", "patch_size", "window_size"), SIDES),
    **dict.fromkeys(("mlp_ratio", "mlp_ratios", "mlp_ratio_token_only"), RATIOS),
    **dict.fromkeys(("depth", "depth_token_only"), DEPTH),
    **dict.fromkeys(("head_dim", "num_kv_heads", "rel_pos_dim"), either(WIDTH, NONE)),
    **dict.fromkeys(("num_reg_tokens", "reg_tokens"), whole(0, 1 << 12)),
    "act_layer": one_of("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "swish"),
    "depths": DEPTHS,
    "global_pool": one_of("", "token", "avg", "avgmax", "max", "map"),
    "head_init_scale": number(0, 1e3),
    "in_chans": whole(1, 1 << 12),
    "init_values": either(number(0, 1e3), NONE),
    "num_classes": whole(0, 1 << 24),
    "pos_embed": one_of("", "none", "learn"),
    "pretrained_window_sizes": some(whole(0, 1 << 10), 1, 16),
    "rel_pos_type": one_of("mlp", "bias", "none"),
    "rope_grid_offset": number(-1e3, 1e3),
    "rope_temperature": number(1, 1e9),
    "weight_init": one_of("", "skip", "jax", "jax_nlhb", "moco"),
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


RULES = {"timm": TIMM, "torchvision": TORCHVISION}


def permitted_facts(asked: Any, where: str) -> dict[str, Any]:
    """What a file says of the conversion, if it says no more than it may."""
    facts = {"source": "", "options": {}, "buffers": {}, **permitted(asked, FACTS, where)}
    if not facts.get("layers"):
        raise ValueError(f"{where} must name the converted layers, got {brief(facts.get('layers'))}")
    check_layers(facts["layers"], where)
    permitted(facts["buffers"], dict.fromkeys(facts["buffers"], one_of(*DTYPES)), f"{where}: buffers")
    return facts


def check_layers(layers: dict[str, Any], where: str) -> None:
    """Refuse layers with settings that :func:`infsa.convert` does not take."""
    for name, fields in layers.items():
        permitted(fields, SETTINGS, f"{where}: layer {brief(name)}")


def check_source(source: str, options: dict[str, Any], where: str) -> None:
    """Refuse a source that is no architecture which its library brings along, and options that are none of sizes."""
    from .permitted_fields import config_class, has_layers, permitted_fields

    library, _, name = source.partition(":") if ":" in source else ("timm", "", source)
    config = config_class(name) if library == "hf" else None
    if config is not None and has_layers(config):
        permitted_fields(options, config, where)
    elif library in RULES and is_architecture(library, name):
        permitted(options, RULES[library], where)
    else:
        raise ValueError(
            f"{where} asks for the source {brief(source)}, which a file may not choose: "
            "give the model, load_converted(FILE, open_model(SOURCE))"
        )


def is_architecture(library: str, name: Any) -> bool:
    """Whether timm or torchvision has an architecture of this name."""
    if library == "timm":
        import timm

        return isinstance(name, str) and timm.is_model(name)
    from torchvision.models import list_models  # type: ignore[import-untyped]

    return name in list_models()
