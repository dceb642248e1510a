"""Classes of many image files: read in threads, seen at one size or several, run in batches of equal size."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..data import UnreadableImage, decode
from ..models import InfViT
from ..models.maps import Reading, logits_and_maps
from .maps import MAX_WEIGHTS, View, likeliest, model_tasks, one_row, uncounted, weight_bytes

SHOWN = 1024  # longest side of the picture that a map is laid over
READING = 8  # images of their own size that are held at once


@dataclass(frozen=True)
class Prediction:
    """What a model makes of one file: its likeliest classes, or the reason why there are none."""

    file: Path
    classes: list[tuple[str, float]]  # likeliest first, with probabilities
    error: str = ""
    map: NDArray[np.float32] | None = None  # (h, w), of sum 1
    picture: Image.Image | None = None  # what the model saw, for the map to be laid over


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
    """The most likely classes of every file, in order; a file that cannot be read comes with the reason.

    Args:
        model: in eval mode.
        files: images of any kind that Pillow reads.
        resolution: see :class:`View`.
        top_k: how many classes, of every task.
        batch_size: images of the model's own size at a time; fewer where they are larger.
        maps: whether to compute maps as well.
        workers: threads that read images.
    """
    if top_k < 1 or batch_size < 1 or workers < 1:
        raise ValueError(f"top_k, batch_size and workers must be 1 or more, got {(top_k, batch_size, workers)}")
    view = View(model, resolution)
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


def answer_count(model: InfViT, top_k: int) -> int:
    """How many classes :func:`predict_files` names for an image."""
    return sum(min(top_k, len(task.classes)) for task in model_tasks(model))


def _read(file: Path, view: View, maps: bool) -> Read | str:
    """The model's input and what it shows, or one line that says why there is none."""
    try:
        image = decode(file)
        _check_size(view, image.size, maps)
        pixels, picture = view(image)
    except UnreadableImage as error:
        return str(error).removeprefix(f"{file}: ")
    except (ValueError, MemoryError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    if not maps:
        return pixels, None
    picture.thumbnail((SHOWN, SHOWN))
    return pixels, picture


def _check_size(view: View, image: tuple[int, int], maps: bool) -> None:
    """Refuse an image that would take too much memory beside others."""
    model, (width, height) = view.model, view.size(image)
    if view.resolution == "crop" or not model.dynamic_img_size:
        return
    rows, columns = model.patch_embed.patch_size
    patches = (height // rows) * (width // columns)
    weights = weight_bytes(model, patches, "last") if maps else 0 if one_row(model) else 4 * patches**2
    needed = 4 * patches * model.embed_dim * 16 + weights
    if needed > MAX_WEIGHTS:
        raise ValueError(
            f"{width} × {height} pixels need about {needed / 2**30:.0f} GiB, more than {MAX_WEIGHTS / 2**30:.0f}; "
            "lower the resolution"
        )


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
    images = torch.stack([read[index][0] for index in batch]).to(next(model.parameters()).device)
    shown = None
    try:
        with uncounted():
            logits, shown = logits_and_maps(model, images, Reading()) if maps else (model(images), None)
    except RuntimeError as error:  # out of memory, above all
        reason = " ".join(str(error).split())[:200]
        return {index: Prediction(files[index], [], reason) for index in batch}
    drawn = [None] * len(batch) if shown is None else list(shown.float().cpu().numpy())
    return {
        index: Prediction(files[index], classes, map=own, picture=read[index][1])
        for index, classes, own in zip(batch, likeliest(model, logits, top_k), drawn, strict=True)
    }
