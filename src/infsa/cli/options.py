"""Options that several commands share, and the progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .parameters import checked

if TYPE_CHECKING:
    import torch

    from ..evaluate.study import Report


def at_least(lowest: int) -> Callable[[int], int]:
    """A callback that refuses numbers below ``lowest``."""

    def check(value: int) -> None:
        if value < lowest:
            raise ValueError(f"must be {lowest} or more, got {value}")

    return checked(check)


def chosen_device(name: str) -> "torch.device":
    """The device by its name; ``auto`` is a GPU where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"unknown device {name!r}; auto, cpu, cuda and cuda:0 are accepted") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter(f"no CUDA device here, got {name!r}")
    return device


@contextmanager
def progress_report(console: Console) -> Iterator["Report"]:
    """A bar for each thing that is measured."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, int] = {}

        def report(text: str, done: int, total: int) -> None:
            if text not in tasks:
                tasks[text] = progress.add_task(text, total=total)
            progress.update(tasks[text], completed=done)  # type: ignore[arg-type]

        yield report
