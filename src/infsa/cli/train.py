"""``infsa train``: from a data set to a trained, validated, resumable model."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .recipe_options import amended, choose_recipe, with_recipe_options

BARS = "▁▂▃▄▅▆▇█"


@with_recipe_options
def train(
    recipe: Annotated[
        str | None, typer.Option(help="finetune (the default with --init), tiny (without), deit or paper.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with fields of the recipe.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on at the newest whole checkpoint in --out.")] = False,
    model_option: Annotated[list[str] | None, typer.Option(help="name=value for the model; repeatable.")] = None,
    data_option: Annotated[list[str] | None, typer.Option(help="name=value for the data set; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Fine-tune a model from --init, or train one anew, and validate it; without arguments, on generated shapes.

    The folder receives the resolved recipe, a log, TensorBoard events, checkpoints, the curve and the model. SIGTERM
    saves and stops; --resume goes on at that step.

    Example: infsa train --data folder:photos --init infvit_linear_tiny --out runs/photos
    """
    from ..report.training import draw_curve
    from ..train import Recipe, read_recipe
    from ..train import train as train_recipe

    pairs = model_option or [], data_option or []
    if resume:
        if recipe is not None or config is not None:
            raise typer.BadParameter("--resume goes on with the recipe of the run: leave --recipe and --config out")
        saved = out / "recipe.json"
        if not saved.exists():
            raise typer.BadParameter(f"--resume: {out} holds no run")
        try:
            chosen = amended(Recipe().override(read_recipe(saved)), *pairs, changes)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    else:
        chosen = choose_recipe(recipe, config, *pairs, changes)
    console = Console(quiet=as_json)
    with Monitor(console, chosen.epochs) as monitor:
        run = train_recipe(chosen, out, resume=resume, watch=monitor)
    if not run.main:
        return
    for note in run.notes:
        typer.echo(f"note: {note}", err=as_json)
    if run.stopped and as_json:
        typer.echo(json.dumps({"stopped": True, "out": str(out)}))
    if run.stopped:
        console.print(f"Stopped and saved. Go on with: infsa train --resume --out {out}", soft_wrap=True)
        return
    curve = draw_curve(out)
    if as_json:
        typer.echo(json.dumps({**run.result, "files": [str(curve), str(out / "model")]}, indent=2))
        return
    console.print(result_table(run.result))
    for name in ("model", "curve.png", "result.json", "log.jsonl", "checkpoints"):
        console.print(f"  {out / name}", highlight=False, soft_wrap=True)


class Monitor:
    """The progress bar of a run, and a line per validation."""

    def __init__(self, console: Console, epochs: int) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[speed]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self.console, self.epochs = console, epochs
        self.progress = Progress(*columns, console=console, disable=console.quiet)
        self.task = self.progress.add_task("reading the data", total=None, speed="")

    def __enter__(self) -> "Monitor":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, row: dict[str, Any]) -> None:
        """Show a line of the log."""
        if row["kind"] == "note":
            self.console.print(row["text"], highlight=False, soft_wrap=True)
            if self.console.quiet:
                typer.echo(row["text"], err=True)
        elif row["kind"] == "start":
            self.progress.reset(self.task, total=row["total"], completed=row["step"], description="training", speed="")
            self.progress.update(self.task, completed=row["step"])
        elif row["kind"] == "train":
            text = f"epoch {row['epoch']:.1f} of {self.epochs}, loss {row['loss']:.3f}"
            speed = f"{row['images_per_s']:,.0f} images/s"
            self.progress.update(self.task, completed=row["step"], description=text, speed=speed)
        else:
            self.console.print(
                f"epoch {row['epoch']:>5.0f}   top-1 {row['top1']:7.2%}   top-5 {row['top5']:7.2%}   "
                f"validation loss {row['val_loss']:.3f}",
                highlight=False,
            )


def result_table(result: dict[str, Any]) -> Table:
    """The end of a run: accuracy, size, time and the curve in one line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_row("top-1", f"{result['top1']:.2%}")
    table.add_row("top-5", f"{result['top5']:.2%}")
    table.add_row("validation loss", f"{result['val_loss']:.4f}")
    table.add_row("curve", sparkline([row["top1"] for row in result["history"]]))
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row("time", f"{result['seconds']:.0f} s")
    return table


def sparkline(values: list[float], width: int = 60) -> str:
    """Numbers as a row of bars, the highest full.

    Example:
        >>> sparkline([0.0, 0.5, 1.0])
        '▁▅█'
    """
    chosen = values if len(values) <= width else [values[i * len(values) // width] for i in range(width)]
    low, high = min(chosen), max(chosen)
    return "".join(BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in chosen)
