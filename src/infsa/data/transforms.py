"""Training and validation transforms of an image and its boxes, to a normalised tensor.

Every random choice comes from a generator keyed by (seed, epoch, index): the number of workers, the rank and a
restart do not change what a sample looks like.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torchvision.transforms import functional as F  # type: ignore[import-untyped]

from . import boxes as geometry
from .randaugment import rand_augment
from .random_keys import keyed_generator
from .sample import BoxArray

RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
View = tuple[torch.Tensor, BoxArray]  # (3, size, size) float32 and (n, 4)


class TrainTransform:
    """Random resized crop, mirror image, RandAugment, colour jitter, erasing: timm's training view, with boxes.

    Boxes are clipped to the crop and those left without an area are dropped. Erasing paints over pixels and leaves
    the boxes as they are.

    Args:
        size: side of the result in pixels.
        seed: whole number, 0 or more.
        scale, ratio: area of the crop as a part of the image, and its width over its height.
        flip: probability of the mirror image.
        jitter: largest change of brightness, contrast and saturation; optionally a fourth number for the hue (≤ 0.5).
            One number stands for the first three.
        erase: probability that a rectangle is replaced by noise.
        randaugment: magnitude of :func:`rand_augment`, 0 to 10; 0 switches it off. The rest of a view does not depend
            on it. timm leaves the jitter out where RandAugment is on; here that is ``jitter=0``.
        mean, std: of the normalisation.
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"lanczos"`` or ``"nearest"``.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: float | Sequence[float] = 0.4,
        erase: float = 0.0,
        randaugment: float = 0.0,
        mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
        std: Sequence[float] = IMAGENET_DEFAULT_STD,
        interpolation: str = "bicubic",
    ) -> None:
        strengths = (jitter,) * 3 if isinstance(jitter, int | float) else tuple(jitter)
        _check_size(size)
        check_view(seed, scale, ratio, flip, strengths, erase)
        if not 0 <= randaugment <= 10:
            raise ValueError(f"randaugment must be a magnitude from 0 to 10, got {randaugment}")
        self.size, self.seed, self.scale, self.ratio = size, seed, scale, ratio
        self.flip, self.jitter, self.erase, self.randaugment = flip, strengths, erase, randaugment
        self.values, self.resampling = normalised_values(mean, std), _resampling(interpolation)
        red, green, blue = (round(255 * value) for value in mean)
        self.fill = red, green, blue

    def __call__(self, image: Image.Image, boxes: BoxArray, epoch: int = 0, index: int = 0) -> View:
        """The view that (seed, epoch, index) gives."""
        rng = keyed_generator("train view", self.seed, epoch, index)
        left, top, width, height = random_crop(rng, image.size, self.scale, self.ratio)
        image = image.resize((self.size, self.size), self.resampling, (left, top, left + width, top + height))
        boxes = geometry.crop(boxes, left, top, width, height)
        boxes = geometry.resize(boxes, (width, height), (self.size, self.size))
        if rng.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            boxes = geometry.flip(boxes, self.size)
        if self.randaugment:
            own = keyed_generator("rand augment", self.seed, epoch, index)
            image, boxes = rand_augment(own, image, boxes, magnitude=self.randaugment, fill=self.fill)
        tensor = normalised(jittered(rng, image, self.jitter), self.values)
        if rng.random() < self.erase:
            erase_rectangle(rng, tensor)
        return tensor, geometry.drop_empty(boxes)


class ValTransform:
    """The shorter side resized to size / crop_pct, then the centre cropped: timm's validation view, with boxes."""

    def __init__(
        self,
        size: int,
        crop_pct: float = 1.0,
        mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
        std: Sequence[float] = IMAGENET_DEFAULT_STD,
        interpolation: str = "bicubic",
    ) -> None:
        _check_size(size)
        if not 0 < crop_pct <= 1:
            raise ValueError(f"crop_pct must be above 0 and at most 1, got {crop_pct}")
        self.size, self.shorter = size, math.floor(size / crop_pct + 1e-9)
        self.values, self.resampling = normalised_values(mean, std), _resampling(interpolation)

    def __call__(self, image: Image.Image, boxes: BoxArray, epoch: int = 0, index: int = 0) -> View:
        """The same view in every epoch."""
        old, short = image.size, min(image.size)
        new = (int(self.shorter * old[0] / short), int(self.shorter * old[1] / short))
        left, top = geometry.centre_corner(new, (self.size, self.size))
        image = image.resize(new, self.resampling).crop((left, top, left + self.size, top + self.size))
        boxes = geometry.crop(geometry.resize(boxes, old, new), left, top, self.size, self.size)
        return normalised(image, self.values), geometry.drop_empty(boxes)


Transform = TrainTransform | ValTransform


def transform_for(config: dict[str, Any], train: bool, **options: Any) -> Transform:
    """The transform that fits a model, from timm's data configuration; ``options`` go to the transform.

    Example:
        >>> config = timm.data.resolve_model_data_config(model)
        >>> transform = transform_for(config, train=True, seed=1, erase=0.25)
    """
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        raise ValueError(f"input_size must be 3 channels of a square, got {tuple(config['input_size'])}")
    common = {name: config[name] for name in ("mean", "std", "interpolation")}
    if train:
        return TrainTransform(height, **{**common, **options})
    return ValTransform(height, **{**common, "crop_pct": config["crop_pct"], **options})


def random_crop(
    rng: np.random.Generator, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random crop; ten attempts at the area and ratio, then the largest
    centred one.
    """
    width, height = size
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    return (width - w) // 2, (height - h) // 2, max(w, 1), max(h, 1)


def jittered(rng: np.random.Generator, image: Image.Image, strengths: Sequence[float]) -> Image.Image:
    """Brightness, contrast, saturation and (if a fourth strength is given) hue, changed in random order."""
    amounts = [rng.uniform(-strength, strength) for strength in strengths]
    for which in rng.permutation(len(strengths)).tolist():
        if strengths[which] and which == 3:
            image = F.adjust_hue(image, amounts[which])
        elif strengths[which]:
            image = Image.blend(_plain(image, which), image, max(0.0, 1 + amounts[which]))
    return image


def _plain(image: Image.Image, which: int) -> Image.Image:
    """What an image is blended with: black for brightness, its mean grey for contrast, its greys for saturation."""
    if which == 0:
        return Image.new("RGB", image.size)
    grey = image.convert("L")
    if which == 2:
        return grey.convert("RGB")
    mean = int(np.asarray(grey).mean() + 0.5)  # Pillow's own histogram takes longer than the blend
    return Image.new("RGB", image.size, (mean, mean, mean))


def erase_rectangle(rng: np.random.Generator, tensor: torch.Tensor) -> None:
    """Replace a rectangle of 2 to 33 % of the tensor (3, h, w) by normal noise, in place."""
    _, height, width = tensor.shape
    left, top, w, h = random_crop(rng, (width, height), (0.02, 1 / 3), (0.3, 1 / 0.3))
    noise = rng.standard_normal((3, h, w), np.float32)
    tensor[:, top : top + h, left : left + w] = torch.from_numpy(noise)


def normalised_values(mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """What each byte becomes in each channel, (3, 256): there are so few that a table is quicker than arithmetic."""
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"mean and std must be three numbers, std above 0, got {tuple(mean)} and {tuple(std)}")
    greys = torch.arange(256, dtype=torch.uint8).div(255).expand(3, 1, 256)
    return F.normalize(greys, list(mean), list(std))[:, 0].numpy()


def normalised(image: Image.Image, values: NDArray[np.float32]) -> torch.Tensor:
    """An RGB image as a tensor (3, h, w) of ``values`` (3, 256)."""
    channels = np.asarray(image).transpose(2, 0, 1)  # (3, h, w)
    return torch.from_numpy(np.stack([table.take(channel) for table, channel in zip(values, channels, strict=True)]))


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be 1 pixel or more, got {size}")


def check_view(
    seed: int = 0,
    scale: tuple[float, float] = (1.0, 1.0),
    ratio: tuple[float, float] = (1.0, 1.0),
    flip: float = 0.0,
    jitter: Sequence[float] = (0.0, 0.0, 0.0),
    erase: float = 0.0,
) -> None:
    """Refuse what no training view can be made with; see :class:`TrainTransform`."""
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}")
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale must be 0 < low ≤ high ≤ 1, got {scale}")
    if not 0 < ratio[0] <= ratio[1] < math.inf:
        raise ValueError(f"ratio must be 0 < low ≤ high, got {ratio}")
    for name, value in (("flip", flip), ("erase", erase)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be a probability, got {value}")
    if len(jitter) not in (3, 4) or not all(0 <= x < math.inf for x in jitter) or max((0.0, *jitter[3:])) > 0.5:
        raise ValueError(f"jitter must be 3 or 4 numbers of at least 0 with a hue up to 0.5, got {tuple(jitter)}")


def check_interpolation(interpolation: str) -> None:
    """Refuse a resampling that does not exist."""
    if interpolation not in RESAMPLING:
        raise ValueError(f"interpolation must be one of {list(RESAMPLING)}, got {interpolation!r}")


def _resampling(interpolation: str) -> Image.Resampling:
    check_interpolation(interpolation)
    return RESAMPLING[interpolation]
