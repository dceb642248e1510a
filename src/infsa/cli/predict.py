"""``infsa predict``: the classes of files and folders as CSV or JSON lines."""

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import track

from .options import Device, Model, Resolution, chosen_device, chosen_model, chosen_resolution, counted, number, usage

if TYPE_CHECKING:
    from ..data.paths import Listing
    from ..evaluate.predictions import Prediction

ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def predict(
    images: Annotated[list[str], typer.Argument(help="Image files, folders of them, or patterns such as 'new/*.jpg'.")],
    model: Model = "infvit_linear_tiny",
    top_k: Annotated[int, number("Classes per image and task, most likely first.")] = 5,
    resolution: Resolution = "crop",
    out: Annotated[
        Path | None, typer.Option(help="File for the results, .csv or .jsonl.", show_default="printed")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--format", help="csv or jsonl.", show_default="by the ending of --out, else csv")
    ] = None,
    maps: Annotated[
        Path | None, typer.Option(help="Write attention maps over the images to this folder, as PNG.")
    ] = None,
    batch_size: Annotated[int, number("Largest batch of images of one size.")] = 32,
    readers: Annotated[int, number("Threads that read images.")] = 2,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Classify images: the most likely classes with their probabilities, one line per file.

    Unreadable files get a line with the reason; their number goes to standard error. The exit code is 1 if no image
    could be read.

    Example: infsa predict new/ --model runs/photos --top-k 3 --out new.csv
    """
    from ..data.paths import list_images
    from ..evaluate.predictions import View, answer_count, predict_files

    form = _format(kind, as_json, out)
    side = chosen_resolution(resolution)
    found = list_images(images)
    _check_folders(found, out, maps)
    classifier = chosen_model(model, chosen_device(device))
    with usage():
        View(classifier, side)
    if maps is not None:
        _check_map(classifier)
        maps.mkdir(parents=True, exist_ok=True)
    stems = map_names(found.files) if maps is not None else {}
    options: dict[str, Any] = {"resolution": side, "top_k": top_k, "batch_size": batch_size, "workers": readers}
    console = Console(stderr=True)
    stream = predict_files(classifier, found.files, maps=maps is not None, **options)
    shown = track(
        stream, "Predicting", len(found.files), console=console, transient=True, disable=not console.is_terminal
    )
    done = 0
    with _opened(out) as file:
        write = _writer(form, file, answer_count(classifier, top_k), maps is not None)
        for name, reason in found.missing.items():
            write({"file": printable(name), "error": reason})
        for prediction in shown:
            done += not prediction.error
            write(_record(prediction, maps, stems))
    typer.echo(summary(done, len(found.files) - done + len(found.missing), found.ignored), err=True)
    if not done:
        raise typer.Exit(1)


def summary(done: int, failed: int, ignored: int) -> str:
    """How it went, in one line."""
    words = [f"{counted(done, 'image')} classified"]
    words += [f"{failed} could not be read"] if failed else []
    words += [f"{counted(ignored, 'other file')} ignored"] if ignored else []
    return ", ".join(words)


def map_names(files: list[Path]) -> dict[Path, str]:
    """The name of every file's map: its stem, numbered where several share one."""
    shared, taken = Counter(path.stem for path in files), Counter[str]()
    names = {}
    for path in files:
        taken[path.stem] += 1
        names[path] = f"{path.stem}-{taken[path.stem]}.png" if shared[path.stem] > 1 else f"{path.stem}.png"
    return names


def printable(name: object) -> str:
    """A file's name that any stream takes: bytes that are no text are escaped."""
    return os.fsencode(str(name)).decode("utf-8", "backslashreplace")


def _format(kind: str | None, as_json: bool, out: Path | None) -> str:
    if kind not in (None, "csv", "jsonl"):
        raise typer.BadParameter(f"--format must be csv or jsonl, got {kind!r}")
    if as_json and kind == "csv":
        raise typer.BadParameter("--json and --format csv contradict each other")
    by_name = ENDINGS.get(out.suffix.lower()) if out is not None else "csv"
    if by_name is None and kind is None and not as_json:
        raise typer.BadParameter(f"--out must end in .csv or .jsonl without --format, got {str(out)!r}")
    return "jsonl" if as_json else kind or by_name or "csv"


def _check_folders(found: "Listing", out: Path | None, maps: Path | None) -> None:
    """Refuse places that cannot be written to, before anything runs."""
    if out is not None and out.is_dir():
        raise typer.BadParameter(f"--out must be a file, got the folder {out}")
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"--out: no folder {out.parent}")
    if out is not None and out.exists() and out.resolve() in {path.resolve() for path in found.files}:
        raise typer.BadParameter(f"--out would overwrite the image {out}")
    if maps is not None and maps.exists() and not maps.is_dir():
        raise typer.BadParameter(f"--maps must be a folder, got the file {maps}")


def _check_map(model: Any) -> None:
    """Refuse maps of a model that has none, before anything runs."""
    import torch

    with torch.inference_mode():
        model.attention_maps(torch.zeros(1, 3, *model.patch_embed.img_size, device=next(model.parameters()).device))


def _record(prediction: "Prediction", maps: Path | None, stems: dict[Path, str]) -> dict[str, Any]:
    """A prediction as plain data; its map is written on the way."""
    record: dict[str, Any] = {"file": printable(prediction.file)}
    if prediction.error:
        return {**record, "error": prediction.error}
    record["predictions"] = [{"class": name, "probability": round(share, 6)} for name, share in prediction.classes]
    if maps is not None and prediction.map is not None and prediction.picture is not None:
        from ..report.panels import overlay

        path = maps / stems[prediction.file]
        overlay(prediction.picture, prediction.map).save(path)
        record["map"] = printable(path)
    return record


def _writer(form: str, file: TextIO, classes: int, maps: bool) -> Any:
    """What writes a record as a line."""
    if form == "jsonl":
        return lambda record: print(json.dumps(record), file=file, flush=True)
    table = csv.writer(file, lineterminator="\n")
    places = range(1, classes + 1)
    pairs = [name for place in places for name in (f"class_{place}", f"probability_{place}")]
    table.writerow(["file", *pairs, *(["map"] if maps else []), "error"])

    def write(record: dict[str, Any]) -> None:
        known = record.get("predictions", [])
        cells = [cell for guess in known for cell in (guess["class"], guess["probability"])]
        cells += [""] * (2 * classes - len(cells))
        table.writerow([record["file"], *cells, *([record.get("map", "")] if maps else []), record.get("error", "")])

    return write


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    """The file, or standard output; a reader that goes away early ends the command quietly."""
    if out is not None:
        with open(out, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
