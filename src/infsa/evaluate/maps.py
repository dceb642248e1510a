"""Maps of batches and of single images of any size, with what the model predicts."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as F  # type: ignore[import-untyped]

from ..data import keyed_generator
from ..data.transforms import RESAMPLING
from ..machine import available, show_bytes
from ..models import InfViT
from ..models.maps import METHODS
from .subjects import class_names, data_config

ONE_ROW = ("infsa_linear", "mean", "energy")  # every query has the same weights: no N × N matrix
MAX_WEIGHTS = 2**32  # bytes of weights that a map may need
SPARE = 1.25  # more than the sum of the tensors


def check_methods(methods: Sequence[str]) -> None:
    """Refuse an unknown method."""
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"method must be one of {list(METHODS)}, got {method!r}")


def maps_of(model: InfViT, images: Tensor, method: str, names: Sequence[str], seed: int = 0) -> Tensor:
    """Maps (B, h, w), of sum 1, that depend on each image alone: ``"random"`` draws from (seed, name).

    Example:
        >>> maps_of(model, batch.images, "last", batch.names).shape
        torch.Size([32, 8, 8])
    """
    check_methods([method])
    if method == "random":
        grid = model.grid_of(images)
        drawn = np.stack([keyed_generator("random map", seed, name).random(grid, np.float32) for name in names])
        maps = torch.from_numpy(drawn).to(images.device)
        return maps / maps.sum((1, 2), keepdim=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*attention maps were all zero")  # the caller counts uniform maps
        return model.attention_maps(images, method=method)


@dataclass(frozen=True)
class Explanation:
    """A map of one image and the prediction it belongs to.

    Example:
        >>> explanation = explain(model, image)
        >>> explanation.predictions[0]
        ('goldfish, Carassius auratus', 0.87)
    """

    map: NDArray[np.float32]  # (h, w), of sum 1
    size: tuple[int, int]  # width and height that the model saw
    predictions: list[tuple[str, float]]  # the five likeliest classes with their probabilities
    method: str

    def summary(self) -> dict[str, Any]:
        """All but the map, as plain data.

        Example:
            >>> explanation.summary()["grid"]
            [8, 8]
        """
        return {
            "predictions": [{"class": name, "probability": value} for name, value in self.predictions],
            "input_size": list(self.size),
            "grid": list(self.map.shape),
            "method": self.method,
        }


def input_size(image: tuple[int, int], patch: tuple[int, int], side: int | None = None) -> tuple[int, int]:
    """The size (width, height) at which a model with patches (height, width) can see an image: whole, hardly bent.

    The area becomes that of a square of ``side`` pixels, or stays as it is; both sides are rounded to multiples of the
    patch.

    Example:
        >>> input_size((4000, 3000), (8, 8), side=64)
        (72, 56)
    """
    scale = 1.0 if side is None else side / math.sqrt(image[0] * image[1])
    width, height = (
        max(1, round(length * scale / step)) * step for length, step in zip(image, patch[::-1], strict=True)
    )
    return width, height


def explain(
    model: InfViT,
    image: Image.Image,
    method: str = "last",
    *,
    layer: int = -1,
    head: int | None = None,
    side: int | str = "model",
    seed: int = 0,
) -> Explanation:
    """The map and the prediction of a model for one RGB image of any size, not cropped.

    Args:
        model: in eval mode.
        image: RGB.
        method: see :meth:`InfViT.attention_maps`, as for ``layer``, ``head`` and ``seed``.
        layer: the block to read.
        head: one head, or None for their mean.
        side: how large the model sees the image: ``"model"`` for as many pixels as it was made for, ``"native"`` for
            the image's own, or the side of a square of so many. Both sides are brought to multiples of the patch.
        seed: of ``method="random"``.

    Example:
        >>> explain(model, Image.open("photo.jpg").convert("RGB"), side="native").map.shape
        (375, 500)
    """
    check_methods([method])
    config = data_config(model)
    patch = tuple(model.patch_embed.patch_size)
    size = _seen_size(model, image.size, side, patch)
    device = next(model.parameters()).device
    _check_memory(model, (size[1] // patch[0]) * (size[0] // patch[1]), method)
    _check_room(model, size, patch, method, device)
    pixels = F.to_tensor(image.resize(size, RESAMPLING[config["interpolation"]]))
    batch = F.normalize(pixels, config["mean"], config["std"])[None].to(device)
    options = {"seed": seed} if method == "random" else {}
    with torch.inference_mode():
        maps = model.attention_maps(batch, layer=layer, head=head, method=method, **options)
        likely = model(batch).float().softmax(-1)[0].cpu()
    names = class_names(model)
    values, places = likely.topk(min(5, len(names)))
    predictions = [(names[place], value) for place, value in zip(places.tolist(), values.tolist(), strict=True)]
    return Explanation(maps[0].float().cpu().numpy(), size, predictions, method)


def _seen_size(model: InfViT, image: tuple[int, int], side: int | str, patch: tuple[int, ...]) -> tuple[int, int]:
    own = tuple(model.patch_embed.img_size)
    if not model.dynamic_img_size:
        if side != "model":
            raise ValueError(f"this model sees images of {own} only, got side={side!r}")
        return own[1], own[0]
    if side == "model":
        side = min(own)
    if side != "native" and (isinstance(side, str) or side < 1):
        raise ValueError(f"side must be 'model', 'native' or a number of pixels, got {side!r}")
    return input_size(image, (patch[0], patch[1]), None if isinstance(side, str) else side)


def _check_memory(model: InfViT, patches: int, method: str) -> None:
    """Refuse a map whose weights would not fit, before anything runs."""
    if model.attention in ONE_ROW or method == "random":
        return
    tokens = patches + model.num_prefix_tokens
    needed = 4 * tokens**2 * (2 * model.num_heads + len(model.blocks))
    if needed > MAX_WEIGHTS:
        raise ValueError(
            f"a map of {model.attention} at {patches} patches needs {needed / 2**30:.0f} GiB of weights, more than "
            f"{MAX_WEIGHTS / 2**30:.0f}; lower the resolution or take infsa_linear, whose map is linear in the patches"
        )


def _check_room(
    model: InfViT, size: tuple[int, int], patch: tuple[int, ...], method: str, device: torch.device
) -> None:
    """Refuse an image whose tokens would not fit into the memory that is free, before anything runs."""
    area = patch[0] * patch[1]
    each = token_bytes(model, area, method)
    needed = each * (size[0] * size[1] // area)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available()
    if needed > free:
        largest = math.isqrt(int(free // each)) * min(patch)
        raise ValueError(
            f"{size[0]} × {size[1]} pixels need about {show_bytes(int(needed))} of memory, and {show_bytes(free)} are "
            f"free: a resolution of {largest} fits; infsa stream reads images of any size"
        )


def token_bytes(model: InfViT, area: int, method: str) -> float:
    """About how much memory a patch of ``area`` pixels takes at the peak: its pixels, its tokens, the MLP."""
    width, hidden = model.embed_dim, model.get_parameter("blocks.0.mlp.fc1.weight").shape[0]
    floats = 9 * area + 6 * width + 2 * hidden
    kept = len(model.blocks) if method == "gradient" else 1  # what a backward pass needs
    return 4 * SPARE * floats * kept
