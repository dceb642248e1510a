"""What a run reads: training batches as one stream from any step on, and the validation set."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm.data
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..data import ImageDataset, Part, SkipLog, SkippingDataset, TrainTransform, ValTransform, hold_out, open_dataset
from ..data.drawn import DrawnDataset, DrawnViews
from ..data.folders import without_splits
from ..data.loading import Batches
from ..data.order import Order
from ..data.registry import SIDES
from ..data.resident import ResidentViews, load_resident
from ..data.skipping import left_out_note
from ..evaluate.accuracy import validation_loader
from .recipe import Recipe
from .regions import why_not

Pair = tuple[Tensor, Tensor]  # images, labels
HELD_OUT = 0.2  # of the images of a folder without splits


def open_splits(recipe: Recipe, logs: Path | None = None) -> tuple[ImageDataset, ImageDataset]:
    """The training and the validation set of a recipe, or one line that says why there is none.

    With a folder for ``logs``, each notes the images that it could not read there, for all its worker processes.
    """
    recipe = with_val_share(recipe)
    options = dict(recipe.data_options)
    try:
        whole = _open(recipe.data, "train", recipe, options, logs)
        if recipe.val_share:
            if not isinstance(whole, SkippingDataset):
                raise ValueError(f"{recipe.data} has a validation split of its own: omit val_share")
            log = None if logs is None else SkipLog(skip_log(logs, "val"))
            return hold_out(whole, recipe.val_share, recipe.seed, log)
        if not recipe.val_data and "length" in options:
            options["length"] = max(len(whole.classes), options["length"] // 4)
        val = _open(recipe.val_data or recipe.data, "val", recipe, options, logs)
    except TypeError as error:
        raise ValueError(f"{error}; data_options are {recipe.data_options}") from error
    return whole, _numbered_alike(val, whole.classes)


def with_val_share(recipe: Recipe) -> Recipe:
    """The recipe with the share that is held out where nothing else says what to validate on: a folder without
    splits.
    """
    if recipe.val_data or recipe.val_share or not without_splits(recipe.data):
        return recipe
    return replace(recipe, val_share=HELD_OUT)


def notes_on_data(train: ImageDataset, val: ImageDataset, recipe: Recipe) -> list[str]:
    """What to say about the images of a run before it starts: what was left out, what is held out."""
    notes = [note for dataset in (train, val) if (note := left_out_note(dataset))]
    notes += [note] if (note := getattr(train, "note", "")) else []
    if recipe.val_share:
        both = len(train) + len(val)
        notes.append(
            f"{len(val)} of {both} images are held out for validation (val_share {recipe.val_share:g}, seed "
            f"{recipe.seed})"
        )
    return notes


def _open(data: str, split: str, recipe: Recipe, options: dict[str, Any], logs: Path | None) -> ImageDataset:
    chosen = None if without_splits(data) else split
    try:
        return open_dataset(data, split=chosen, **options, **_given(data, recipe, logs, split))
    except (ValueError, FileNotFoundError) as error:
        if split == "val" and not recipe.val_data:
            advice = f"validate on other data with val_data, or hold images out with val_share, such as {HELD_OUT}"
            raise ValueError(f"{str(error).partition('; put images')[0]}; {advice}") from error
        raise


def _numbered_alike(val: ImageDataset, classes: list[str]) -> ImageDataset:
    """The validation set with the labels of training; a class without validation images does not shift them."""
    if val.classes == classes:
        return val
    unknown = sorted(set(val.classes) ^ set(classes))[:3]
    if not isinstance(val, SkippingDataset) or not set(val.classes) <= set(classes):
        raise ValueError(
            f"training and validation data have different classes: {len(classes)} and {len(val.classes)}, such as "
            f"{unknown}"
        )
    return Part(val, np.arange(len(val)), classes)


def skip_log(logs: Path, split: str) -> Path:
    """The file in which a run notes the images of a split that it could not read."""
    return logs / f"skipped-{split}.jsonl"


def _given(data: str, recipe: Recipe, logs: Path | None, split: str) -> dict[str, Any]:
    """What the run itself tells a dataset."""
    side = SIDES.get(data.partition(":")[0])
    if side is not None:
        return {} if side in recipe.data_options else {side: recipe.image_size}
    return {} if logs is None or "skipped" in recipe.data_options else {"skipped": SkipLog(skip_log(logs, split))}


class KeyedViews(Dataset[tuple[Tensor, Any]]):
    """Training views by (epoch, index), so that one stream of batches runs through all epochs."""

    def __init__(self, dataset: ImageDataset, transform: TrainTransform) -> None:
        self.dataset, self.transform = dataset, transform

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Any]:
        epoch, index = key
        sample = self.dataset[index]
        image, _ = self.transform(sample.image, sample.boxes, epoch=epoch, index=index)
        return image, sample.label


class Keys:
    """The keys of every part of every step from ``start`` to ``end``: the batch sampler of a DataLoader."""

    def __init__(self, order: Order, start: int, end: int) -> None:
        self.order, self.start, self.end = order, start, end

    def __len__(self) -> int:
        return (self.end - self.start) * self.order.accumulate

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch, indices in self.order.parts(self.start, self.end):
            yield [(epoch, index) for index in indices.tolist()]


class ResidentStream:
    """The same stream from images that lie on the device."""

    def __init__(self, views: ResidentViews | DrawnViews, order: Order, start: int, end: int) -> None:
        self.views, self.order, self.start, self.end = views, order, start, end

    def __len__(self) -> int:
        return (self.end - self.start) * self.order.accumulate

    def __iter__(self) -> Iterator[Pair]:
        for epoch, indices in self.order.parts(self.start, self.end):
            yield self.views.batch(epoch, torch.from_numpy(indices))


class Feed:
    """The streams of one process."""

    def __init__(
        self,
        recipe: Recipe,
        train: ImageDataset,
        val: ImageDataset,
        model: nn.Module,
        order: Order,
        device: torch.device,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        config: dict[str, Any] = timm.data.resolve_model_data_config(model)
        colours = {"mean": config["mean"], "std": config["std"]}
        views: dict[str, Any] = {
            "seed": recipe.seed,
            "scale": (recipe.crop_min, 1.0),
            "ratio": (1 / recipe.crop_ratio, recipe.crop_ratio),
            "flip": recipe.flip,
            "jitter": recipe.jitter,
            "erase": recipe.erase,
            "interpolation": recipe.interpolation,
            **colours,
        }
        self.recipe, self.order, self.device = recipe, order, device
        self.resident: ResidentViews | DrawnViews | None = None
        resample = {"interpolation": recipe.interpolation, **colours}
        transform = ValTransform(recipe.image_size, crop_pct=recipe.image_size / recipe.val_resize, **resample)
        workers = recipe.workers
        self.blank = torch.zeros(1, 3, recipe.image_size, recipe.image_size)
        longest, at_once = -(-len(val) // order.world), 128
        self.val: Iterable[Any] = validation_loader(val, transform, at_once, workers, order.rank, order.world)
        if isinstance(train, DrawnDataset) and isinstance(val, DrawnDataset):
            at_once = recipe.batch_size // (order.world * order.accumulate)
            self.resident, seen = (DrawnViews(own, recipe.image_size, device=device, **colours) for own in (train, val))
            self.val = seen.batches(at_once, order.rank, order.world)
        elif recipe.loader == "resident":

            def tell(done: int) -> None:
                if watch is not None:
                    watch({"kind": "reading", "done": done, "total": len(train)})

            pixels, labels = load_resident(train, recipe.image_size, workers, recipe.interpolation, tell)
            held, fused = (pixels.to(device), labels.to(device)), recipe.compile == "on"
            self.resident = ResidentViews(*held, compile=fused, **views)
            reason = why_not(lambda: next(iter(self.training(0, 1)))) if fused else None
            if reason is not None:
                self.resident = ResidentViews(*held, **views)
                if watch is not None:
                    watch({"kind": "note", "text": f"not compiled, views are made eagerly: {reason}"})
            self.val = [(batch[0].to(device), batch[1].to(device)) for batch in self.val]
        else:
            self.views = KeyedViews(train, TrainTransform(recipe.image_size, randaugment=recipe.randaugment, **views))
        self.rounds = -(-longest // at_once)  # forward passes of the rank with most images

    def training(self, start: int, end: int) -> "Batches | ResidentStream":
        """This process's parts from step ``start`` up to ``end``."""
        if self.resident is not None:
            return ResidentStream(self.resident, self.order, start, end)
        pin = self.device.type == "cuda"
        keys = Keys(self.order, start, end)
        return Batches(self.views, self.recipe.workers, batch_sampler=keys, pin_memory=pin)
