"""From a photograph to what a model sees of it, and from there, in one pass, to a map and the names of classes."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import timm.data
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import ValTransform, keyed_generator, transform_for
from ..data.tasks import Tasks, read_tasks
from ..data.transforms import RESAMPLING, normalised, normalised_values
from ..machine import available, show_bytes
from ..models import InfViT
from ..models.infvit import not_an_infvit
from ..models.maps import METHODS, Reading, logits_and_maps
from ..ops.checks import check_choice

ONE_ROW = ("infsa_linear", "mean", "energy")  # every query has the same weights: no N × N matrix
MAX_WEIGHTS = 2**32  # bytes of weights that a map may need
SPARE = 1.25  # more than the sum of the tensors
NO_BOXES = np.zeros((0, 4), np.float32)


def class_names(model: InfViT) -> list[str]:
    """What the classes are called: the names saved with the weights, or their numbers.

    Example:
        >>> class_names(infsa.create_model("vit_tiny", num_classes=2))
        ['class 0', 'class 1']
    """
    names = getattr(model, "pretrained_cfg", {}).get("label_names")
    if names and len(names) == model.num_classes:
        return [str(name) for name in names]
    return [f"class {index}" for index in range(model.num_classes)]


def model_tasks(model: InfViT) -> Tasks:
    """The tasks that a model was trained for, saved with its weights; one if it says nothing of any.

    Example:
        >>> [task.name for task in model_tasks(infsa.create_model("vit_tiny"))]
        ['class']
    """
    return read_tasks(getattr(model, "pretrained_cfg", {}).get("tasks"), class_names(model))


def likeliest(model: InfViT, logits: Tensor, count: int = 5) -> list[list[tuple[str, float]]]:
    """The likeliest classes of each image and task with their probabilities, from logits (B, classes).

    Example:
        >>> likeliest(infsa.create_model("vit_tiny", num_classes=2), torch.tensor([[0.0, 0.0]]), count=1)
        [[('class 0', 0.5)]]
    """
    names = class_names(model)
    return [[(names[output], chance) for output, chance in row] for row in likeliest_outputs(model, logits, count)]


def likeliest_outputs(model: InfViT, logits: Tensor, count: int = 5) -> list[list[tuple[int, float]]]:
    """The same with the numbers of the outputs in place of the names of the classes.

    Example:
        >>> likeliest_outputs(infsa.create_model("vit_tiny", num_classes=2), torch.tensor([[0.0, 2.0]]), count=1)
        [[(1, 0.8807970285415649)]]
    """
    tasks, first = model_tasks(model), 0
    found: list[list[tuple[int, float]]] = [[] for _ in logits]
    for own in tasks.split(tasks.probabilities(logits)):
        values, places = own.topk(min(count, own.shape[-1]))
        for row, outputs, chances in zip(found, (first + places).tolist(), values.tolist(), strict=True):
            row += zip(outputs, chances, strict=True)
        first += own.shape[-1]
    return found


def data_config(model: InfViT) -> dict[str, Any]:
    """timm's data configuration of a model, at the size that the model itself was built for.

    Example:
        >>> data_config(infsa.create_model("vit_tiny", img_size=96))["input_size"]
        (3, 96, 96)
    """
    config: dict[str, Any] = timm.data.resolve_model_data_config(model)
    return config | {"input_size": (model.in_chans, *model.patch_embed.img_size)}


@dataclass(frozen=True)
class View:
    """How a model sees images: resized and cropped as it is validated, or whole.

    Args:
        model: whose size, colours and resampling are used.
        resolution: ``"crop"`` for the centre, as accuracy is measured; ``"model"`` for the whole image with as many
            pixels as the model was made for, ``"native"`` for its own, a number for the side of a square of so many.
            Both sides of a whole image are brought to multiples of the patch.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> View(model, "native")(Image.new("RGB", (640, 480)))[0].shape
        torch.Size([3, 480, 640])
    """

    model: InfViT
    resolution: str | int = "crop"

    def __post_init__(self) -> None:
        model, side = self.model, self.resolution
        if not model.num_classes:
            raise ValueError("the model has no classifier (num_classes=0); infsa embed writes its embeddings")
        if model.in_chans != 3:
            raise ValueError(f"images are RGB, got a model with in_chans={model.in_chans}")
        if side not in ("crop", "model", "native") and (isinstance(side, str) or side < 1):
            raise ValueError(f"resolution must be crop, model, native or a number of pixels, got {side!r}")
        if not model.dynamic_img_size and side not in ("crop", "model"):
            raise ValueError(f"this model accepts only images of {tuple(model.patch_embed.img_size)}, got {side!r}")

    def __call__(self, image: Image.Image) -> tuple[Tensor, Image.Image]:
        """The model's input (3, h, w), and the part of the image that it shows."""
        width, height = self.size(image.size)
        if self.resolution == "crop" and width == height:
            transform = transform_for(self.config, train=False)
            assert isinstance(transform, ValTransform)
            side = min(image.size) * min(1.0, width / transform.shorter)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            shown = image.crop((round(left), round(top), round(left + side), round(top + side)))
            return transform(image, NO_BOXES)[0], shown
        return self.pixels(image, (width, height)), image

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's size, colours, crop and resampling."""
        return data_config(self.model)

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """The width and height of the model's input for an image of ``image``."""
        height, width = self.model.patch_embed.img_size
        if self.resolution == "crop" or not self.model.dynamic_img_size:
            return width, height
        rows, columns = self.model.patch_embed.patch_size
        side = min(width, height) if self.resolution == "model" else self.resolution
        return input_size(image, (rows, columns), None if isinstance(side, str) else side)

    def pixels(self, image: Image.Image, size: tuple[int, int]) -> Tensor:
        """A whole RGB image at ``size`` (width, height), normalised: (3, h, w)."""
        seen = image.resize(size, RESAMPLING[self.config["interpolation"]])
        return normalised(seen, normalised_values(self.config["mean"], self.config["std"]))


def model_input(model: InfViT, image: Image.Image, size: tuple[int, int]) -> Tensor:
    """What a model sees of an RGB image at ``size`` (width, height): (1, 3, H, W), normalised, on its device.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> model_input(model, Image.new("RGB", (640, 480)), (64, 64)).shape
        torch.Size([1, 3, 64, 64])
    """
    return View(model).pixels(image, size)[None].to(next(model.parameters()).device)


def check_methods(methods: Sequence[str]) -> None:
    """Refuse an unknown method."""
    for method in methods:
        check_choice("method", method, METHODS)


def maps_of(model: InfViT, images: Tensor, method: str, names: Sequence[str], seed: int = 0) -> Tensor:
    """Maps (B, h, w), of sum 1, that depend on each image alone: ``"random"`` draws from (seed, name).

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> maps_of(model, torch.zeros(2, 3, 64, 64), "random", ["a.png", "b.png"]).shape
        torch.Size([2, 8, 8])
    """
    check_methods([method])
    if method == "random":
        grid = model.grid_of(images)
        drawn = np.stack([keyed_generator("random map", seed, name).random(grid, np.float32) for name in names])
        maps = torch.from_numpy(drawn).to(images.device)
        return maps / maps.sum((1, 2), keepdim=True)
    with uncounted():
        return model.attention_maps(images, method=method)


@contextmanager
def uncounted() -> Iterator[None]:
    """Without the warning that counts uniform maps: for callers that count them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*attention maps were all zero")
        yield


@dataclass(frozen=True)
class Explanation:
    """A map of one image and the prediction it belongs to."""

    map: NDArray[np.float32]  # (h, w), of sum 1
    size: tuple[int, int]  # width and height that the model saw
    predictions: list[tuple[str, float]]  # the five likeliest classes with their probabilities
    method: str
    picture: Image.Image  # the part of the image that the model saw

    def summary(self) -> dict[str, Any]:
        """All but map and picture, as plain data."""
        return {
            "predictions": [{"class": name, "probability": value} for name, value in self.predictions],
            "input_size": list(self.size),
            "grid": list(self.map.shape),
            "method": self.method,
        }


def input_size(image: tuple[int, int], patch: tuple[int, int], side: int | None = None) -> tuple[int, int]:
    """The size (width, height) at which a model with patches (height, width) can see a whole image, nearly undistorted.

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
    """The map and the prediction of a model for one RGB image of any size.

    Args:
        model: in eval mode.
        image: RGB.
        method: see :meth:`InfViT.attention_maps`, as for ``layer``, ``head`` and ``seed``.
        layer: the block to read.
        head: one head, or None for their mean.
        side: how large the model sees the image: ``"crop"`` for the centre, as accuracy is measured; or the whole
            image, ``"model"`` for as many pixels as the model was made for, ``"native"`` for the image's own, a number
            for the side of a square of so many. Both sides of a whole image are brought to multiples of the patch.
        seed: of ``method="random"``.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> explain(model, Image.new("RGB", (640, 480), "navy")).map.shape
        (7, 9)
    """
    if not isinstance(model, InfViT):
        raise not_an_infvit(model, "explain")
    if side not in ("crop", "model", "native") and (isinstance(side, str) or side < 1):
        raise ValueError(f"side must be 'crop', 'model', 'native' or a number of pixels, got {side!r}")
    check_methods([method])
    view = View(model, side)
    size = view.size(image.size)
    check_memory(model, size, method)
    with torch.inference_mode():
        pixels, picture = view(image)
        batch = pixels[None].to(next(model.parameters()).device)
        logits, maps = logits_and_maps(model, batch, Reading(method, layer, head, seed=seed))
    return Explanation(maps[0].float().cpu().numpy(), size, likeliest(model, logits)[0], method, picture)


def check_memory(model: InfViT, size: tuple[int, int], method: str) -> None:
    """Refuse a map of an input of ``size`` (width, height) that would not fit, before anything runs."""
    patch = model.patch_embed.patch_size
    area = patch[0] * patch[1]
    patches = size[0] * size[1] // area
    weights = weight_bytes(model, patches, method)
    if weights > MAX_WEIGHTS:
        raise ValueError(
            f"a map of {model.attention} at {patches} patches needs {weights / 2**30:.0f} GiB of weights, more than "
            f"{MAX_WEIGHTS / 2**30:.0f}; lower the resolution or take infsa_linear, whose map is linear in the patches"
        )
    device, each = next(model.parameters()).device, token_bytes(model, method)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available()
    if each * patches > free:
        largest = math.isqrt(int(free // each)) * min(patch)
        raise ValueError(
            f"{size[0]} × {size[1]} pixels need about {show_bytes(each * patches)} of memory, and {show_bytes(free)} "
            f"are free: a resolution of {largest} fits; infsa stream reads images of any size"
        )


def one_row(model: InfViT) -> bool:
    """Whether in every layer all queries have the same weights."""
    return set(model.attentions) <= set(ONE_ROW)


def weight_bytes(model: InfViT, patches: int, method: str) -> int:
    """How much memory the weights that a map is read from take: those of one layer, all heads, at a time."""
    if one_row(model) or method == "random":
        return 0
    return 4 * (patches + model.num_prefix_tokens) ** 2 * (2 * model.num_heads + 1)


def token_bytes(model: InfViT, method: str) -> float:
    """About how much memory a patch takes at the peak: its pixels, its tokens, the MLP."""
    rows, columns = model.patch_embed.patch_size
    width, hidden = model.embed_dim, model.get_parameter("blocks.0.mlp.fc1.weight").shape[0]
    floats, depth = 9 * rows * columns + 6 * width + 2 * hidden, len(model.blocks)
    if method == "gradient":
        floats *= depth  # what a backward pass needs
    elif method == "rollout":
        floats += depth * width  # what enters each layer
    return 4 * SPARE * floats
