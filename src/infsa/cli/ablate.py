"""``infsa ablate``: sweeps over any field of the recipe or argument of the model."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..report.table import Table
from .options import DataPairs, Json, ModelPairs, number, print_json, usage
from .recipe_options import choose_recipe, parse_value, with_recipe_options


@with_recipe_options
def ablate(
    grid: Annotated[
        list[str] | None,
        typer.Option(help="name=value,value,...; repeatable: all combinations.", show_default="the paper's two sweeps"),
    ] = None,
    seeds: Annotated[int, number("Runs per point.")] = 3,
    recipe: Annotated[str, typer.Option(help="paper, deit, tiny or finetune.")] = "tiny",
    config: Annotated[Path | None, typer.Option(help="TOML file with fields of the recipe.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/ablation"),
    model_option: ModelPairs = None,
    data_option: DataPairs = None,
    quality_images: Annotated[int, number("Images for MoRF, LeRF and boxes; 0: leave them out.", 0)] = 200,
    latency_batch: Annotated[int, number("Images per timed step.")] = 64,
    warmups: Annotated[int, number("Warm-up steps before the timed ones.", 0)] = 50,
    timed: Annotated[int, number("Timed steps; 0: do not measure latency.", 0)] = 300,
    as_json: Json = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Train every point of a grid with several seeds; compare accuracy, latency, convergence and map quality.

    Without --grid: gamma 0.3, 0.5, 0.7, 0.9 with ReLU, and relu, gelu, abs at gamma 0.7. Names may be fields of the
    recipe, arguments of the model (gamma, heads, depth) or of its attention (iterations). An interrupted run continues
    when the command is repeated.

    Example: infsa ablate --grid gamma=0.5,0.7 --grid heads=3,12 --seeds 3 --epochs 10
    """
    from ..report.ablation import COLUMNS, cell, draw_ablation
    from ..train import PAPER_SWEEPS, Study, run_study

    base, notes, _ = choose_recipe(recipe, config, model_option or [], data_option or [], changes)
    grids = [parse_grid(grid)] if grid else PAPER_SWEEPS
    with usage():
        study = Study(base, grids, seeds, warmups, timed, latency_batch, quality_images)
    console = Console(quiet=as_json)
    for note in notes:
        typer.echo(f"note: {note}", err=as_json)
    summary = run_study(study, out, tell=lambda line: console.print(line, highlight=False))
    if not summary:
        return
    figure = draw_ablation(summary, out / "ablation.png")
    print_json(summary, as_json)
    names = [name for name in COLUMNS if any(cell(row, name) for row in summary["rows"])]
    columns = [*summary["rows"][0]["point"], *(COLUMNS[name][0] for name in names)]
    rows = [[*map(str, row["point"].values()), *(cell(row, name) for name in names)] for row in summary["rows"]]
    console.print(Table(columns, rows, caption=f"mean ± deviation over {seeds} seeds"))
    for file in (out / "ablation.json", figure):
        console.print(f"  {file}", highlight=False, soft_wrap=True)


def parse_grid(words: list[str]) -> dict[str, list[Any]]:
    """``["gamma=0.3,0.7", "heads=3,12"]`` as names and values."""
    grid: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not (name and equals and values):
            raise typer.BadParameter(f"--grid expects name=value,value,..., got {word!r}")
        if name in grid:
            raise typer.BadParameter(f"--grid names {name!r} twice; give all its values at once")
        grid[name] = [parse_value(value) for value in values.split(",")]
    return grid
