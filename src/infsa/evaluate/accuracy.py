"""Accuracy and loss of a classifier over a dataset, on one process or many."""

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
from ..data.registry import SIDES
from ..data.skipping import left_out_note
from ..data.tasks import Task, Tasks, single_task, tasks_of
from ..models import InfViT
from .maps import data_config, model_tasks
from .matching import UNKNOWN, Match, match_model


@dataclass(frozen=True)
class Accuracy:
    """What :func:`measure_accuracy` found; shares from 0 to 1.

    With several tasks, ``top1`` is the mean of their shares of right answers, ``top5`` that of the right answer among
    the five best and ``loss`` the sum of their losses. A task that may have several right classes is right where all of
    them are.
    """

    images: int
    top1: float
    top5: float
    loss: float
    classes: list[str]
    hits: list[int]  # per class, right at first guess
    counts: list[int]  # per class
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)  # of each task where there are several
    skipped: SkipLog = field(default_factory=SkipLog)  # images that could not be read
    confusion: list[list[int]] = field(default_factory=list)  # images of each class taken for each, if asked for
    notes: list[str] = field(default_factory=list)  # about the data: classes that do not match, files left out

    @property
    def unique_classes(self) -> list[str]:
        """The names of the classes, no two the same."""
        return unique_names(self.classes)

    @property
    def per_class(self) -> dict[str, float | None]:
        """Top-1 of every class; None where it has no image."""
        shares = [hit / count if count else None for hit, count in zip(self.hits, self.counts, strict=True)]
        return dict(zip(self.unique_classes, shares, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {
            "images": self.images,
            "top1": self.top1,
            "top5": self.top5,
            "loss": self.loss,
            "mean_per_class": statistics.fmean([share for share in self.per_class.values() if share is not None]),
            "per_class": self.per_class,
            **({"tasks": self.tasks} if self.tasks else {}),
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
    tasks: Tasks | None = None,
) -> Accuracy:
    """Top-1, top-5, cross entropy and per-class accuracy of a model over batches that start with images and labels.

    With an initialised process group every rank brings its own batches and all get the joint result; ``rounds`` is
    then the number of forward passes that each must make (sharded models need equal numbers), the missing ones being
    made on the last images again, or on ``blank`` if there were none; these do not count. Where batches bring names, a
    name counts once: the stand-in of an image that could not be read does not. ``confusion`` also counts what is taken
    for what. With several ``tasks``, ``classes`` are the names of all outputs and labels are rows of answers.
    """
    count, tasks = len(classes), tasks or single_task(classes)
    parts = [count, count, len(tasks), len(tasks), 2]  # hits and images of a class, right and top-5 of a task, the rest
    sums = torch.zeros(sum(parts), dtype=torch.float64, device=device)
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
        sums += _sums(logits, labels, tasks)
        if confusion:
            table += _confusion(logits, labels, tasks)
        done += 1
    if blank is not None:
        for _ in range((rounds or 0) - done):
            model(blank.to(device))
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
        dist.all_reduce(table)
    hits, counts, right, further, rest = sums.split(parts)
    loss, images = rest.tolist()
    if not images:
        raise ValueError("there are no images to evaluate")
    shares = (torch.stack([right, further], 1) / images).tolist()
    found = {task.name: dict(zip(_measures(task), pair, strict=True)) for task, pair in zip(tasks, shares, strict=True)}
    top1, top5 = (statistics.fmean(column) for column in zip(*shares, strict=True))
    hits_and_counts = hits.long().tolist(), counts.long().tolist()
    rows = table.view(count, count).tolist() if confusion else []
    several = found if len(tasks) > 1 else {}
    return Accuracy(int(images), top1, top5, loss / images, list(classes), *hits_and_counts, several, confusion=rows)


def _measures(task: Task) -> tuple[str, str]:
    """What is measured of a task: all of it right, and the right class among the five best or each bit by itself."""
    return ("top1", "bits") if task.multilabel else ("top1", "top5")


def _sums(logits: Tensor, labels: Tensor, tasks: Tasks) -> Tensor:
    """Hits and images of every class, right answers and the second measure of every task, loss, images."""
    if logits.shape[-1] != tasks.outputs:
        raise ValueError(f"the model has {logits.shape[-1]} classes, the dataset {tasks.outputs}")
    logits, targets = logits.float(), tasks.targets(labels)
    hits, further = [], []
    for task, own, wanted in zip(tasks, tasks.split(logits), tasks.split(targets), strict=True):
        best = own.topk(min(5, own.shape[-1]), -1).indices
        first = own > 0 if task.multilabel else F.one_hot(best[:, 0], own.shape[-1]).bool()
        hits.append((wanted.bool() & first).sum(0))
        second = (first == wanted.bool()).double().mean(-1) if task.multilabel else wanted.gather(1, best).sum(-1)
        further.append(second.sum())
    right = tasks.hits(logits, targets).sum(0)
    loss = tasks.loss(logits, targets).double() * len(logits) if len(logits) else logits.new_zeros(())
    rest = [torch.stack(further), loss[None], loss.new_full((1,), len(logits))]
    return torch.cat([part.double() for part in (*hits, targets.sum(0), right, *rest)])


def _confusion(logits: Tensor, labels: Tensor, tasks: Tasks) -> Tensor:
    """How many images of each class are taken for each other class of its task, flat; none where several are right."""
    table = torch.zeros(tasks.outputs, tasks.outputs, dtype=torch.int64, device=logits.device)
    place = 0
    for task, own, wanted in zip(tasks, tasks.split(logits), tasks.split(tasks.targets(labels)), strict=True):
        count = len(task.classes)
        if not task.multilabel:
            pairs = torch.bincount(wanted.argmax(-1) * count + own.argmax(-1), minlength=count * count)
            table[place : place + count, place : place + count] = pairs.view(count, count)
        place += count
    return table.flatten()


def evaluate_model(
    model: InfViT,
    data: str,
    split: str | None = None,
    *,
    crop_pct: float | None = None,
    batch_size: int = 128,
    workers: int = 0,
    data_options: dict[str, Any] | None = None,
    progress: Callable[[Any], Iterable[Any]] = iter,
    choose: Callable[[ImageDataset], ImageDataset] = lambda dataset: dataset,
) -> Accuracy:
    """Accuracy of a loaded model on a dataset by name, at the model's own size, colours and cropping.

    The classes of the data are found among the model's by name; ``choose`` may take a part of the images. Several tasks
    must be those that the model was trained for.
    """
    config = data_config(model)
    side = config["input_size"][-1]
    kind = data.partition(":")[0]
    drawn = {SIDES[kind]: side} if kind in SIDES else {}
    drawn |= {"classes": model.num_classes} if kind == "shapes" else {}
    options: dict[str, Any] = drawn | (data_options or {})
    with tempfile.TemporaryDirectory() as folder:  # where the reading processes note what they cannot read
        log = SkipLog(Path(folder) / "skipped.jsonl")
        if kind not in SIDES:
            options["skipped"] = log
        dataset = open_dataset(data, split, **options)
        left_out = left_out_note(dataset)
        if len(tasks := tasks_of(dataset)) > 1 and tasks != model_tasks(model):
            asked = " and ".join(str([task.name for task in known]) for known in (model_tasks(model), tasks))
            raise ValueError(f"the tasks of the model and of {data} differ: {asked}")
        match = match_model(model, dataset.classes)
        dataset = _known(choose(dataset), match)
        transform = transform_for(config, train=False, **({} if crop_pct is None else {"crop_pct": crop_pct}))
        assert isinstance(transform, ValTransform)
        loader = validation_loader(dataset, transform, batch_size, workers)
        labels, several = torch.from_numpy(match.labels), tasks if len(tasks) > 1 else None
        batches = ((images, own if several else labels[own], *rest) for images, own, *rest in progress(loader))
        device = next(model.parameters()).device
        found = measure_accuracy(model.eval(), batches, match.classes, device, confusion=True, tasks=several)
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
