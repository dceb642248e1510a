"""Does it learn at high resolution? Train one small model with several mechanisms on megapixel digits.

    python benchmarks/high_resolution.py train all --mnist MNIST --out runs/hr --limit 560
    python benchmarks/high_resolution.py train softmax --choose --set lr=0.002 --mnist MNIST --out runs/hr
    python benchmarks/high_resolution.py document --mnist MNIST   # figure and tables of docs/high-resolution.md

The rows are in benchmarks/digits/runs.py. Those of one side have the same width, depth and GPU seconds: the speed of a
run's first steps decides how many epochs fit, and is part of the result. Runs at 1500² grow: the same 5,000 sets of
digits are first shown on smaller canvases, at other places in every epoch.

A finished row is written to the results at once and not measured again, so that a command that was stopped goes on with
the next row; ``--limit`` begins no row that would not end in time. Models from which others start are kept in the
folder ``--out``. ``--choose`` measures on training digits that were held out, in place of the test's, for settings to
be chosen by.
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from digits.choosing import write_choice
from digits.runs import RUNS, Run
from digits.training import train_run
from pages.high_resolution import accuracy_figure, page_tables, short_table
from pages.marks import write_tables

from infsa.files import read_json, write_atomically

app = typer.Typer(add_completion=False)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "high-resolution-h200.json"
BESIDES = 60  # seconds that a row takes besides its training, at most: start, tests, maps


@app.command()
def train(
    names: list[str],
    mnist: Annotated[str, typer.Option(help="Folder of MNIST's files.")],
    out: Annotated[Path, typer.Option(help="Folder for models that others start from.")],
    to: Annotated[Path, typer.Option(help="File of the results.")] = RESULTS,
    seconds: Annotated[float, typer.Option(help="Of training, for each row; 0: its own.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds for all rows; 0: no limit.")] = 0,
    length: Annotated[int, typer.Option(help="Training images.")] = 5000,
    maps: Annotated[bool, typer.Option(help="Judge where the maps lie.")] = True,
    choose: Annotated[bool, typer.Option(help="Measure on held-out training digits.")] = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="field=value of every row.")] = None,
) -> None:
    """Train the named rows, or all, that were not measured yet; one that fails does not stop the others."""
    fields = {key: _value(value) for key, value in (pair.split("=", 1) for pair in change or [])}
    if unknown := [name for name in names if name not in (*RUNS, "all")]:
        raise typer.BadParameter(f"{unknown[0]!r} is no row; rows are all, {', '.join(RUNS)}")
    if change and not choose and to == RESULTS:
        raise typer.BadParameter("a row with other settings needs --choose, or a file of its own with --to")
    out.mkdir(parents=True, exist_ok=True)
    if choose:
        write_choice(mnist, out / "choice")
    digits, began = str(out / "choice") if choose else mnist, time.perf_counter()
    for name in RUNS if "all" in names else names:
        run = dataclasses.replace(RUNS[name], **fields)
        row = f"{name} chosen by {', '.join(change or ['nothing'])}" if choose else name
        planned = seconds or run.seconds
        if row in read_results(to):
            print(f"{row}: measured before", flush=True)
        elif limit and time.perf_counter() - began + planned + BESIDES > limit:
            print(f"{row}: no time left, takes {planned + BESIDES:.0f} s", flush=True)
        else:
            _measure(row, name, run, digits, out, to, planned, length, maps)
    print(short_table(read_results(to)), flush=True)


def _measure(
    row: str, name: str, run: Run, digits: str, out: Path, to: Path, seconds: float, length: int, maps: bool
) -> None:
    """Train one row and add it to the results."""
    began = time.perf_counter()
    try:
        found = train_run(name, run, digits, out, seconds, length, maps)
        example = found.pop("example", [])
        if example and name in ("linear", "softmax", "pure", "mean", "flatten"):  # those of the figure
            found["example"] = example[-1:]
        add_result(row, found | {"wall_seconds": time.perf_counter() - began}, to)
    except Exception as error:  # the rows after it are worth having
        print(f"{row}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def read_results(path: Path) -> dict[str, Any]:
    """The rows measured so far."""
    return read_json(path) if path.exists() else {}


def add_result(name: str, row: dict[str, Any], to: Path) -> None:
    """Add a row to a file, numbers with six digits."""
    found = read_results(to) | {name: row}
    text = json.dumps(json.loads(json.dumps(found), parse_float=lambda number: float(f"{float(number):.6g}")))
    write_atomically(to, lambda path: path.write_text(text + "\n", encoding="utf-8"))


@app.command()
def document(
    mnist: Annotated[str, typer.Option(help="Folder of MNIST's files; else scikit-learn's digits.")] = "",
) -> None:
    """Draw the figure and fill in the tables of docs/high-resolution.md, from the file in results/."""
    found = read_json(RESULTS)
    accuracy_figure(found, mnist, ROOT / "docs" / "images" / "high-resolution.png")
    write_tables(ROOT / "docs" / "high-resolution.md", page_tables(found))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    app()
