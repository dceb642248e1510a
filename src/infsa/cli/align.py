"""``infsa align``: does Linear-InfSA's vector point along the Perron vector?"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import options


def align(
    models: options.Models,
    data: options.Data,
    split: options.Split = "val",
    limit: Annotated[int, options.number("Number of images, drawn by the seed.")] = 64,
    samples: Annotated[int, options.number("Heads, over all images, compared in every layer; 0: all.", 0)] = 512,
    power_steps: Annotated[int, options.number("Steps of the power iteration.")] = 200,
    seed: Annotated[int, options.seed_of("images and heads")] = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for records, numbers and the figure.")] = Path("runs/align"),
    as_json: options.Json = False,
) -> None:
    """Compare the centrality vector with the Perron vector of every head, and with simple baselines.

    The baselines are the uniform vector, query norms and short power iterations. The eigenvalue ratio |λ₂|/|λ₁| tells
    how well defined the Perron vector is; heads without one are reported. Models whose names differ only in a final
    -SEED count as runs of one model.

    Example: infsa align --model infvit_linear_tiny --data shapes --limit 8
    """
    from ..evaluate import Aligning, study_alignment
    from ..files import write_json
    from ..report.quality_figures import draw_alignment_bars
    from ..report.quality_tables import alignment_table

    console = Console(quiet=as_json)
    summary = options.run_study(
        study_alignment, models, data, split, Aligning(steps=power_steps, seed=seed), console=console, device=device,
        out=out, images=limit, samples=samples or None,
    )  # fmt: skip
    file = write_json(summary, out / "align.json")
    figure = out / "alignment.png"
    draw_alignment_bars(summary, figure)
    options.print_json({**summary, "files": [file, figure]}, as_json)
    caption = "Mean ± standard deviation over runs (over heads and images)."
    console.print(alignment_table(summary).titled("Agreement with the Perron vector, all layers", caption))
    console.print(alignment_table(summary, layers=True).titled("Layer by layer"))
    console.print(f"Written: {file}, {figure}", highlight=False, soft_wrap=True)
