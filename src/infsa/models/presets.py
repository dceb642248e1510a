"""The published model names, registered with timm."""

import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor

from .infvit import InfViT
from .patches import resize_table
from .stem import FIRST_CONV
from .weights import read_data_config, without_prefix

# the models whose weights come with the package, and what figures and pages call them
SHIPPED = {"vit_tiny": "softmax", "infvit_pure_tiny": "Pure InfSA", "infvit_linear_tiny": "Linear-InfSA"}
ELSEWHERE = {"file", "url", "hf_hub_id", "state_dict"}  # what says where other weights are, in timm's configuration


def shipped_weights(name: str) -> Path | None:
    """The weights that come with the package for a model, if there are any."""
    return Path(__file__).with_name("shipped") / f"{name}.safetensors" if name in SHIPPED else None


def _cfg(name: str) -> dict[str, Any]:
    """Data settings of a model; the paper validates at 224 out of 257 pixels."""
    preset, file = PRESETS[name], shipped_weights(name)
    size = preset.get("img_size", 224)
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "pool_size": None,
        "crop_pct": 224 / 257 if size == 224 else 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": FIRST_CONV[preset.get("stem", "patch")],
        "classifier": "head",
        "fixed_input_size": False,
        "license": "mit",
        **({} if file is None else {"file": str(file)}),
    }


TINY: dict[str, Any] = {"img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 6}
PRESETS: dict[str, dict[str, Any]] = {
    "infvit_linear_4l64h_patch16_224": {"depth": 4, "num_heads": 64, "attention": "infsa_linear"},
    "infvit_pure_4l16h_patch16_224": {"depth": 4, "num_heads": 16, "attention": "infsa_pure"},
    "infvit_linear_24l16h_patch16_224": {"depth": 24, "num_heads": 16, "attention": "infsa_linear"},
    "infvit_pure_24l16h_patch16_224": {"depth": 24, "num_heads": 16, "attention": "infsa_pure"},
    "vit_4l16h_patch16_224": {"depth": 4, "num_heads": 16, "attention": "softmax"},
    "vit_24l16h_patch16_224": {"depth": 24, "num_heads": 16, "attention": "softmax"},
    "infvit_linear_conv_4l64h_patch16_224": {"depth": 4, "num_heads": 64, "attention": "infsa_linear", "stem": "conv"},
    "infvit_linear_tiny": {**TINY, "num_heads": 12, "attention": "infsa_linear"},
    "infvit_pure_tiny": {**TINY, "num_heads": 3, "attention": "infsa_pure"},
    "vit_tiny": {**TINY, "num_heads": 3, "attention": "softmax"},
    "infvit_linear_conv_tiny": {**TINY, "num_heads": 12, "attention": "infsa_linear", "stem": "conv"},
}
MODELS = tuple(PRESETS)
default_cfgs = generate_default_cfgs({name: _cfg(name) for name in MODELS})


def fit_weights(weights: dict[str, Tensor], model: InfViT) -> dict[str, Tensor]:
    """What timm's ViT does on loading: positions follow a new image size, a new classifier may start fresh."""
    weights = without_prefix(weights)
    table, own = weights.get("pos_embed"), model.pos_embed
    if table is not None and own is not None and table.shape != own.shape and table.shape[2] == own.shape[2]:
        prefix = model.num_prefix_tokens
        side = math.isqrt(table.shape[1] - prefix)
        if side * side != table.shape[1] - prefix:
            raise ValueError(
                f"pos_embed {tuple(table.shape)} is not of a square grid: load it at its own img_size first"
            )
        weights = {**weights, "pos_embed": resize_table(table, (side, side), model.patch_embed.grid_size, prefix)}
    missing = sorted(name for name in model.state_dict().keys() - weights.keys() if not name.startswith("head."))
    if missing:
        raise ValueError(f"missing: {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}")
    return weights


def _shipped_config(file: Path) -> dict[str, Any]:
    data = read_data_config(file)
    return {**data, "file": str(file), "num_classes": len(data["label_names"])}


def _create(name: str, pretrained: bool, overrides: dict[str, Any], **preset: Any) -> InfViT:
    out_indices = overrides.pop("out_indices", 3)
    file = shipped_weights(name)
    overlay = overrides.get("pretrained_cfg_overlay") or {}
    if overlay.keys() & ELSEWHERE:
        overrides["pretrained_cfg_overlay"] = {"file": None, **overlay}  # timm would prefer the file that is shipped
    elif pretrained and file is not None and not overrides.get("pretrained_cfg"):
        config = _shipped_config(file)
        overrides = {"num_classes": config["num_classes"], **overrides}
        if overrides["num_classes"] != config["num_classes"]:
            config["label_names"] = None  # the classifier starts anew
        overrides["pretrained_cfg_overlay"] = {**config, **overlay}
    options = {**preset, **overrides, "feature_cfg": {"out_indices": out_indices, "feature_cls": "getter"}}
    if not pretrained:
        return build_model_with_cfg(InfViT, name, False, **options)
    try:
        return build_model_with_cfg(InfViT, name, True, pretrained_filter_fn=fit_weights, **options)
    except (RuntimeError, ValueError, OSError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = "; ".join(line.strip() for line in lines[:3])
        raise ValueError(f"{name}: its weights could not be loaded: {reason}") from error


def _register(name: str) -> None:
    def build(pretrained: bool = False, **kwargs: Any) -> InfViT:
        return _create(name, pretrained, kwargs, **PRESETS[name])

    build.__name__ = build.__qualname__ = name
    globals()[name] = register_model(build)  # timm lists it in __all__


for _name in MODELS:
    _register(_name)
