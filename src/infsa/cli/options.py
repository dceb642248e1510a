"""Options that several commands share, and the progress bar."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .parameters import checked

if TYPE_CHECKING:
    import torch

    from ..evaluate import Subject
    from ..evaluate.study import Report

WEIGHTS = "Saved folder, run, .safetensors file or shipped model, optionally NAME=...; repeatable."
DATA = "shapes, npz:PATH, folder:PATH, tiny-imagenet:PATH or imagenetv2:PATH."
Models = Annotated[list[str], typer.Option("--model", "-m", help=WEIGHTS)]
Data = Annotated[str, typer.Option(help=DATA)]
Split = Annotated[str, typer.Option(help="Split of the dataset.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Foreign = Annotated[str, typer.Argument(help="timm:NAME, torchvision:NAME or hf:NAME; a name alone is timm's.")]
Weights = Annotated[Path | None, typer.Option(help="Safetensors to load first.", show_default="random weights")]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Fetch the library's own weights.")]
ModelPairs = Annotated[list[str] | None, typer.Option(help="name=value for the model; repeatable.")]
DataPairs = Annotated[list[str] | None, typer.Option(help="name=value for the dataset; repeatable.")]
Variant = Annotated[str, typer.Option(help="pure or linear.")]
Norm = Annotated[str, typer.Option(help="auto (see the plan), frobenius or row (pure).")]
Include = Annotated[list[str] | None, typer.Option(help="Pattern of layer names; repeatable.", show_default="all")]
Exclude = Annotated[list[str] | None, typer.Option(help="Pattern of layers to keep; repeatable.")]
BAR = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def at_least(lowest: int) -> Callable[[int], int]:
    """A callback that refuses numbers below ``lowest``."""

    def check(value: int) -> None:
        if value < lowest:
            raise ValueError(f"must be {lowest} or more, got {value}")

    return checked(check)


def number(help: str, lowest: int = 1) -> Any:
    """An option that is a whole number, no smaller than ``lowest``."""
    return typer.Option(help=help, callback=at_least(lowest))


def print_json(content: Any, wanted: bool) -> None:
    """Plain data on standard output, if that is ``wanted`` and not the tables of a quiet console."""
    if wanted:
        typer.echo(json.dumps(content, indent=1, default=str))


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


def chosen_subjects(sources: Iterable[str]) -> "list[Subject]":
    """The models to examine, each under a name of its own."""
    from ..evaluate import Subject

    subjects = [Subject.of(source) for source in sources]
    names = [subject.name for subject in subjects]
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"every model needs a different name, such as NAME=FILE; got {names}")
    return subjects


def run_study(
    study: Callable[..., dict[str, Any]], models: list[str], data: str, split: str, *measures: Any,
    console: Console, device: str, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure every model on one dataset, which results call by its name without the folders that it lies in."""
    from ..data import open_dataset

    subjects, (kind, _, path) = chosen_subjects(models), data.partition(":")
    source = f"{kind}:{Path(path).name}/{split}", open_dataset(data, split)
    sources = dict.fromkeys((subject.name for subject in subjects), source)
    with progress_report(console) as report:
        return study(subjects, sources, *measures, device=chosen_device(device), report=report, **settings)


@contextmanager
def progress_report(console: Console) -> Iterator["Report"]:
    """A bar for each thing that is measured."""
    with Progress(*BAR, console=console) as progress:
        tasks: dict[str, int] = {}

        def report(text: str, done: int, total: int) -> None:
            if text not in tasks:
                tasks[text] = progress.add_task(text, total=total)
            progress.update(tasks[text], completed=done)  # type: ignore[arg-type]

        yield report
