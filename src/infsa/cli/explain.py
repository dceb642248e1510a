"""``infsa explain``: where models look in any image, as pictures and arrays."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from ..report.table import Table
from . import options

if TYPE_CHECKING:
    from ..models import InfViT


def explain(
    images: Annotated[list[Path], typer.Argument(help="Image files of any size.")],
    models: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help=options.MODELS, show_default="the three shipped models"),
    ] = None,
    method: Annotated[str, typer.Option(help=options.METHODS)] = "last",
    resolution: options.Resolution = "model",
    layer: Annotated[int, typer.Option(help="Block whose attention is shown; negative counts from the end.")] = -1,
    head: Annotated[
        int | None, typer.Option(help="Show one head instead of the mean over heads.", show_default="the mean")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for panels, overlays and arrays.")] = Path("runs/explain"),
    device: options.Device = "auto",
    seed: Annotated[int, options.seed_of("--method random")] = 0,
    as_json: options.Json = False,
) -> None:
    """Draw attention maps and predictions of one or more models for your images.

    Writes one panel per image that compares all models and, for each model, an overlay at the image's own resolution
    and the map as an array. Without --model, it compares the three shipped models: softmax, Pure and Linear-InfSA.

    Example: infsa explain photo.jpg --resolution native --model infvit_linear_tiny
    """
    from ..evaluate.maps import check_methods
    from ..files import make_folder
    from ..models.presets import SHIPPED

    options.checked(lambda value: check_methods([value]))(method)
    side = options.chosen_resolution(resolution)
    chosen = options.chosen_subjects(models or SHIPPED)
    loaded = {subject.name: subject.load(options.chosen_device(device)) for subject in chosen}
    settings = {"method": method, "layer": layer, "head": head, "side": side, "seed": seed}
    console = Console(quiet=as_json)
    make_folder(out)
    done: list[dict[str, Any]] = []
    problems: list[str] = []
    for path, stem in track(_with_stems(images), description="Explaining", console=console, transient=True):
        done += _explain_file(path, stem, loaded, settings, out, problems)
    report = {"options": settings, "models": {s.name: s.source for s in chosen}, "images": done, "problems": problems}
    (out / "explain.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    elif done:
        _print(console, done, out)
    for problem in problems:
        typer.echo(f"infsa: {' '.join(problem.split())}", err=True)
    if problems:
        raise typer.Exit(1)


def _with_stems(images: list[Path]) -> list[tuple[Path, str]]:
    """Every file with the name of its results: its stem, numbered where two files share one."""
    stems = [path.stem for path in images]
    return [
        (path, stem if stems.count(stem) == 1 else f"{stem}-{index}")
        for index, (path, stem) in enumerate(zip(images, stems, strict=True), start=1)
    ]


def _explain_file(
    path: Path,
    stem: str,
    models: "dict[str, InfViT]",
    settings: dict[str, Any],
    out: Path,
    problems: list[str],
) -> list[dict[str, Any]]:
    """Explain one file with every model; what fails is told and leaves the rest alone."""
    import numpy as np

    from ..data import UnreadableImage, decode
    from ..evaluate.maps import explain as explain_image
    from ..report.panels import draw_panel, overlay

    try:
        image = decode(path)
    except UnreadableImage as error:
        problems.append(str(error))
        return []
    found, records = {}, []
    for name, model in models.items():
        try:
            explanation = explain_image(model, image, **settings)
        except ValueError as error:
            problems.append(f"{path}: {name}: {error}")
            continue
        found[name] = explanation
        np.save(out / f"{stem}-{name}.npy", explanation.map)
        overlay(explanation.picture, explanation.map).save(out / f"{stem}-{name}.png")
        records.append({"image": str(path), "size": list(image.size), "model": name, **explanation.summary()})
    if found:
        draw_panel(image, found, out / f"{stem}-panel.png", title=f"{path.name}, {image.width} × {image.height}")
    return records


def _print(console: Console, done: list[dict[str, Any]], out: Path) -> None:
    from ..data.paths import shown

    rows = []
    for record in done:
        guesses = [f"{shown(guess['class'])} ({guess['probability']:.0%})" for guess in record["predictions"][:2]]
        height, width = record["grid"]
        cells = [shown(Path(record["image"]).name), record["model"], f"{height} × {width}", *guesses]
        rows.append(cells + [""] * (5 - len(cells)))
    columns = ["image", "model", "patches", "top prediction", "second"]
    console.print(Table(columns, rows, "What the models see"))
    console.print(f"Panels, overlays and arrays are in {out}", highlight=False, markup=False, soft_wrap=True)
