"""The shipped models in ``infsa demo``: what they see in photographs, and what their maps are worth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as F  # type: ignore[import-untyped]

from ..evaluate import Explanation, align, area_under, data_config, explain, removal_curves, removal_ranks
from ..evaluate.perturbation import level_counts
from ..models import InfViT, create_model
from .demo_images import SHIPPED, example_images, quarters

SIDE, GRID, LEVELS = 64, 8, 12
CANDIDATES = {
    "a": "Linear-InfSA a",
    "power, 1 step": "one power step (degree)",
    "energy": "energy ‖q‖",
    "uniform": "uniform",
}


@dataclass(frozen=True)
class Models:
    """What the shipped models showed."""

    images: Mapping[str, Image.Image]
    explanations: Mapping[str, Mapping[str, Explanation]]  # image -> mechanism -> map and prediction
    removed: list[float]  # share of patches, 0 to 1
    curves: Mapping[str, Mapping[str, list[float]]]  # mechanism -> order -> mean score / score of the whole image
    areas: Mapping[str, Mapping[str, float]]  # mechanism -> order -> area over the curve
    views: int
    alignment: Mapping[str, dict[str, float]]  # candidate -> cosine, Spearman

    def summary(self) -> dict[str, Any]:
        """The numbers, as plain data."""
        seen = {
            image: {name: found.predictions[0] for name, found in by_name.items()}
            for image, by_name in self.explanations.items()
        }
        return {
            "predictions": seen,
            "morf": {"views": self.views, "removed": self.removed, "curves": self.curves, "aoc": self.areas},
            "perron": self.alignment,
        }


def batch_of(model: InfViT, images: list[Image.Image]) -> Tensor:
    """Images as the model was trained to see them: (B, 3, 64, 64)."""
    config = data_config(model)
    small = [F.to_tensor(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image in images]
    return F.normalize(torch.stack(small), config["mean"], config["std"])


def removal(model: InfViT, batch: Tensor, seed: int) -> dict[str, Tensor]:
    """MoRF curves of the model's own maps and of a random order, (B, levels + 1), of the class it predicts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        classes = model(batch).argmax(-1)
        maps = model.attention_maps(batch).flatten(1)
    noise = torch.rand(2, *maps.shape, generator=generator)
    ranks = torch.cat([removal_ranks(maps, noise[0]), removal_ranks(torch.zeros_like(maps), noise[1])])
    owner = torch.arange(len(batch)).repeat(2)
    found = removal_curves(model, batch, ranks, owner, classes, grid=(GRID, GRID), levels=LEVELS)
    first, second = (found / found[:, :1]).chunk(2)
    return {"map": first, "random order": second}


def look_at(images: Mapping[str, Image.Image] | None = None, seed: int = 0) -> Models:
    """Classify and explain photographs, remove patches, compare with the Perron vector."""
    images = example_images() if images is None else images
    models = {label: create_model(name, pretrained=True).eval() for name, label in SHIPPED.items()}
    views = [view for image in images.values() for view in quarters(image)]
    curves: dict[str, dict[str, list[float]]] = {}
    areas: dict[str, dict[str, float]] = {}
    for label, model in models.items():
        found = removal(model, batch_of(model, views), seed)
        curves[label] = {order: curve.mean(0).tolist() for order, curve in found.items()}
        areas[label] = {order: 1 - float(area_under(curve, GRID**2).mean()) for order, curve in found.items()}
    linear = models["Linear-InfSA"]
    layers = align(linear, batch_of(linear, list(images.values())))
    good = torch.cat([~layer.degenerate.flatten() for layer in layers.values()])

    def mean(measure: str, name: str) -> float:
        values = torch.cat([getattr(layer, measure)[name].flatten() for layer in layers.values()])
        return float(values[good].mean())

    return Models(
        images,
        {image: {label: explain(model, photo) for label, model in models.items()} for image, photo in images.items()},
        (level_counts(GRID**2, LEVELS) / GRID**2).tolist(),
        curves,
        areas,
        len(views),
        {label: {m: mean(m, name) for m in ("cosine", "spearman")} for name, label in CANDIDATES.items()},
    )
