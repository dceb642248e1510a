"""``infsa train``: from a dataset to a trained, validated, resumable model."""

import json
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .recipe_options import amended, choose_recipe, with_recipe_options

INTERRUPTED = 130  # exit code after Ctrl-C
FURTHER = {"top5": "among the best five", "bits": "of the bits"}  # what is measured of a task beside right answers
BARS = "▁▂▃▄▅▆▇█"


@with_recipe_options
def train(
    recipe: Annotated[
        str | None,
        typer.Option(
            help="finetune, tiny, deit or paper; finetune without --init starts from infvit_linear_tiny.",
            show_default="finetune with --init, tiny without",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with fields of the recipe.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/train"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest complete checkpoint in --out.")
    ] = False,
    accept_new_data: Annotated[
        bool, typer.Option("--accept-new-data", help="With --resume: continue although the images have changed.")
    ] = False,
    stem: Annotated[
        str | None,
        typer.Option(
            help="patch, or conv: a convolutional stem that sees neighbouring patches.",
            show_default="patch, or that of --init",
        ),
    ] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="name=value for the model; repeatable.")] = None,
    data_option: Annotated[list[str] | None, typer.Option(help="name=value for the dataset; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    *,
    changes: dict[str, Any],
) -> None:
    """Train a model from scratch, or fine-tune one with --init, and validate it.

    The data can be a folder with one subfolder per class; without --data, generated shapes are used. The output folder
    receives the recipe, a log, TensorBoard events, checkpoints, the training curve and the model. Ctrl-C and SIGTERM
    save and stop; --resume continues at that step, and a larger --epochs trains longer. Defaults that do not fit the
    data are changed, with a note.

    Example: infsa train --data folder:photos --init infvit_linear_tiny --out runs/photos
    """
    from ..report.training import draw_curve
    from ..train import Recipe, read_recipe
    from ..train import train as train_recipe

    pairs = [*(model_option or []), *([f"stem={stem}"] if stem else [])], data_option or []
    notes, asked = list[str](), set[str]()
    if resume:
        if recipe is not None or config is not None:
            raise typer.BadParameter("--resume uses the recipe of the run: omit --recipe and --config")
        saved = out / "recipe.json"
        if not saved.exists():
            raise typer.BadParameter(f"--resume: {out} holds no training run")
        try:
            chosen = amended(Recipe().override(read_recipe(saved)), *pairs, changes)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    elif accept_new_data:
        raise typer.BadParameter("--accept-new-data needs --resume: a new run uses the images as they are")
    else:
        chosen, notes, asked = choose_recipe(recipe, config, *pairs, changes)
    console = Console(quiet=as_json)
    with Monitor(console, chosen.epochs) as monitor:
        for note in notes:
            monitor({"kind": "note", "text": note})
        fit = not resume and "batch_size" not in asked
        run = train_recipe(chosen, out, resume, monitor, accept_new_data=accept_new_data, fit_batch=fit)
    if not run.main:
        return
    if run.stopped:
        if as_json:
            typer.echo(json.dumps({"stopped": True, "out": str(out)}))
        console.print(
            f"Stopped and saved. Continue with: infsa train --resume --out {out}", markup=False, soft_wrap=True
        )
        raise typer.Exit(INTERRUPTED if run.signal == signal.SIGINT else 0)
    curve = draw_curve(out)
    if as_json:
        typer.echo(json.dumps({**run.result, "files": [str(curve), str(out / "model")]}, indent=2))
        return
    console.print(result_table(run.result))
    for name in ("model", "curve.png", "result.json", "log.jsonl", "checkpoints"):
        console.print(f"  {out / name}", highlight=False, markup=False, soft_wrap=True)


class Monitor:
    """The progress bar of a run, a line per validation, and notes."""

    def __init__(self, console: Console, epochs: int) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[speed]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        self.console, self.epochs = console, epochs
        self.progress = Progress(*columns, console=console, disable=console.quiet, expand=True)
        self.task = self.progress.add_task("reading the data", total=None, speed="")
        self.told = ""  # what the bar says of the training

    def __enter__(self) -> "Monitor":
        self.progress.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.progress.live.transient = kind is not None  # an error is said in one line, without the bar
        self.progress.stop()

    def __call__(self, row: dict[str, Any]) -> None:
        """Show what happens: a line of the log, a note, or how far the run is."""
        kind = row["kind"]
        if kind == "note":
            self.say(f"note: {row['text']}")
        elif kind == "stopping":
            self.say("Stopping: this step is finished and saved first; Ctrl-C again ends at once.")
        elif kind == "reading":
            self.progress.update(self.task, completed=row["done"], total=row["total"])
        elif kind == "start":
            self.progress.reset(self.task, total=row["total"], completed=row["step"], description="training", speed="")
            self.progress.update(self.task, completed=row["step"])
        elif kind == "step":
            self.progress.update(self.task, completed=row["step"], description=self.text(row["epoch"]))
        elif kind == "validating":
            self.progress.update(self.task, description=f"validating {row['done']} of {row['total']}")
        elif kind == "train":
            self.told = f", loss {row['loss']:.3f}"
            speed = f"{row['images_per_s']:,.0f} images/s"
            text = self.text(row["epoch"])
            self.progress.update(self.task, completed=row["step"], description=text, speed=speed)
        else:
            self.progress.update(self.task, description=self.text(row["epoch"]))
            shares = {name: own["top1"] for name, own in row.get("tasks", {}).items()}
            shares = shares or {"top-1": row["top1"], "top-5": row["top5"]}
            told = "   ".join(f"{name} {share:7.2%}" for name, share in shares.items())
            line = f"epoch {row['epoch']:>5.0f}   {told}   validation loss {row['val_loss']:.3f}"
            self.console.print(line, highlight=False, markup=False)

    def text(self, epoch: float) -> str:
        """What the bar says of the training."""
        return f"epoch {epoch:.1f} of {self.epochs}{self.told}"

    def say(self, line: str) -> None:
        """A line above the bar, or on standard error where standard output is for JSON."""
        if self.console.quiet:
            typer.echo(line, err=True)
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def result_table(result: dict[str, Any]) -> Table:
    """The end of a run: accuracy, size, time and the curve in one line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    for name, own in result.get("tasks", {}).items():
        further = "".join(f", {own[kind]:.2%} {word}" for kind, word in FURTHER.items() if kind in own)
        table.add_row(name, f"{own['top1']:.2%}{further}")
    mean = "mean " if "tasks" in result else ""
    table.add_row(f"{mean}top-1", f"{result['top1']:.2%}")
    if not mean:
        table.add_row("top-5", f"{result['top5']:.2%}")
    best = result["best"]
    if best["top1"] > result["top1"]:
        table.add_row("best top-1", f"{best['top1']:.2%} at epoch {best['epoch']:.0f}, checkpoints/best")
    table.add_row("validation loss", f"{result['val_loss']:.4f}")
    table.add_row("curve", sparkline([row["top1"] for row in result["history"]]))
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row("time", f"{result['seconds']:.0f} s")
    return table


def sparkline(values: list[float], width: int = 60) -> str:
    """Numbers as a row of bars, the highest full."""
    chosen = values if len(values) <= width else [values[i * len(values) // width] for i in range(width)]
    low, high = min(chosen), max(chosen)
    return "".join(BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in chosen)
