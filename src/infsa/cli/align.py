"""``infsa align``: does Linear-InfSA's vector point along the Perron vector?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import options
from .parameters import check_seed, checked


def align(
    models: options.Models,
    data: options.Data,
    split: options.Split = "val",
    images: Annotated[int, options.number("Images, drawn by the seed.")] = 64,
    samples: Annotated[int, options.number("Heads taken from every layer; 0 takes all.", 0)] = 512,
    steps: Annotated[int, options.number("Steps of the power iteration.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of images and heads.", callback=checked(check_seed))] = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for records, numbers and the figure.")] = Path("runs/align"),
    as_json: options.Json = False,
) -> None:
    """Compare the centrality vector with the Perron vector of every head, beside simple baselines.

    Uniform, energy and short power iterations stand beside a; the ratio |λ₂|/|λ₁| says how well the Perron vector is
    set apart. Heads without one are counted. Models are grouped as in ``infsa quality``.

    Example: infsa align -m infsa_linear-0.safetensors --data npz:shard.npz --samples 512
    """
    from ..evaluate import Aligning, study_alignment
    from ..files import write_json
    from ..report.quality_figures import draw_alignment_bars
    from ..report.quality_tables import alignment_table

    console = Console(quiet=as_json)
    summary = options.run_study(
        study_alignment, models, data, split, Aligning(steps=steps, seed=seed), console=console, device=device, out=out,
        images=images, samples=samples or None,
    )  # fmt: skip
    file = write_json(summary, out / "align.json")
    figure = out / "alignment.png"
    draw_alignment_bars(summary, figure)
    options.print_json({**summary, "files": [file, figure]}, as_json)
    caption = "Mean ± standard deviation over runs (over heads and images)."
    console.print(alignment_table(summary).titled("Agreement with the Perron vector, all layers", caption))
    console.print(alignment_table(summary, layers=True).titled("Layer by layer"))
    console.print(f"Written: {file}, {figure}", highlight=False, soft_wrap=True)
