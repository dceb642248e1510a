"""Classes of many image files: read in threads, seen at one size or several, run in batches of equal size."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import UnreadableImage, ValTransform, decode, transform_for
from ..data.transforms import RESAMPLING, normalised, normalised_values
from ..models import InfViT
from .maps import MAX_WEIGHTS, ONE_ROW, input_size, maps_of
from .subjects import class_names, data_config

SHOWN = 1024  # longest side of the picture that a map is laid over
READING = 8  # images of their own size that are held at once
NO_BOXES = np.zeros((0, 4), np.float32)


@dataclass(frozen=True)
class Prediction:
    """What a model makes of one file: its likeliest classes, or the reason why there are none."""

    file: Path
    classes: list[tuple[str, float]]  # likeliest first, with probabilities
    error: str = ""
    map: NDArray[np.float32] | None = None  # (h, w), of sum 1
    picture: Image.Image | None = None  # what the model saw, for the map to be laid over


@dataclass(frozen=True)
class View:
    """How a model sees images: resized and cropped as it is validated, or whole.

    Args:
        model: whose size, colours and resampling are used.
        resolution: ``"crop"`` for the centre, as accuracy is measured; ``"model"`` for the whole image with as many
            pixels as the model was made for, ``"native"`` for its own, a number for the side of a square of so many.

    Example:
        >>> View(model, "native")(image)[0].shape
        torch.Size([3, 480, 640])
    """

    model: InfViT
    resolution: str | int = "crop"
    maps: bool = False  # which need more memory

    def __post_init__(self) -> None:
        model, side = self.model, self.resolution
        if model.in_chans != 3 or not model.num_classes:
            given = f"in_chans={model.in_chans} and num_classes={model.num_classes}"
            raise ValueError(f"predictions need a classifier of RGB images, got a model with {given}")
        if side not in ("crop", "model", "native") and (isinstance(side, str) or side < 1):
            raise ValueError(f"resolution must be crop, model, native or a number of pixels, got {side!r}")
        if not model.dynamic_img_size and side not in ("crop", "model"):
            raise ValueError(f"this model sees images of {tuple(model.patch_embed.img_size)} only, got {side!r}")

    def __call__(self, image: Image.Image) -> tuple[Tensor, Image.Image]:
        """The model's input (3, h, w), and the part of the image that it shows."""
        width, height = self.size(image.size)
        if self.resolution == "crop" and width == height:
            pixels, _ = self.validation(image, NO_BOXES)
            side = min(image.size) * min(1.0, width / self.validation.shorter)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            return pixels, image.crop((round(left), round(top), round(left + side), round(top + side)))
        seen = image.resize((width, height), RESAMPLING[self.config["interpolation"]])
        return normalised(seen, normalised_values(self.config["mean"], self.config["std"])), image

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's size, colours, crop and resampling."""
        return data_config(self.model)

    @cached_property
    def validation(self) -> ValTransform:
        """The transform with which accuracy is measured."""
        transform = transform_for(self.config, train=False)
        assert isinstance(transform, ValTransform)
        return transform

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """The width and height of the model's input for an image of ``image``; too large a one is refused."""
        model = self.model
        height, width = model.patch_embed.img_size
        if self.resolution == "crop" or not model.dynamic_img_size:
            return width, height
        rows, columns = model.patch_embed.patch_size
        side = min(width, height) if self.resolution == "model" else self.resolution
        width, height = input_size(image, (rows, columns), None if isinstance(side, str) else side)
        tokens = (height // rows) * (width // columns) + model.num_prefix_tokens
        weights = 0 if model.attention in ONE_ROW else 4 * tokens**2
        weights *= 2 * model.num_heads + len(model.blocks) if self.maps else 1
        needed = 4 * tokens * model.embed_dim * 16 + weights
        if needed > MAX_WEIGHTS:
            raise ValueError(
                f"{width} × {height} pixels need about {needed / 2**30:.0f} GiB, more than {MAX_WEIGHTS / 2**30:.0f}; "
                "lower the resolution"
            )
        return width, height


def predict_files(
    model: InfViT,
    files: Sequence[Path],
    *,
    resolution: str | int = "crop",
    top_k: int = 5,
    batch_size: int = 32,
    maps: bool = False,
    workers: int = 2,
) -> Iterator[Prediction]:
    """The likeliest classes of every file, in order; a file that cannot be read comes with the reason.

    Args:
        model: in eval mode.
        files: images of any kind that Pillow reads.
        resolution: see :class:`View`.
        top_k: how many classes.
        batch_size: images of the model's own size at a time; fewer where they are larger.
        maps: whether to compute maps as well.
        workers: threads that read images.
    """
    if top_k < 1 or batch_size < 1 or workers < 1:
        raise ValueError(f"top_k, batch_size and workers must be 1 or more, got {(top_k, batch_size, workers)}")
    view = View(model, resolution, maps)
    together = READING if resolution == "native" else batch_size * (1 if resolution == "crop" else 4)
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(files), together):
            window = files[start : start + together]
            read = list(pool.map(lambda file: _read(file, view, maps), window))
            found: dict[int, Prediction] = {}
            for batch in _batches(read, view, batch_size):
                found |= _run(model, window, read, batch, top_k, maps)
            for index, file in enumerate(window):
                got = read[index]
                yield Prediction(file, [], got) if isinstance(got, str) else found[index]


Read = tuple[Tensor, Image.Image | None]


def _read(file: Path, view: View, maps: bool) -> Read | str:
    """The model's input and what it shows, or one line that says why there is none."""
    try:
        image = decode(file)
        pixels, picture = view(image)
    except UnreadableImage as error:
        return str(error).removeprefix(f"{file}: ")
    except (ValueError, MemoryError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    if not maps:
        return pixels, None
    picture.thumbnail((SHOWN, SHOWN))
    return pixels, picture


def _batches(read: Sequence[Read | str], view: View, batch_size: int) -> Iterator[list[int]]:
    """Indices of images of one size, as many as have the pixels of ``batch_size`` images of the model's own size."""
    sizes: dict[tuple[int, ...], list[int]] = {}
    for index, got in enumerate(read):
        if not isinstance(got, str):
            sizes.setdefault(tuple(got[0].shape), []).append(index)
    height, width = view.model.patch_embed.img_size
    for (_, rows, columns), indices in sizes.items():
        most = max(1, min(batch_size, batch_size * height * width // (rows * columns)))
        yield from (indices[place : place + most] for place in range(0, len(indices), most))


@torch.inference_mode()
def _run(
    model: InfViT, files: Sequence[Path], read: Sequence[Any], batch: list[int], top_k: int, maps: bool
) -> dict[int, Prediction]:
    names = class_names(model)
    images = torch.stack([read[index][0] for index in batch]).to(next(model.parameters()).device)
    try:
        values, places = model(images).float().softmax(-1).topk(min(top_k, len(names)))
        shown = maps_of(model, images, "last", [str(files[index]) for index in batch]).float().cpu() if maps else None
    except RuntimeError as error:  # out of memory, above all
        reason = " ".join(str(error).split())[:200]
        return {index: Prediction(files[index], [], reason) for index in batch}
    rows = zip(places.tolist(), values.tolist(), strict=True)
    return {
        index: Prediction(
            files[index],
            [(names[place], value) for place, value in zip(*row, strict=True)],
            map=None if shown is None else shown[number].numpy(),
            picture=read[index][1],
        )
        for number, (index, row) in enumerate(zip(batch, rows, strict=True))
    }
