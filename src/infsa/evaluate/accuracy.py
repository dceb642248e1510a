"""Accuracy and loss of a classifier over a data set, on one process or many."""

import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Subset

from ..data import (
    ImageDataset,
    Part,
    SkipLog,
    SkippingDataset,
    ValTransform,
    Views,
    collate,
    open_dataset,
    transform_for,
)
from ..data.loading import Batches
from ..data.skipping import left_out_note
from ..models import InfViT
from .maps import data_config
from .matching import UNKNOWN, Match, match_model


@dataclass(frozen=True)
class Accuracy:
    """What :func:`measure_accuracy` found; shares from 0 to 1.

    Example:
        >>> result.top1, result.per_class["goldfish"]
        (0.84, 0.9)
    """

    images: int
    top1: float
    top5: float
    loss: float
    classes: list[str]
    hits: list[int]  # per class, right at first guess
    counts: list[int]  # per class
    skipped: SkipLog = field(default_factory=SkipLog)  # images that could not be read
    confusion: list[list[int]] = field(default_factory=list)  # images of each class taken for each, if asked for
    notes: list[str] = field(default_factory=list)  # about the data: classes that do not match, files left out

    @property
    def unique_classes(self) -> list[str]:
        """The names of the classes, no two the same."""
        return unique_names(self.classes)

    @property
    def per_class(self) -> dict[str, float | None]:
        """Top-1 of every class; None where it has no image.

        Example:
            >>> min(result.per_class, key=result.per_class.get)
        """
        shares = [hit / count if count else None for hit, count in zip(self.hits, self.counts, strict=True)]
        return dict(zip(self.unique_classes, shares, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON.

        Example:
            >>> json.dumps(result.as_dict())
        """
        return {
            "images": self.images,
            "top1": self.top1,
            "top5": self.top5,
            "loss": self.loss,
            "mean_per_class": statistics.fmean([share for share in self.per_class.values() if share is not None]),
            "per_class": self.per_class,
            "skipped": self.skipped.names,
            "notes": self.notes,
        }


def unique_names(classes: Sequence[str]) -> list[str]:
    """Class names with the index added where one occurs twice (ImageNet has two *cranes* and two *maillots*)."""
    return [f"{name} ({i})" if classes.count(name) > 1 else name for i, name in enumerate(classes)]


def validation_loader(
    dataset: ImageDataset,
    transform: ValTransform,
    batch_size: int = 128,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Batches:
    """Batches of every ``world``-th image from ``rank`` on: together the ranks see each image once."""
    views: Any = Views(dataset, transform)
    if world > 1:
        views = Subset(views, range(rank, len(views), world))
    return Batches(views, workers, batch_size=batch_size, collate_fn=collate)


@torch.no_grad()
def measure_accuracy(
    model: Callable[[Tensor], Tensor],
    batches: Iterable[Any],
    classes: Sequence[str],
    device: torch.device | str = "cpu",
    rounds: int | None = None,
    blank: Tensor | None = None,
    confusion: bool = False,
) -> Accuracy:
    """Top-1, top-5, cross entropy and per-class accuracy of a model over batches that start with images and labels.

    With an initialised process group every rank brings its own batches and all get the joint result; ``rounds`` is
    then the number of forward passes that each must make (sharded models need equal numbers), the missing ones being
    made on the last images again, or on ``blank`` if there were none; these do not count. Where batches bring names, a
    name counts once: the stand-in of an image that could not be read does not. ``confusion`` also counts what is taken
    for what.

    Example:
        >>> result = measure_accuracy(model.eval(), loader, dataset.classes)
        >>> result.top1
    """
    count = len(classes)
    sums = torch.zeros(2 * count + 2, dtype=torch.float64, device=device)  # hits, images, top-5 hits, loss
    table = torch.zeros(count * count if confusion else 0, dtype=torch.int64, device=device)
    done, seen = 0, set[str]()
    for images, labels, *rest in batches:
        blank = images = images.to(device, non_blocking=True)
        logits = model(images)
        labels = labels.to(device, non_blocking=True)
        names = rest[1] if len(rest) > 1 else []
        first = [name not in seen and not seen.add(name) for name in names]  # type: ignore[func-returns-value]
        if not all(first):
            chosen = torch.tensor(first, device=device)
            logits, labels = logits[chosen], labels[chosen]
        sums += _sums(logits, labels, count)
        if confusion:
            table += torch.bincount(labels * count + logits.argmax(-1), minlength=count * count)
        done += 1
    if blank is not None:
        for _ in range((rounds or 0) - done):
            model(blank.to(device))
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
        dist.all_reduce(table)
    hits, counts, rest = sums.split([count, count, 2])
    images = int(counts.sum())
    if not images:
        raise ValueError("there are no images to evaluate")
    top5, loss = (rest / images).tolist()
    top1 = float(hits.sum() / images)
    hits_and_counts = hits.long().tolist(), counts.long().tolist()
    rows = table.view(count, count).tolist() if confusion else []
    return Accuracy(images, top1, top5, loss, list(classes), *hits_and_counts, confusion=rows)


def _sums(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    if logits.shape[-1] != classes:
        raise ValueError(f"the model has {logits.shape[-1]} classes, the data set {classes}")
    logits = logits.float()
    best = logits.topk(min(5, classes), -1).indices
    right = best[:, 0] == labels
    first = torch.bincount(labels[right], minlength=classes)
    seen = torch.bincount(labels, minlength=classes)
    top5 = (best == labels[:, None]).any(-1).sum()
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.cat([first.double(), seen.double(), torch.stack([top5.double(), loss.double()])])


def evaluate_model(
    model: InfViT,
    data: str,
    split: str | None = None,
    *,
    crop_pct: float | None = None,
    batch_size: int = 128,
    workers: int = 0,
    progress: Callable[[Any], Iterable[Any]] = iter,
    choose: Callable[[ImageDataset], ImageDataset] = lambda dataset: dataset,
) -> Accuracy:
    """Accuracy of a loaded model on a data set by name, at the model's own size, colours and cropping.

    The classes of the data are found among the model's by name; ``choose`` may take a part of the images.

    Example:
        >>> evaluate_model(load_model("runs/photos/model"), "folder:photos", "val").top1
    """
    config = data_config(model)
    options: dict[str, Any] = {"size": config["input_size"][-1]} if data == "shapes" else {}
    if data == "shapes":
        options["classes"] = model.num_classes
    with tempfile.TemporaryDirectory() as folder:  # where the reading processes note what they cannot read
        log = SkipLog(Path(folder) / "skipped.jsonl")
        if data != "shapes":
            options["skipped"] = log
        dataset = open_dataset(data, split, **options)
        left_out = left_out_note(dataset)
        match = match_model(model, dataset.classes)
        dataset = _known(choose(dataset), match)
        found = _evaluated(model, dataset, match, config, crop_pct, batch_size, workers, progress)
        notes = [*match.notes, *([left_out] if left_out else [])]
        return replace(found, skipped=SkipLog.read(Path(folder) / "skipped.jsonl"), notes=notes)


def _known(dataset: ImageDataset, match: Match) -> ImageDataset:
    """The images whose class the model has."""
    if (match.labels != UNKNOWN).all() or not isinstance(dataset, SkippingDataset):
        return dataset
    known = np.flatnonzero(match.labels[dataset.labels] != UNKNOWN)
    if not len(known):
        raise ValueError("none of the images is of a class that the model has")
    return Part(dataset, known)


def _evaluated(
    model: InfViT,
    dataset: ImageDataset,
    match: Match,
    config: dict[str, Any],
    crop_pct: float | None,
    batch_size: int,
    workers: int,
    progress: Callable[[Any], Iterable[Any]],
) -> Accuracy:
    transform = transform_for(config, train=False, **({} if crop_pct is None else {"crop_pct": crop_pct}))
    assert isinstance(transform, ValTransform)
    loader = validation_loader(dataset, transform, batch_size, workers)
    device = next(model.parameters()).device
    labels = torch.from_numpy(match.labels)
    batches = ((images, labels[own], *rest) for images, own, *rest in progress(loader))
    return measure_accuracy(model.eval(), batches, match.classes, device, confusion=True)
