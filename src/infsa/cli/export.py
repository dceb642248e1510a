"""``infsa export``: a model as ONNX, as a torch.export program or as a safetensors folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from .options import Json, Model, chosen_model, print_json

if TYPE_CHECKING:
    from ..models.exporting import Exported


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="A .onnx or .pt2 file, or a folder for safetensors.")],
    kind: Annotated[
        str | None, typer.Option("--format", help="onnx, pt2 or safetensors.", show_default="by the ending of --out")
    ] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Fix batch 1 and the image size, for runtimes that need it.")
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images with --fixed.", show_default="the model's")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at --out.")] = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX, torch.export (pt2) or safetensors, and check the file against the model.

    Batch and image size stay dynamic where possible; the command reports dimensions that had to be fixed. A file whose
    outputs differ from the model's at two batch and two image sizes is deleted. Class names and preprocessing are
    stored in the file.

    Example: infsa export --model runs/photos --out photos.onnx
    """
    from ..models.exporting import as_dict, export_model

    if image_size is not None and image_size < 1:
        raise typer.BadParameter(f"--image-size must be 1 or more, got {image_size}")
    if image_size is not None and not fixed:
        raise typer.BadParameter("--image-size needs --fixed; without it images of any size are accepted")
    network = chosen_model(model)
    console = Console(quiet=as_json)
    with console.status(f"Exporting {model} ..."):
        done = export_model(network, out, kind, fixed=fixed, size=image_size, overwrite=overwrite)
    print_json(as_dict(done), as_json)
    console.print(exported_table(done))


def exported_table(done: "Exported") -> Table:
    """What was written, for the terminal."""
    path = Path(done.path)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("written", f"{done.path} ({sum(file.stat().st_size for file in files) / 1e6:.1f} MB, {done.format})")
    table.add_row("dynamic", ", ".join(done.dynamic) or "nothing")
    if done.fixed:
        table.add_row("fixed", done.fixed)
    if done.checked:
        shapes = ", ".join(" × ".join(map(str, shape)) for shape in done.checked)
        table.add_row("checked", f"{shapes}: logits differ by {done.difference:.1e} of the largest")
    if done.note:
        table.add_row("note", done.note)
    return table
