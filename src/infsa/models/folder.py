"""What stands beside the weights in a saved folder, for timm, Hugging Face and this package alike.

``config.json`` names the model, its arguments and its classes; ``preprocessor_config.json`` is the validation transform
in the form of Hugging Face's image processors.
"""

import json
import math
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from .header import parse
from .infvit import InfViT
from .options import WITH_DECAY
from .stem import FIRST_CONV

CONFIG = "config.json"
PROCESSOR = "preprocessor_config.json"
DEFAULT_ARCHITECTURE = "infvit_linear_4l64h_patch16_224"  # of models built without a name: every argument is saved
ORIGIN = ("file", "url", "source", "hf_hub_id", "hf_hub_filename", "state_dict")  # where weights once came from


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))


def resolved_arguments(model: InfViT) -> dict[str, Any]:
    """The model's arguments, with the γ that None stands for; without one where no mechanism has one."""
    arguments = model.arguments | {"gamma": model.gamma}
    with_decay = any(name in WITH_DECAY for name in model.attentions)
    return arguments if with_decay else {k: v for k, v in arguments.items() if k != "gamma"}


def label_names(model: InfViT) -> list[str] | None:
    """The names of the classes, if the model knows one for each."""
    names = getattr(model, "pretrained_cfg", {}).get("label_names")
    return [str(name) for name in names] if names and len(names) == model.num_classes else None


def folder_config(model: InfViT) -> dict[str, Any]:
    """The content of ``config.json``: arguments and labels for Hugging Face, architecture and data for timm."""
    known = {k: v for k, v in getattr(model, "pretrained_cfg", {}).items() if v is not None and k not in ORIGIN}
    first_conv = FIRST_CONV[model.stem if max(model.patch_embed.patch_size) > 1 else "patch"]
    data: dict[str, Any] = {"classifier": "head", **known, "first_conv": first_conv}  # timm's loader asks
    data |= {"num_classes": model.num_classes, "input_size": (model.in_chans, *model.patch_embed.img_size)}
    names = label_names(model)
    labels: dict[str, Any] = {}
    if names is not None:
        by_name = {name: index for index, name in enumerate(names)}
        labels = {"id2label": {str(index): name for index, name in enumerate(names)}, "label2id": by_name}
    else:
        data.pop("label_names", None)
    arguments = resolved_arguments(model) | {"attention_grid": model.attention_grid}
    return plain(
        {
            **arguments,  # at the top for Hugging Face, in model_args for timm
            "model_type": "infvit",
            "architectures": ["InfViTForImageClassification" if model.num_classes else "InfViTModel"],
            "num_labels": model.num_classes,
            **labels,
            "architecture": data.get("architecture", DEFAULT_ARCHITECTURE),
            "num_features": model.num_features,
            "pretrained_cfg": data,
            "model_args": arguments,
        }
    )


def processor_config(size: int | tuple[int, int], data: dict[str, Any]) -> dict[str, Any]:
    """The validation transform for images of ``size``, from timm's data configuration, as Hugging Face writes it.

    The shorter side is resized, then the centre cropped; a size that is not square is resized to directly.
    """
    height, width = (size, size) if isinstance(size, int) else size
    square = height == width
    crop = data.get("crop_pct") or (224 / 257 if height == width == 224 else 1.0)
    whole = {"height": height, "width": width}
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": math.floor(height / crop + 1e-9)} if square else whole,
        "resample": int(Image.Resampling[str(data.get("interpolation") or "bicubic").upper()]),
        "do_center_crop": square,
        "crop_size": whole,
        "do_convert_rgb": True,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": list(data.get("mean") or IMAGENET_DEFAULT_MEAN),
        "image_std": list(data.get("std") or IMAGENET_DEFAULT_STD),
    }


def read_folder_config(file: Path) -> dict[str, Any]:
    """The ``config.json`` beside a weight file, or nothing; a file that is not JSON is refused."""
    path = file.with_name(CONFIG)
    if not path.is_file():
        return {}
    content = parse(path.read_text(encoding="utf-8", errors="replace"), str(path))
    return content if isinstance(content, dict) else {}


def table_in(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A table inside a configuration; empty if there is none."""
    value = config.get(name)
    return value if isinstance(value, dict) else {}
