"""The conditions of a training run in a few words, read from its recipe."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..models.presets import PRESETS
from .sources import Sources

SHARDS = ("tiny-imagenet-a.json", "tiny-imagenet-b.json")
NAMES = ("softmax", "infsa_pure", "infsa_linear", "mean")
AUGMENTATIONS = {"crop_min": "crop", "flip": "flip", "jitter": "jitter"} | {
    name: name.replace("_", " ") for name in ("mixup", "cutmix", "label_smoothing", "drop_path", "erase", "randaugment")
}
OFF = {"crop_min": 1.0}  # what a field says where it changes nothing; any other: 0
Recipe = Mapping[str, Any]


def values_of(recipes: Iterable[Recipe], name: str) -> str:
    """The values that a field takes, each once, in the order of the runs."""
    return "/".join(dict.fromkeys(str(recipe[name]) for recipe in recipes))


def changes(recipe: Recipe, name: str) -> bool:
    """Whether a field of augmentation or regularisation is in use."""
    value = recipe.get(name, OFF.get(name, 0))
    return any(value) if isinstance(value, list | tuple) else value != OFF.get(name, 0)


def training(recipes: list[dict[str, Any]], seeds: int) -> str:
    """Model, optimiser, augmentation, epochs and seeds of some runs."""
    recipes = [{"image_size": recipe.get("size"), **recipe} for recipe in recipes]  # ``size``: its name before 0.2
    models = [{**PRESETS[recipe["model"]], **recipe["model_options"]} for recipe in recipes]
    used = [label for name, label in AUGMENTATIONS.items() if any(changes(recipe, name) for recipe in recipes)]
    depth, width, heads = (values_of(models, name) for name in ("depth", "embed_dim", "num_heads"))
    parts = [
        f"{depth} layers of width {width}, {heads} heads",
        f"{values_of(recipes, 'image_size')}-pixel images",
        values_of(recipes, "optimizer").replace("nmuon", "Muon (timm's nmuon)"),
        f"lr {values_of(recipes, 'lr')}",
        f"{values_of(recipes, 'epochs')} epochs of batch {values_of(recipes, 'batch_size')}",
        ", ".join(used) or "no augmentation",
        f"{seeds} seeds",
    ]
    return "; ".join(parts)


def trained(sources: Sources) -> str:
    """The conditions of the Tiny-ImageNet runs, both shards."""
    files = [sources.file(name) for name in SHARDS]
    recipes = [run["recipe"] for file in files for name in NAMES for run in file[name]]
    seeds = min(len(file[name]) for file in files for name in NAMES)
    return f"Tiny-ImageNet: {len(files)} disjoint shards of 50 classes; {training(recipes, seeds)} each"
