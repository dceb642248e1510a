"""Several answers about one image: named tasks that share the outputs of a model.

The outputs of all tasks stand side by side, and so do the targets: a row of C numbers per image, one-hot within a task
that has one right class, 0 or 1 for every class of a task that may have several.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Task:
    """One question and its possible answers.

    Args:
        name: what it is called in logs and tables.
        classes: the names of its answers.
        multilabel: whether any number of them may be right (a sigmoid each) instead of one (a softmax).

    Example:
        >>> Task("weather", ("sun", "rain")).multilabel
        False
    """

    name: str
    classes: tuple[str, ...]
    multilabel: bool = False


@dataclass(frozen=True)
class Tasks:
    """The tasks of a dataset, in the order of the model's outputs.

    Example:
        >>> tasks = Tasks([Task("season", ("summer", "winter")), Task("seen", ("cat", "dog"), multilabel=True)])
        >>> tasks.names
        ['season summer', 'season winter', 'seen cat', 'seen dog']
        >>> float(tasks.loss(torch.zeros(1, 4), torch.tensor([[1.0, 0, 1, 1]])))  # 3 log 2
        2.079441547393799
    """

    tasks: Sequence[Task]

    def __post_init__(self) -> None:
        tasks = tuple(self.tasks)
        if not tasks or any(len(task.classes) < 1 for task in tasks) or len({task.name for task in tasks}) < len(tasks):
            raise ValueError(f"tasks must be one or more, of different names and with classes, got {list(tasks)}")
        object.__setattr__(self, "tasks", tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @property
    def names(self) -> list[str]:
        """The names of all outputs: those of a single task's classes, else with the task before them."""
        if len(self.tasks) == 1:
            return list(self.tasks[0].classes)
        return [f"{task.name} {label}" for task in self.tasks for label in task.classes]

    @property
    def outputs(self) -> int:
        """How many outputs a model for these tasks has."""
        return sum(len(task.classes) for task in self.tasks)

    def split(self, rows: Tensor) -> list[Tensor]:
        """Rows of outputs or targets (..., C) in parts, one per task."""
        return list(rows.split([len(task.classes) for task in self.tasks], -1))

    def targets(self, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Class numbers (B,) of a single task, or rows (B, C), as smoothed rows (B, C) float32.

        A share ε of the certainty goes to all classes of a task alike; to 0 and 1 alike where each has its own answer.
        """
        if labels.dim() == 1:
            labels = F.one_hot(labels, self.outputs)
        parts = [
            part * (1 - smoothing) + smoothing / (2 if task.multilabel else len(task.classes))
            for task, part in zip(self.tasks, self.split(labels.float()), strict=True)
        ]
        return torch.cat(parts, -1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum of the tasks' losses, averaged over images: cross entropy, binary where several may be right."""
        total = logits.new_zeros((), dtype=torch.float32)
        for task, own, wanted in zip(self.tasks, self.split(logits.float()), self.split(targets), strict=True):
            if task.multilabel:
                total = total + F.binary_cross_entropy_with_logits(own, wanted, reduction="sum") / len(own)
            else:
                total = total + F.cross_entropy(own, wanted)
        return total

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., C) as probabilities: a softmax within a task, or a sigmoid for each of its classes."""
        parts = [
            own.sigmoid() if task.multilabel else own.softmax(-1)
            for task, own in zip(self.tasks, self.split(logits.float()), strict=True)
        ]
        return torch.cat(parts, -1)

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Which images each task has right, (B, tasks) float32: the best class, or every class where several may be."""
        found = []
        for task, own, wanted in zip(self.tasks, self.split(logits), self.split(targets), strict=True):
            right = (own > 0) == (wanted > 0.5) if task.multilabel else own.argmax(-1, True) == wanted.argmax(-1, True)
            found.append(right.all(-1))
        return torch.stack(found, -1).float()

    def as_list(self) -> list[list[Any]]:
        """Plain data, for a file: name, number of classes and whether several may be right."""
        return [[task.name, len(task.classes), task.multilabel] for task in self.tasks]


def tasks_of(dataset: Any) -> Tasks:
    """The tasks that a dataset declares, or the one of every other: which of its classes an image has."""
    return getattr(dataset, "tasks", None) or single_task(dataset.classes)


def single_task(classes: Sequence[str]) -> Tasks:
    """One right class among these."""
    return Tasks([Task("class", tuple(classes))])


def read_tasks(table: Sequence[Sequence[Any]] | None, names: Sequence[str]) -> Tasks:
    """The tasks in a file, written by :meth:`Tasks.as_list` beside the names of all outputs; one if there are none."""
    if not table or sum(count for _, count, _ in table) != len(names):
        return single_task(names)
    left, tasks = list(names), []
    for name, count, multilabel in table:
        tasks.append(Task(name, tuple(label.removeprefix(f"{name} ") for label in left[:count]), multilabel))
        left = left[count:]
    return Tasks(tasks)
