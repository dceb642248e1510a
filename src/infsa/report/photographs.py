"""Photographs that come with installed packages, and how sharply models look at them."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from ..data import decode
from ..models.presets import SHIPPED

INSTALLED = {  # name: package and the place of the file in it
    "Cat": ("skimage", "data/chelsea.png"),
    "Rocket": ("skimage", "data/rocket.jpg"),
    "Coffee": ("skimage", "data/coffee.png"),
    "Portrait": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "Temple": ("sklearn", "datasets/images/china.jpg"),
    "Flower": ("sklearn", "datasets/images/flower.jpg"),
}
CERTAIN = ("portrait", "temple", "flower")


def examples(places: dict[str, tuple[str, str]] = INSTALLED) -> dict[str, Path]:
    """Real images that come with installed packages, by name; one of matplotlib's is always there.

    Example:
        >>> examples()["Portrait"].name
        'grace_hopper.jpg'
    """
    found = {}
    for name, (package, inside) in places.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None and (path := Path(spec.origin).parent / inside).is_file():
            found[name] = path
    return found


def example_images() -> dict[str, Image.Image]:
    """Photographs of matplotlib, scikit-learn and scikit-image, as far as these are installed."""
    return {name.lower(): decode(path) for name, path in examples().items()}


def certain_images() -> dict[str, Image.Image]:
    """The photographs of matplotlib and scikit-learn."""
    import sklearn  # noqa: F401 (without it there are none)

    found = example_images()
    return {name: found[name] for name in CERTAIN}


def quarters(image: Image.Image) -> list[Image.Image]:
    """The whole image and its four quarters."""
    w, h = image.size
    corners = [(x, y) for x in (0, w // 2) for y in (0, h // 2)]
    return [image, *(image.crop((x, y, x + w // 2, y + h // 2)) for x, y in corners)]


def example_views() -> list[Image.Image]:
    """Fifteen views: each certain photograph and its four quarters."""
    return [view for image in certain_images().values() for view in quarters(image)]


def patches_for_half(images: list[Image.Image]) -> dict[str, list[float]]:
    """The percentage of patches that hold half of the map's weight, for every shipped model and image."""
    from ..evaluate import explain
    from ..models import create_model

    found: dict[str, list[float]] = {}
    for name in SHIPPED:
        model = create_model(name, pretrained=True).eval()
        maps = [explain(model, image).map.astype(np.float64).ravel() for image in images]
        shares = [np.cumsum(np.sort(scores / scores.sum())[::-1]) for scores in maps]
        found[name] = [100 * (int(np.searchsorted(share, 0.5)) + 1) / len(share) for share in shares]
    return found
