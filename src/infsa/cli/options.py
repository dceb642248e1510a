"""Options that several commands share, their checks, and the progress bar."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import torch

    from ..evaluate import Subject
    from ..evaluate.study import Report
    from ..models import InfViT


@contextmanager
def usage() -> Iterator[None]:
    """What the library refuses inside is wrong usage of the command."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def checked(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A typer callback that runs ``check`` on an option, if it is given."""

    def callback(value: Any) -> Any:
        if value is not None:
            with usage():
                check(value)
        return value

    return callback


def check_seed(seed: int) -> None:
    """Refuse a seed that torch's generators do not take."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"a seed must lie in [0, 2**63), got {seed}")


def check_gamma(gamma: float) -> None:
    """Refuse a decay outside (0, 1)."""
    from ..ops.checks import check_gamma as check

    check(gamma)


SOURCE = "Name of a shipped model, run folder, saved folder, .safetensors file or converted file"
MODEL = f"{SOURCE}."
MODELS = f"{SOURCE}; NAME=... sets the name shown; repeatable."
RESOLUTION = (
    "Input size: crop (the centre, as evaluate measures), or the whole image: model (as many pixels as the model was "
    "made for), native (its own), or N (as many as a square of N x N)."
)
METHODS = (
    "last (the last layer's attention), gradient (of the predicted class: the most faithful in our tests), rollout, "
    "tokenrank, katz, degree or random."
)
DATA = (
    "Dataset: shapes, folder:PATH, imagenet:PATH, imagenetv2:PATH, tiny-imagenet:PATH, npz:PATH, wds:PATTERN, hf:NAME "
    "or timm:NAME[:ROOT]."
)
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL)]
Models = Annotated[list[str], typer.Option("--model", "-m", help=MODELS)]
Resolution = Annotated[str, typer.Option(help=RESOLUTION)]
Data = Annotated[str, typer.Option(help=DATA)]
Split = Annotated[str, typer.Option(help="Split of the dataset, or all: every image of a folder without splits.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Foreign = Annotated[
    str,
    typer.Option("--model", "-m", help="Model to convert: timm:NAME, torchvision:NAME or hf:NAME; a name alone: timm."),
]
Weights = Annotated[
    Path | None, typer.Option(help=".safetensors file with the model's weights.", show_default="random weights")
]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Use the library's pretrained weights (downloaded).")]
Gamma = Annotated[float, typer.Option(help="Weight of one hop (gamma), in (0, 1).", callback=checked(check_gamma))]
LearnGamma = Annotated[bool, typer.Option("--learn-gamma/--no-learn-gamma", help="Learn one gamma per head.")]
Surgery = Annotated[bool, typer.Option("--surgery", help="Merge the query and key projections into one (linear only).")]
ModelPairs = Annotated[list[str] | None, typer.Option(help="name=value for the model; repeatable.")]
DataPairs = Annotated[list[str] | None, typer.Option(help="name=value for the dataset; repeatable.")]
Variant = Annotated[str, typer.Option(help="pure or linear.")]
Norm = Annotated[str, typer.Option(help="auto (see --plan), frobenius or row (pure only).")]
Include = Annotated[
    list[str] | None, typer.Option(help="Pattern of layers to convert; repeatable.", show_default="all")
]
Exclude = Annotated[list[str] | None, typer.Option(help="Pattern of layers to leave as they are; repeatable.")]
BAR = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def at_least(lowest: int) -> Callable[[Any], Any]:
    """A callback that refuses numbers below ``lowest``."""

    def check(value: float) -> None:
        if not value >= lowest:
            raise ValueError(f"must be {lowest} or more, got {value}")

    return checked(check)


def number(help: str, lowest: int = 1) -> Any:
    """An option that is a whole number, no smaller than ``lowest``."""
    return typer.Option(help=help, callback=at_least(lowest))


def seed_of(what: str) -> Any:
    """An option that is a seed of torch's generators."""
    return typer.Option(help=f"Seed of {what}.", callback=checked(check_seed))


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number and its noun, as in ``1 batch`` and ``2 batches``."""
    return f"{number} {noun}{'' if number == 1 else plural}"


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
        raise typer.BadParameter(f"unknown device {name!r}; auto, cpu, cuda and cuda:1 are accepted") from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        found = counted(count, "CUDA device") if count else "no CUDA device"
        raise typer.BadParameter(f"{found} here, got {name!r}" + ("" if count else "; use cpu"))
    return device


def chosen_resolution(text: str) -> int | str:
    """The size at which a model sees images: a word, or the side of a square in pixels."""
    if text in ("crop", "model", "native"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"--resolution must be crop, model, native or a number of pixels, got {text!r}")
    return int(text)


def chosen_subjects(sources: Iterable[str]) -> "list[Subject]":
    """The models to examine, each under a name of its own."""
    from ..evaluate import Subject

    subjects = [Subject.of(source) for source in sources]
    tell_unfinished(*(subject.source for subject in subjects))
    names = [subject.name for subject in subjects]
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"every model needs a different name, such as NAME=FILE; got {names}")
    return subjects


def chosen_model(source: str, device: "torch.device | str" = "cpu") -> "InfViT":
    """A model with its weights, in eval mode."""
    from ..evaluate import load_model

    tell_unfinished(source)
    return load_model(source, device)


def tell_unfinished(*sources: str) -> None:
    """Say, on standard error, which models are those of runs that have not ended."""
    from ..evaluate.held_out import unfinished

    for source in sources:
        if (run := unfinished(source)) and run.best is not None:
            typer.echo(f"note: {run}", err=True)


def run_study(
    study: Callable[..., dict[str, Any]], models: list[str], data: str, split: str, *measures: Any,
    console: Console, device: str, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure every model on one dataset, which results call by its name without the folders that it lies in."""
    from ..data import open_dataset
    from ..evaluate.held_out import part_of

    subjects, (kind, _, path), sources = chosen_subjects(models), data.partition(":"), {}
    for subject in subjects:  # of a folder without splits, every run held out its own images
        opened, choose, _ = part_of(subject.source, data, split)
        sources[subject.name] = f"{kind}:{Path(path).name}/{split}", choose(open_dataset(data, opened))
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
