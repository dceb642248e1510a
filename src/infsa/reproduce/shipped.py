"""What the shipped weights show: how sharp their maps are, and how different their heads."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ..models.presets import SHIPPED, shipped_weights
from .claims import Claim, Reading, Unavailable
from .errors import stratified
from .sources import Sources

VIEWS = 5  # of one photograph: the whole and its four quarters


def shipped_digest() -> str:
    """What tells the shipped weights from others."""
    digest = hashlib.sha256()
    for file in filter(None, map(shipped_weights, sorted(SHIPPED))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _computed(sources: Sources, name: str, compute: Callable[[], dict[str, Any]], **config: Any) -> dict[str, Any]:
    """Numbers of the shipped weights on scikit-learn's photographs."""
    try:
        return sources.computed(name, {**config, "weights": shipped_digest()}, compute)
    except ImportError as error:
        raise Unavailable("needs scikit-learn, for its photographs: pip install '.[eval]' in a checkout") from error


def sharpness(sources: Sources) -> dict[str, Any]:
    """The share of patches that holds half of a map, by model and view."""

    def compute() -> dict[str, Any]:
        from ..report.photographs import example_views, patches_for_half

        return patches_for_half(example_views())

    return _computed(sources, "sharpness", compute, views=15)


def sharper(name: str, sources: Sources) -> Reading:
    """How many fewer patches hold half of a map; views of one photograph are one sample."""
    found = sharpness(sources)
    gaps = [a - b for a, b in zip(found["vit_tiny"], found[name], strict=True)]
    photographs = [sum(gaps[start : start + VIEWS]) / VIEWS for start in range(0, len(gaps), VIEWS)]
    mean, error = stratified({"photographs": photographs})
    a, b = (sum(found[key]) / len(gaps) for key in (name, "vit_tiny"))
    setting = f"the shipped models, {VIEWS} views of each photograph"
    note = f"{len(photographs)} photographs, one model each"
    return Reading(mean, error, setting, f"{a:.1f} % against {b:.1f} %", note=note)


def head_distances(sources: Sources) -> dict[str, Any]:
    """One minus the mean cosine of the weights of two heads of the Linear model, by photograph."""

    def compute() -> dict[str, Any]:
        import torch

        from ..evaluate.alignment import captured
        from ..evaluate.maps import model_input
        from ..models import create_model
        from ..report.photographs import certain_images

        model = create_model("infvit_linear_tiny", pretrained=True).eval()
        found, heads = [], 0
        for image in certain_images().values():
            with captured(model) as inputs, torch.no_grad():
                model(model_input(model, image, (64, 64)))
                layers = dict(model.named_modules())
                seen = [cast(Any, layers[name]).weights(x, (8, 8))[0] for name, x in inputs.items()]
            cosines = []
            for weights in seen:  # (H, 1, N)
                unit = torch.nn.functional.normalize(weights.flatten(1).double(), dim=1)
                heads = len(unit)
                cosines.append(float((unit @ unit.T).sum() - heads) / (heads * (heads - 1)))
            found.append(1 - sum(cosines) / len(cosines))
        return {"distances": found, "heads": heads}

    return _computed(sources, "heads", compute)


def modes(sources: Sources) -> Reading:
    """How different the heads of the shipped Linear model are."""
    found = head_distances(sources)
    mean, error = stratified({"photographs": found["distances"]})
    setting = f"the shipped Linear model on {len(found['distances'])} photographs"
    return Reading(mean, error, setting, f"{found['heads']} heads, mean over layers; the paper has 64 heads")


def comparison() -> list[Claim]:
    """How many patches hold half of a map's weight: fewer is sharper."""
    return [
        Claim(f"{label} sharper than softmax: fewer patches (%) hold half of the map", "difference", None,
              partial(sharper, name))
        for name, label in (("infvit_pure_tiny", "Pure"), ("infvit_linear_tiny", "Linear"))
    ]  # fmt: skip
