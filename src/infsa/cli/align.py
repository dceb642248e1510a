"""``infsa align``: does Linear-InfSA's vector point along the Perron vector?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .options import at_least, chosen_device, progress_report
from .parameters import check_seed, checked


def align(
    checkpoints: Annotated[
        list[str],
        typer.Option(
            "--checkpoint", "-c", help="[NAME=] .safetensors file, saved folder or shipped model; may be repeated."
        ),
    ],
    data: Annotated[str, typer.Option(help="shapes, npz:PATH, folder:PATH, tiny-imagenet:PATH or imagenetv2:PATH.")],
    split: Annotated[str, typer.Option(help="Split of the data.")] = "val",
    images: Annotated[int, typer.Option(help="Images, drawn by the seed.", callback=at_least(1))] = 64,
    samples: Annotated[
        int, typer.Option(help="Heads taken from every layer; 0 takes all.", callback=at_least(0))
    ] = 512,
    steps: Annotated[int, typer.Option(help="Steps of the power iteration.", callback=at_least(1))] = 200,
    seed: Annotated[int, typer.Option(help="Seed of images and heads.", callback=checked(check_seed))] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for records, numbers and the figure.")] = Path("runs/align"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare the vector a with the Perron vector of every head, beside candidates that need no theory.

    Uniform, energy and short power iterations stand beside a; the ratio |λ₂|/|λ₁| says how well the Perron vector is
    set apart. Heads without one are counted. Checkpoints are grouped as in ``infsa quality``.

    Example: infsa align -c infsa_linear-0.safetensors --data npz:shard.npz --samples 512
    """
    from ..data import open_dataset
    from ..evaluate import Aligning, Subject, study_alignment
    from ..files import write_json
    from ..report.quality_figures import draw_alignment_bars
    from ..report.quality_tables import alignment_table

    subjects = [Subject.of(source) for source in checkpoints]
    if len({subject.name for subject in subjects}) < len(subjects):
        raise typer.BadParameter(f"every checkpoint needs a name of its own, got {[s.name for s in subjects]}")
    dataset = open_dataset(data, split)
    source = f"{data.partition(':')[0]}:{Path(data.partition(':')[2]).name}/{split}"
    console = Console(quiet=as_json)
    with progress_report(console) as report:
        summary = study_alignment(
            subjects,
            {subject.name: (source, dataset) for subject in subjects},
            Aligning(steps=steps, seed=seed),
            out=out,
            images=images,
            samples=samples or None,
            device=chosen_device(device),
            report=report,
        )
    file = write_json(summary, out / "align.json")
    figure = out / "alignment.png"
    draw_alignment_bars(summary, figure)
    if as_json:
        typer.echo(json.dumps({**summary, "files": [str(file), str(figure)]}, indent=1))
        return
    caption = "Mean ± deviation over seeds (deviation over heads and images)."
    console.print(alignment_table(summary).titled("Agreement with the Perron vector, all layers", caption))
    console.print(alignment_table(summary, layers=True).titled("Layer by layer"))
    console.print(f"Written: {file}, {figure}", highlight=False, soft_wrap=True)
