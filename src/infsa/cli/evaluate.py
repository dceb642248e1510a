"""``infsa evaluate``: accuracy of a saved model on any dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from ..report.table import Table
from .options import DATA, DataPairs, Device, Json, Model, chosen_device, chosen_model, number, print_json
from .recipe_options import parse_pairs

if TYPE_CHECKING:
    from ..evaluate.accuracy import Accuracy
    from ..models import InfViT

SHOWN = 20  # classes in the table; files hold all
HEADLINE = "matched-frequency"  # the variant of ImageNet-V2 that is meant when none is named


def evaluate(
    model: Model,
    data: Annotated[
        str | None,
        typer.Option(help=DATA, show_default="that of the model's run, or shapes"),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="train, val, a variant of imagenetv2, or all: every image of a folder.",
            show_default="val; all variants of imagenetv2",
        ),
    ] = None,
    data_option: DataPairs = None,
    crop_pct: Annotated[
        float | None, typer.Option(help="Input size divided by the resized shorter side.", show_default="the model's")
    ] = None,
    batch_size: Annotated[int, number("Batch size.")] = 128,
    workers: Annotated[int, number("Processes that read images.", 0)] = 2,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for result.json, per-class.csv, confusion.csv and .png; NAME.json: the JSON alone."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure top-1, top-5, loss, per-class accuracy and the confusion matrix of a model.

    Classes are matched by name. A model that was trained on the same folder is evaluated on the images that its run
    held out. To try it, train a model on generated shapes first (minutes on a CPU): infsa train --out runs/shapes.

    Example: infsa evaluate --model runs/shapes --out runs/shapes/evaluation
    """
    from ..evaluate.accuracy import evaluate_model
    from ..evaluate.held_out import part_of
    from ..files import write_json
    from ..provenance import provenance
    from ..report.confusion import write_report

    place = chosen_device(device)
    network = chosen_model(model, place)
    data = data or usual_data(model, network)
    console = Console(quiet=as_json)
    options: dict[str, Any] = {"crop_pct": crop_pct, "batch_size": batch_size, "workers": workers}
    options["data_options"] = drawn_as_trained(model, data) | parse_pairs(data_option or [])
    results = {}
    for name in splits_of(data, split):
        opened, choose, note = part_of(model, data, name)
        if note:
            typer.echo(f"note: {note}", err=as_json)

        def progress(batches: Any, name: str = name or "") -> Any:
            return track(batches, f"{data} {name}".strip(), console=console, disable=as_json, transient=True)

        results[name or "data"] = evaluate_model(network, data, opened, progress=progress, choose=choose, **options)
    content: dict[str, Any] = {
        "model": Path(model).name,
        "data": f"{data.partition(':')[0]}:{Path(data.partition(':')[2]).name}".rstrip(":"),
        "results": {name: result.as_dict() for name, result in results.items()},
        "made_with": provenance(place),
    }
    files = []
    if out is not None and out.suffix == ".json":
        files = [write_json(content, out)]
    elif out is not None:
        files = [write_json(content, out / "result.json")]
        for name, result in results.items():
            files += write_report(result, out, f"-{name}" if len(results) > 1 else "")
    for result in results.values():
        for note in (*result.notes, *([str(result.skipped)] if len(result.skipped) else [])):
            typer.echo(f"note: {note}", err=as_json)
    print_json(content, as_json)
    console.print(accuracy_rows(results).titled("Accuracy"))
    for name, result in results.items():
        if result.tasks:
            console.print(task_rows(result).titled(f"Tasks of {name}"))
    for name, result in results.items():
        console.print(class_rows(result, name))
    for file in files:
        console.print(f"  {file}", highlight=False, markup=False, soft_wrap=True)


def usual_data(source: str, model: "InfViT") -> str:
    """The dataset that a model belongs to, where none is named: what its run was validated on, or shapes."""
    from ..data import Shapes
    from ..evaluate.matching import match_model

    if recipe := recipe_of(source):
        return recipe.get("val_data") or recipe["data"]
    try:
        fits = not match_model(model, Shapes(classes=model.num_classes).classes).notes
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{source} was not trained on shapes: name the images with --data, such as folder:PATH")
    return "shapes"


def recipe_of(source: str) -> dict[str, Any]:
    """The recipe of the run that a model comes from; empty if it comes from none."""
    from ..evaluate.held_out import run_of
    from ..files import read_json

    run = run_of(source)
    return {} if run is None else read_json(run / "recipe.json")


def drawn_as_trained(source: str, data: str) -> dict[str, Any]:
    """What the run of a model said of the images that it drew: those of the test are drawn in the same way."""
    from ..train.recipe import ANSWERS_OF_PLACE

    recipe = recipe_of(source)
    if data.partition(":")[0] not in ANSWERS_OF_PLACE or recipe.get("data") != data:
        return {}
    return {name: value for name, value in recipe["data_options"].items() if name in ("side", "noise", "seed")}


def splits_of(data: str, split: str | None) -> list[str | None]:
    """The splits to evaluate: the named one, the validation split, or every variant of ImageNet-V2 that is there."""
    from ..data.paths import split_folder

    kind, _, path = data.partition(":")
    if split is not None:
        return [split]
    if kind == "imagenetv2":
        from ..data.folders import IMAGENET_V2

        there = [name for name, folder in IMAGENET_V2.items() if (Path(path) / folder).is_dir()]
        return sorted(there, key=lambda name: name != HEADLINE) or [None]
    if kind == "folder" and split_folder(Path(path), "val") is None:
        return [None]
    return ["val"]


def accuracy_rows(results: "dict[str, Accuracy]") -> Table:
    """One row per split, and the classes that fare worst and best."""
    from ..data.paths import shown

    rows = []
    for name, found in results.items():
        shares = {c: share for c, share in found.per_class.items() if share is not None}
        worst, best = min(shares, key=lambda c: shares[c]), max(shares, key=lambda c: shares[c])
        numbers = [f"{found.images:,}", f"{found.top1:.2%}", f"{found.top5:.2%}", f"{found.loss:.4f}"]
        rows.append([name, *numbers, f"{shown(worst)} {shares[worst]:.0%}", f"{shown(best)} {shares[best]:.0%}"])
    return Table(["split", "images", "top-1", "top-5", "loss", "worst class", "best class"], rows)


def task_rows(found: "Accuracy") -> Table:
    """A row per task: how often it is right, and the second measure of its kind."""
    kinds = ["top1", "top5", "bits"]
    rows = [[name, *(f"{own[kind]:.2%}" if kind in own else "" for kind in kinds)] for name, own in found.tasks.items()]
    return Table(["task", "right", "among the best five", "right bits"], rows)


def class_rows(found: "Accuracy", split: str) -> Table:
    """A row per class that has images, the worst first, and what it is mostly taken for; and a title."""
    from ..data.paths import shown

    names, rows = found.unique_classes, []
    for index in [i for i, count in enumerate(found.counts) if count]:
        wrong = [0 if other == index else count for other, count in enumerate(found.confusion[index])]
        mostly = f"{shown(names[wrong.index(max(wrong))])} ({max(wrong)})" if any(wrong) else "itself"
        share = found.hits[index] / found.counts[index]
        rows.append((share, [shown(names[index]), f"{found.counts[index]:,}", f"{share:.1%}", mostly]))
    rows.sort(key=lambda row: row[0])
    title = f"Classes of {split}" + (f", the {SHOWN} worst of {len(rows)}" if len(rows) > SHOWN else "")
    return Table(["class", "images", "top-1", "mostly predicted as"], [row for _, row in rows[:SHOWN]], title)
