"""Several answers at once: targets, losses and hits are those of each task by itself."""

import pytest
import torch
from torch.nn import functional as F

from infsa.data import Task, Tasks
from infsa.data.tasks import read_tasks, single_task, tasks_of

BOTH = Tasks([Task("season", ("summer", "winter", "spring")), Task("seen", ("cat", "dog"), multilabel=True)])
ROWS = torch.tensor([[1, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 1, 0, 0, 0]], dtype=torch.uint8)
LOGITS = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_sum_of_the_tasks(smoothing):
    targets = BOTH.targets(ROWS, smoothing)
    first = F.cross_entropy(LOGITS[:, :3], torch.tensor([0, 2, 1]), label_smoothing=smoothing)
    wanted = ROWS[:, 3:].float() * (1 - smoothing) + smoothing / 2
    second = F.binary_cross_entropy_with_logits(LOGITS[:, 3:], wanted, reduction="none").sum(-1).mean()
    torch.testing.assert_close(BOTH.loss(LOGITS, targets), first + second)


def test_one_task_is_plain_classification():
    labels = torch.tensor([2, 0, 1])
    tasks = single_task(["a", "b", "c"])
    assert tasks.names == ["a", "b", "c"]
    assert torch.equal(tasks.loss(LOGITS[:, :3], tasks.targets(labels)), F.cross_entropy(LOGITS[:, :3], labels))
    torch.testing.assert_close(tasks.probabilities(LOGITS[:, :3]), LOGITS[:, :3].softmax(-1))
    assert tasks.hits(LOGITS[:, :3], tasks.targets(labels))[:, 0].bool().tolist() == [
        bool(guess == label) for guess, label in zip(LOGITS[:, :3].argmax(-1), labels, strict=True)
    ]


def test_a_task_with_several_right_classes_needs_all_of_them():
    logits = torch.tensor([[3.0, 0, 0, -1, 1], [0, 0, 3, 1, -1], [0, 3, 0, -2, -2]])
    assert BOTH.hits(logits, ROWS).tolist() == [[1, 1], [1, 0], [1, 1]]


def test_probabilities_sum_to_one_within_a_task_alone():
    season, seen = BOTH.split(BOTH.probabilities(LOGITS))
    torch.testing.assert_close(season.sum(-1), torch.ones(3))
    torch.testing.assert_close(seen, LOGITS[:, 3:].sigmoid())


def test_tasks_survive_a_file():
    assert read_tasks(BOTH.as_list(), BOTH.names) == BOTH
    assert read_tasks(None, ["a", "b"]) == single_task(["a", "b"])
    assert read_tasks(BOTH.as_list(), ["a", "b"]) == single_task(["a", "b"])  # of another classifier


def test_a_data_set_may_declare_tasks():
    class Plain:
        classes = ["a", "b"]  # noqa: RUF012

    class Both(Plain):
        tasks = BOTH

    assert tasks_of(Plain()) == single_task(["a", "b"])
    assert tasks_of(Both()) is BOTH


@pytest.mark.parametrize("wrong", [[], [Task("a", ())], [Task("a", ("x",)), Task("a", ("y",))]])
def test_tasks_that_cannot_be_told_apart_are_refused(wrong):
    with pytest.raises(ValueError, match="tasks must be one or more"):
        Tasks(wrong)
