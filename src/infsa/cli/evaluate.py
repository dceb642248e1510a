"""``infsa evaluate``: accuracy of a saved model on any data set."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from .options import at_least, chosen_device

if TYPE_CHECKING:
    from ..evaluate.accuracy import Accuracy

HEADLINE = "matched-frequency"  # the variant of ImageNet-V2 that is meant when none is named


def evaluate(
    model: Annotated[str, typer.Argument(help="A saved folder, a .safetensors file, or a model with shipped weights.")],
    data: Annotated[str, typer.Option(help="Data set, such as folder:PATH or imagenetv2:PATH.")] = "shapes",
    split: Annotated[str | None, typer.Option(help="Split or variant; imagenetv2 without one: all three.")] = None,
    crop_pct: Annotated[float | None, typer.Option(help="Size over resized shorter side; default the model's.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images at a time.", callback=at_least(1))] = 128,
    workers: Annotated[int, typer.Option(help="Processes that read images.", callback=at_least(0))] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure top-1, top-5, loss and per-class accuracy.

    Example: infsa evaluate runs/photos/model --data folder:photos --split val --json
    """
    from ..evaluate import class_names, load_model
    from ..evaluate.accuracy import evaluate_model
    from ..provenance import provenance

    place = chosen_device(device)
    network = load_model(model, place)
    console = Console(quiet=as_json)
    options: dict[str, Any] = {"crop_pct": crop_pct, "batch_size": batch_size, "workers": workers}
    results = {}
    for name in splits_of(data, split):

        def progress(batches: Any, name: str = name or "") -> Any:
            return track(batches, f"{data} {name}".strip(), console=console, disable=as_json, transient=True)

        results[name or "data"] = evaluate_model(network, data, name, progress=progress, **options)
    content: dict[str, Any] = {
        "model": Path(model).name,
        "data": f"{data.partition(':')[0]}:{Path(data.partition(':')[2]).name}".rstrip(":"),
        "results": {name: result.as_dict() for name, result in results.items()},
        "made_with": provenance(place),
    }
    text = json.dumps(content, indent=2)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
    for result in results.values():
        if note := other_names(class_names(network), result.classes):
            typer.echo(f"note: {note}", err=as_json)
    if as_json:
        typer.echo(text)
        return
    console.print(accuracy_table(results))
    for result in results.values():
        if len(result.skipped):
            console.print(f"[yellow]note:[/] {result.skipped}")


def other_names(model: list[str], data: list[str]) -> str:
    """What to tell if the model's classes and those of the data set have no name in common.

    Example:
        >>> other_names(["cat", "dog"], ["car", "bus"])
        "the model knows 'cat', ... and the data 'car', ...: they have no class in common"
    """
    numbers = all(name.removeprefix("class ").isdigit() for name in model) or all(name.isdigit() for name in data)
    if numbers or set(model) & set(data):
        return ""
    return f"the model knows {model[0]!r}, ... and the data {data[0]!r}, ...: they have no class in common"


def splits_of(data: str, split: str | None) -> list[str | None]:
    """The splits to evaluate: the named one, the validation split, or every variant of ImageNet-V2 that is there.

    Example:
        >>> splits_of("shapes", None)
        ['val']
    """
    kind, _, path = data.partition(":")
    if split is not None:
        return [split]
    if kind == "imagenetv2":
        from ..data.folders import IMAGENET_V2

        there = [name for name, folder in IMAGENET_V2.items() if (Path(path) / folder).is_dir()]
        return sorted(there, key=lambda name: name != HEADLINE) or [None]
    if kind == "folder" and not any((Path(path) / name).is_dir() for name in ("val", "validation")):
        return [None]
    return ["val"]


def accuracy_table(results: "dict[str, Accuracy]") -> Table:
    """One row per split, and the classes that fare worst and best."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("split")
    for column in ("images", "top-1", "top-5", "loss", "worst class", "best class"):
        table.add_column(column, justify="right")
    for name, found in results.items():
        shares = {c: share for c, share in found.per_class.items() if share is not None}
        worst, best = min(shares, key=lambda c: shares[c]), max(shares, key=lambda c: shares[c])
        table.add_row(
            name, f"{found.images:,}", f"{found.top1:.2%}", f"{found.top5:.2%}", f"{found.loss:.4f}",
            f"{escape(worst)} {shares[worst]:.0%}", f"{escape(best)} {shares[best]:.0%}",
        )  # fmt: skip
    return table
