"""Photographs that come with installed packages, and how sharply models look at them."""

from pathlib import Path

import numpy as np
from matplotlib import cbook
from PIL import Image

from ..models.presets import SHIPPED

SKIMAGE = {"cat": "chelsea.png", "rocket": "rocket.jpg", "coffee": "coffee.png"}


def open_image(path: str | Path) -> Image.Image:
    """A file as RGB."""
    with Image.open(path) as image:
        return image.convert("RGB")


def portrait() -> Image.Image:
    """Matplotlib's photograph of Grace Hopper."""
    return open_image(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))


def certain_images() -> dict[str, Image.Image]:
    """The photographs of matplotlib and scikit-learn."""
    from sklearn.datasets import load_sample_images

    temple, flower = (Image.fromarray(pixels) for pixels in load_sample_images().images)
    return {"portrait": portrait(), "temple": temple, "flower": flower}


def example_images() -> dict[str, Image.Image]:
    """Photographs of matplotlib, scikit-learn and scikit-image, as far as these are installed."""
    found: dict[str, Image.Image] = {}
    try:
        import skimage

        folder = Path(skimage.__file__).parent / "data"
        found = {name: open_image(folder / file) for name, file in SKIMAGE.items() if (folder / file).exists()}
    except ImportError:
        pass
    try:
        found |= certain_images()
    except ImportError:
        found["portrait"] = portrait()
    return found


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
