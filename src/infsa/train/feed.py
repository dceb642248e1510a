"""What a run reads: training batches as one stream from any step on, and the validation set."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import timm.data
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..data import ImageDataset, SkipLog, TrainTransform, ValTransform, open_dataset
from ..data.order import Order
from ..data.resident import ResidentViews, load_resident
from ..evaluate.accuracy import validation_loader
from .recipe import Recipe

Pair = tuple[Tensor, Tensor]  # images, labels


def open_splits(recipe: Recipe, skipped: SkipLog | None = None) -> tuple[ImageDataset, ImageDataset]:
    """The training and the validation set of a recipe, or one line that says why there is none.

    Example:
        >>> train, val = open_splits(RECIPES["tiny"])
    """
    options = dict(recipe.data_options)
    if recipe.data == "shapes":
        options.setdefault("size", recipe.size)
    elif skipped is not None:
        options.setdefault("skipped", skipped)
    train = open_dataset(recipe.data, split="train", **options)
    if not recipe.val_data and "length" in options:
        options["length"] = max(len(train.classes), options["length"] // 10)
    val = open_dataset(recipe.val_data or recipe.data, split="val", **options)
    if train.classes != val.classes:
        missing = sorted(set(train.classes) ^ set(val.classes))[:3]
        raise ValueError(
            f"training and validation data have different classes: {len(train.classes)} and {len(val.classes)}, "
            f"such as {missing}"
        )
    return train, val


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
            pixels, labels = load_resident(train, recipe.size, workers)
            self.resident = ResidentViews(pixels.to(device), labels.to(device), compile=recipe.compile, **views)
            self.val = [(batch[0].to(device), batch[1].to(device)) for batch in self.val]
        else:
            self.views = KeyedViews(train, TrainTransform(recipe.size, randaugment=recipe.randaugment, **views))
        longest = -(-len(val) // order.world)
        self.rounds = -(-longest // 128)  # forward passes of the rank with most images

    def training(self, start: int, end: int) -> "DataLoader[Any] | ResidentStream":
        """This process's parts from step ``start`` up to ``end``."""
        if self.resident is not None:
            return ResidentStream(self.resident, self.order, start, end)
        keys: Sequence[Any] | Any = Keys(self.order, start, end)
        pin = self.device.type == "cuda"
        return DataLoader(self.views, batch_sampler=keys, num_workers=self.recipe.workers, pin_memory=pin)
