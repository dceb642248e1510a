"""Plain vision transformers of timm and Hugging Face, read from this disk into an InfViT with softmax attention.

The two are the same function with the same weights; whether they are is tried on an image. Nothing is fetched.
"""

import contextlib
import difflib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from .folder import CONFIG, PROCESSOR, plain
from .header import DATA
from .infvit import InfViT
from .options import layer_names
from .presets import MODELS, SHIPPED, shipped_weights
from .weights import WEIGHTS, read_data_config, read_weights

SOFTMAX = "vit_4l16h_patch16_224"  # the name under which adopted models are built; their arguments say the rest
CLOSE = 1e-3  # of the largest logit: LayerNorms may differ in their epsilon
RENAMED = (  # Hugging Face's names, and timm's
    ("vit.embeddings.cls_token", "cls_token"),
    ("vit.embeddings.position_embeddings", "pos_embed"),
    ("vit.embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("vit.encoder.layer.", "blocks."),
    ("vit.layers.", "blocks."),
    ("vit.layernorm.", "norm."),
    ("classifier.", "head."),
    (".attention.output.dense.", ".attn.proj."),
    (".attention.o_proj.", ".attn.proj."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
)
Adopted = tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]  # weights, arguments, data


def adopt_timm(name: str) -> Adopted:
    """The weights of a model by timm's name, if they are on this disk."""
    base = name.partition(".")[0]
    if base in SHIPPED and (file := shipped_weights(base)) is not None:
        return *read_weights(file), read_data_config(file)
    file, config = timm_weights(name)
    return _from_timm(f"timm:{name}", name, file, config.to_dict())


def timm_weights(name: str) -> tuple[Path, Any]:
    """The safetensors file of a model by timm's name, if it is on this disk, and timm's description of it."""
    base = name.partition(".")[0]
    if not timm.is_model(base) or base in MODELS:
        near = difflib.get_close_matches(base, timm.list_models(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"timm has no weights for a model {name!r}{hint}")
    config: Any = timm.get_pretrained_cfg(name)
    file = _cached(config.hf_hub_id, WEIGHTS) or _downloaded(config.url) if config else None
    if file is None:
        raise FileNotFoundError(
            f"the weights of timm:{name} are not on this disk, and nothing is downloaded; "
            f"timm.create_model({name!r}, pretrained=True) downloads them"
        )
    return file, config


def adopt_hugging_face(name: str) -> Adopted:
    """The weights in a folder, or in the cache of the hub under a repository's name."""
    if not name:
        raise ValueError("hf: needs the name of a repository or folder after the colon, got none")
    folder = Path(name)
    if folder.is_dir() and not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"no {CONFIG} in {folder}")
    if not folder.is_dir():
        there = _cached(name, CONFIG)
        if there is None or not (there.parent / WEIGHTS).is_file():
            raise FileNotFoundError(
                f"no folder {name} and no {WEIGHTS} of hf:{name} on this disk, and nothing is downloaded; "
                f"huggingface-cli download {name} downloads it"
            )
        folder = there.parent
    config = _json(folder / CONFIG)
    if config.get("model_type") == "infvit":
        return *read_weights(folder), read_data_config(folder)
    if "architecture" in config:
        data = config.get("pretrained_cfg", config)
        data |= {"num_classes": config.get("num_classes", data.get("num_classes"))}
        return _from_timm(f"hf:{name}", config["architecture"], folder / WEIGHTS, data, config.get("model_args", {}))
    if config.get("model_type") != "vit":
        raise ValueError(f"hf:{name} is a {config.get('model_type')} model; accepted are plain vision transformers")
    return _from_transformers(name, folder)


def is_plain_vit(folder: Path) -> bool:
    """Whether a folder holds a vision transformer of timm or transformers rather than a model of this package."""
    if not (folder / CONFIG).is_file():
        return False
    config = _json(folder / CONFIG)
    return config.get("model_type") != "infvit" and ("architecture" in config or config.get("model_type") == "vit")


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error


def _cached(repository: str | None, name: str) -> Path | None:
    """A file of a repository in the cache of Hugging Face's hub."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if not repository:
        return None
    try:
        found = try_to_load_from_cache(repository, name)
    except HFValidationError as error:
        raise ValueError(f"hf:{repository} is not the name of a repository: {error}") from error
    return Path(found) if isinstance(found, str) else None


def _downloaded(url: str | None) -> Path | None:
    """A safetensors file that torch.hub has downloaded before."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url or "none").name
    return path if path.suffix == ".safetensors" and path.is_file() else None


def _from_timm(
    source: str, name: str, file: Path, data: dict[str, Any], options: dict[str, Any] | None = None
) -> Adopted:
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"{source} is of the architecture {name!r}, which timm does not know")
    classes = data.get("num_classes") or 1000
    overlay = {"file": str(file), "custom_load": False, "num_classes": classes}
    given: dict[str, Any] = {**(options or {}), "num_classes": classes, "pretrained_cfg_overlay": overlay}
    with _quiet(), _refusing(source):
        model = timm.create_model(name, pretrained=True, **given)
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"{source} is a {type(model).__name__}; accepted are plain vision transformers")
    return _adopted(source, model.eval(), folded_weights(model), timm_arguments(model, source), data_facts(data))


def timm_arguments(model: VisionTransformer, source: str) -> dict[str, Any]:
    """The arguments of an :class:`InfViT` of the same sizes as a vision transformer of timm."""
    first: Any = model.blocks[0]
    for part in filter(None, map(_other_part, model.blocks)):
        raise ValueError(f"{source} is not a plain vision transformer: an InfViT has no {type(part).__name__}")
    return {
        "img_size": plain(model.patch_embed.img_size), "patch_size": plain(model.patch_embed.patch_size),
        "num_classes": model.num_classes, "embed_dim": model.embed_dim, "depth": len(model.blocks),
        "num_heads": first.attn.num_heads, "global_pool": model.global_pool,
        "in_chans": model.patch_embed.proj.in_channels, "reg_tokens": model.num_reg_tokens,
        "class_token": model.has_class_token, "pos_embed": "none" if model.pos_embed is None else "learn",
        "mlp_ratio": first.mlp.fc1.out_features / model.embed_dim, "dynamic_img_pad": model.patch_embed.dynamic_img_pad,
    }  # fmt: skip


def _other_part(block: nn.Module) -> nn.Module | None:
    """A part of a block that an :class:`InfViT` does not have; weights near zero would hide it from a trial."""
    if not isinstance(block, Block):
        return block
    if not isinstance(block.mlp, Mlp):
        return block.mlp
    x = torch.linspace(-6, 6, 49)
    return block.mlp.act if (block.mlp.act(x) - F.gelu(x)).abs().max() > CLOSE else None


def folded_weights(model: VisionTransformer) -> dict[str, Tensor]:
    """The weights as an :class:`InfViT` has them: layer scales folded, absent biases and positions as zeros."""
    weights = dict(model.state_dict())
    for index in range(len(model.blocks)):
        block = f"blocks.{index}."
        for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            if (weight := weights.get(f"{block}{part}.weight")) is not None:
                weights.setdefault(f"{block}{part}.bias", weight.new_zeros(len(weight)))
        for scale, last in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
            if (gamma := weights.pop(f"{block}{scale}.gamma", None)) is not None:
                weights[f"{block}{last}.weight"] = weights[f"{block}{last}.weight"] * gamma.unsqueeze(-1)
                weights[f"{block}{last}.bias"] = weights[f"{block}{last}.bias"] * gamma
    if model.no_embed_class and "pos_embed" in weights:  # positions of patches alone
        weights["pos_embed"] = F.pad(weights["pos_embed"], (0, 0, model.num_prefix_tokens, 0))
    return weights


def data_facts(config: dict[str, Any]) -> dict[str, Any]:
    """What timm's configuration of a model says of its data."""
    return {key: config[key] for key in DATA if config.get(key)}


def _from_transformers(name: str, folder: Path) -> Adopted:
    from transformers import ViTForImageClassification

    with _quiet(), _refusing(f"hf:{name}"):
        model = ViTForImageClassification.from_pretrained(folder, local_files_only=True).eval()
    config = model.config
    weights = {}
    for key, value in model.state_dict().items():
        for old, new in RENAMED:
            key = key.replace(old, new)
        weights[key] = value
    arguments = {
        "img_size": plain(config.image_size), "patch_size": plain(config.patch_size), "num_classes": config.num_labels,
        "embed_dim": config.hidden_size, "depth": config.num_hidden_layers, "num_heads": config.num_attention_heads,
        "mlp_ratio": config.intermediate_size / config.hidden_size, "in_chans": config.num_channels,
    }  # fmt: skip
    views = _json(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    found = {"mean": views.get("image_mean"), "std": views.get("image_std")}
    names = [config.id2label[index] for index in range(config.num_labels)]
    data = {key: value for key, value in found.items() if value}
    if names != [f"LABEL_{index}" for index in range(config.num_labels)]:
        data["label_names"] = names
    return _adopted(f"hf:{name}", lambda images: model(images).logits, _joined(weights), arguments, data)


def _joined(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values under one name, as timm has them, where they are apart."""
    found = dict(weights)
    for key in weights:
        for names in (("attention.attention.query", "attention.attention.key", "attention.attention.value"),
                      ("attention.q_proj", "attention.k_proj", "attention.v_proj")):  # fmt: skip
            if f".{names[0]}." in key:
                parts = [found.pop(key.replace(names[0], name)) for name in names]
                found[key.replace(names[0], "attn.qkv")] = torch.cat(parts)
    return found


def _adopted(
    source: str,
    run: Callable[[Tensor], Tensor],
    weights: dict[str, Tensor],
    arguments: dict[str, Any],
    data: dict[str, Any],
) -> Adopted:
    """The weights, if an InfViT with softmax attention computes the same from them."""
    ours = same_function(source, run, SOFTMAX, weights, arguments | {"attention": "softmax"})
    return ours.state_dict(), plain(ours.arguments) | {"architecture": SOFTMAX}, data


def same_function(
    source: str, run: Callable[[Tensor], Tensor], name: str, weights: dict[str, Tensor], arguments: dict[str, Any]
) -> InfViT:
    """The InfViT of a name and arguments with these weights, refused unless it computes what ``run`` does."""
    options: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in arguments.items()}
    names = ", ".join(dict.fromkeys(layer_names(options["attention"], options["depth"])))
    reason = f"{source} is not a plain vision transformer: an InfViT with {names} attention does not compute the same"
    try:
        ours: InfViT = timm.create_model(name, **options).eval()  # type: ignore[assignment]
        if differ := weights.keys() ^ ours.state_dict().keys():
            raise ValueError(f"only one of them has {min(differ)}")
        ours.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        known = f" ({error})" if isinstance(error, ValueError) else ""
        raise ValueError(f"{reason}{known}") from error
    images = torch.randn(1, ours.in_chans, *ours.patch_embed.img_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given, wanted = ours(images), run(images)
    if given.shape != wanted.shape or (given - wanted).abs().max() > CLOSE * max(1.0, float(wanted.abs().max())):
        raise ValueError(reason)
    return ours


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' progress bars and advice off the screen."""
    loggers = [logging.getLogger(name) for name in ("timm", "transformers")]
    levels = [logger.level for logger in loggers]
    bars: Any = None
    with contextlib.suppress(ImportError):
        from transformers.utils import logging as bars  # type: ignore[no-redef]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        if bars is not None:
            bars.disable_progress_bar()
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars is not None:
            bars.enable_progress_bar()


@contextlib.contextmanager
def _refusing(source: str) -> Iterator[None]:
    """Whatever a library raises about a file, as one line."""
    try:
        yield
    except Exception as error:  # damaged files and unknown fields raise almost anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{source}: its weights could not be loaded: {reason}") from error
