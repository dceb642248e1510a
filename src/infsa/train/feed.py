"""What a run reads: training batches as one stream from any step on, and the validation set."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import timm.data
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..data import ImageDataset, SkipLog, TrainTransform, ValTransform, open_dataset
from ..data.loading import Batches
from ..data.order import Order
from ..data.resident import ResidentViews, load_resident
from ..evaluate.accuracy import validation_loader
from .recipe import Recipe

Pair = tuple[Tensor, Tensor]  # images, labels


def open_splits(recipe: Recipe, logs: Path | None = None) -> tuple[ImageDataset, ImageDataset]:
    """The training and the validation set of a recipe, or one line that says why there is none.

    With a folder for ``logs``, each notes the images that it could not read there, for all its worker processes.

    Example:
        >>> train, val = open_splits(RECIPES["tiny"])
    """
    options = dict(recipe.data_options)
    try:
        train = open_dataset(recipe.data, split="train", **options, **_given(recipe.data, recipe, logs, "train"))
        if not recipe.val_data and "length" in options:
            options["length"] = max(len(train.classes), options["length"] // 4)
        val_data = recipe.val_data or recipe.data
        val = open_dataset(val_data, split="val", **options, **_given(val_data, recipe, logs, "val"))
    except TypeError as error:
        raise ValueError(f"{error}; data_options are {recipe.data_options}") from error
    if train.classes != val.classes:
        missing = sorted(set(train.classes) ^ set(val.classes))[:3]
        raise ValueError(
            f"training and validation data have different classes: {len(train.classes)} and {len(val.classes)}, "
            f"such as {missing}"
        )
    return train, val


def skip_log(logs: Path, split: str) -> Path:
    """The file in which a run notes the images of a split that it could not read.

    Example:
        >>> skip_log(Path("runs/photos"), "train")
        PosixPath('runs/photos/skipped-train.jsonl')
    """
    return logs / f"skipped-{split}.jsonl"


def _given(data: str, recipe: Recipe, logs: Path | None, split: str) -> dict[str, Any]:
    """What the run itself tells a data set."""
    if data == "shapes":
        return {} if "size" in recipe.data_options else {"size": recipe.size}
    return {} if logs is None or "skipped" in recipe.data_options else {"skipped": SkipLog(skip_log(logs, split))}


class KeyedViews(Dataset[tuple[Tensor, int]]):
    """Training views by (epoch, index), so that one stream of batches runs through all epochs.

    Example:
        >>> KeyedViews(Shapes(), TrainTransform(64))[3, 17]
    """

    def __init__(self, dataset: ImageDataset, transform: TrainTransform) -> None:
        self.dataset, self.transform = dataset, transform

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, index = key
        sample = self.dataset[index]
        image, _ = self.transform(sample.image, sample.boxes, epoch=epoch, index=index)
        return image, sample.label


class Keys:
    """The keys of every part of every step from ``start`` to ``end``: the batch sampler of a DataLoader.

    Example:
        >>> next(iter(Keys(order, start=0, end=10)))
        [(0, 812), (0, 17), ...]
    """

    def __init__(self, order: Order, start: int, end: int) -> None:
        self.order, self.start, self.end = order, start, end

    def __len__(self) -> int:
        return (self.end - self.start) * self.order.accumulate

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch, indices in self.order.parts(self.start, self.end):
            yield [(epoch, index) for index in indices.tolist()]


class ResidentStream:
    """The same stream from images that lie on the device.

    Example:
        >>> for images, labels in ResidentStream(views, order, start=0, end=10): ...
    """

    def __init__(self, views: ResidentViews, order: Order, start: int, end: int) -> None:
        self.views, self.order, self.start, self.end = views, order, start, end

    def __len__(self) -> int:
        return (self.end - self.start) * self.order.accumulate

    def __iter__(self) -> Iterator[Pair]:
        for epoch, indices in self.order.parts(self.start, self.end):
            yield self.views.batch(epoch, torch.from_numpy(indices))


class Feed:
    """The streams of one process.

    Example:
        >>> feed = Feed(recipe, train, val, model, order, device=torch.device("cpu"))
        >>> stream, batches = feed.training(start=0, end=100), feed.validation()
    """

    def __init__(
        self,
        recipe: Recipe,
        train: ImageDataset,
        val: ImageDataset,
        model: nn.Module,
        order: Order,
        device: torch.device,
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
        self.resident: ResidentViews | None = None
        resample = {"interpolation": recipe.interpolation, **colours}
        transform = ValTransform(recipe.size, crop_pct=recipe.size / recipe.val_resize, **resample)
        workers = recipe.workers
        self.val: Iterable[Any] = validation_loader(val, transform, 128, workers, order.rank, order.world)
        if recipe.loader == "resident":
            pixels, labels = load_resident(train, recipe.size, workers, recipe.interpolation)
            self.resident = ResidentViews(pixels.to(device), labels.to(device), compile=recipe.compile, **views)
            self.val = [(batch[0].to(device), batch[1].to(device)) for batch in self.val]
        else:
            self.views = KeyedViews(train, TrainTransform(recipe.size, randaugment=recipe.randaugment, **views))
        self.blank = torch.zeros(1, 3, recipe.size, recipe.size)
        longest = -(-len(val) // order.world)
        self.rounds = -(-longest // 128)  # forward passes of the rank with most images

    def training(self, start: int, end: int) -> "Batches | ResidentStream":
        """This process's parts from step ``start`` up to ``end``."""
        if self.resident is not None:
            return ResidentStream(self.resident, self.order, start, end)
        pin = self.device.type == "cuda"
        keys = Keys(self.order, start, end)
        return Batches(self.views, self.recipe.workers, batch_sampler=keys, pin_memory=pin)
