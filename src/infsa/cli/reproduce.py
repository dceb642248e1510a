"""``infsa reproduce``: every table and figure of the paper, judged by numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..report.table import Table
from .bench import row_progress
from .options import chosen_device, print_json, progress_report, usage

if TYPE_CHECKING:
    from ..reproduce import Sources

SCALES = ("small", "full")


def reproduce(
    targets: Annotated[list[str] | None, typer.Argument(help="table1, fig-markov, ...; all if none is named.")] = None,
    scale: Annotated[
        str, typer.Option(help="small: judge the stored results; full: run the benchmarks (GPU) first.")
    ] = "small",
    results: Annotated[
        Path | None, typer.Option(help="Folder of result files.", show_default="the stored ones")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the computed numbers and the verdicts (ledger.json).")] = Path(
        "runs/reproduce"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1; for --scale full.")] = "auto",
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds for --scale full; the same command continues.", show_default="no limit"),
    ] = None,
    document: Annotated[
        bool, typer.Option("--document", help="Write ledger.json beside the results, and docs/reproduction.md.")
    ] = False,
    plan: Annotated[bool, typer.Option("--list", help="Print the targets and what they need, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON.")] = False,
) -> None:
    """Compare the paper's claims with our measurements, and give each a verdict.

    For every claim: the paper's value, ours, the conditions, the verdict and its reason. Targets are the paper's tables
    and figures; all together take a few minutes on a CPU.

    Example: infsa reproduce fig-markov table-alignment
    """
    from ..files import write_atomically, write_json
    from ..reproduce import TARGETS, committed, holds_results, make_ledger
    from ..reproduce.document import page
    from ..reproduce.targets import check_target

    names = targets or list(TARGETS)
    with usage():
        for name in names:
            check_target(name)
    if scale not in SCALES:
        raise typer.BadParameter(f"--scale must be one of {list(SCALES)}, got {scale!r}")
    if document and (targets or scale == "full"):
        raise typer.BadParameter(
            "--document writes all targets from the result files: leave the targets and --scale out"
        )
    if plan:
        show_targets(names, as_json)
        return
    folder = results or committed()
    docs = folder.resolve().parent.parent / "docs"
    if document and not docs.is_dir():
        raise ValueError(f"--document needs a checkout with docs beside benchmarks/results, got {folder}")
    if results is not None and not holds_results(results):
        kind = "holds none of the result files" if results.is_dir() else "is not a folder"
        raise typer.BadParameter(f"--results {results} {kind}; without --results the stored ones are read")
    if not holds_results(folder):
        typer.echo("note: no stored results found: only what can be computed here is judged", err=True)
    console = Console(quiet=as_json)
    sources = open_sources(names, scale, folder, out, device, budget, console)
    with progress_report(console) as report:
        ledger = make_ledger(names, sources, report)
    files = [write_json(ledger, out / "ledger.json")]
    if document:
        files = [write_json(ledger, folder / "ledger.json"), docs / "reproduction.md"]
        write_atomically(files[1], lambda aside: aside.write_text(page(ledger), encoding="utf-8"))
    print_json({**ledger, "written": files}, as_json)
    show(ledger, console)
    if ledger["files"]:
        console.print(f"Read from {folder}: {', '.join(ledger['files'])}", highlight=False, soft_wrap=True)
    console.print("Written: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)


def open_sources(
    names: list[str], scale: str, results: Path, out: Path, device: str, budget: float | None, console: Console
) -> "Sources":
    """The result files; at full scale the benchmark is run, or resumed, on this machine first."""
    from ..reproduce import TARGETS, Sources
    from ..reproduce.targets import BENCHMARK, TRAINING

    if scale == "small":
        return Sources(results, out)
    trained = [name for name in names if TARGETS[name].needs == TRAINING]
    if trained:
        raise ValueError(
            f"{', '.join(trained)}: full scale needs {TRAINING}; then pass the folder of their results as --results"
        )
    if all(TARGETS[name].needs != BENCHMARK for name in names):
        return Sources(results, out)
    where = chosen_device(device)
    if where.type != "cuda":
        raise ValueError(f"full scale needs {BENCHMARK}, got device {where.type!r}")
    from ..bench.presets import PRESETS
    from ..bench.suite import Settings, run_plan

    groups = [group for preset in ("table1", "graphs", "resolution", "limits") for group in PRESETS[preset]()]
    with row_progress(console) as report:
        run_plan(groups, out / "bench.json", str(where), Settings(budget=budget), report=report)
    return Sources(results, out, bench=out / "bench.json")


def show_targets(names: list[str], as_json: bool) -> None:
    """Print what the targets are and what they need."""
    from ..reproduce import TARGETS, paper

    found = [
        {"target": name, "title": TARGETS[name].title, "source": paper()[TARGETS[name].source]["source"],
         "claims": len(TARGETS[name].claims()), "full scale needs": TARGETS[name].needs}
        for name in names
    ]  # fmt: skip
    print_json(found, as_json)
    columns = ["target", "title", "claims", "full scale needs"]
    lines = [[str(row[column]) for column in columns] for row in found]
    Console(quiet=as_json).print(Table(columns, lines, "Targets"))


def show(ledger: dict[str, Any], console: Console) -> None:
    """Print one table for each target, and the counts."""
    from ..reproduce.document import COLUMNS, line

    for name, target in ledger["targets"].items():
        lines = [[cell.replace("**", "").replace("\\|", "|") for cell in line(row)] for row in target["rows"]]
        console.print(Table(COLUMNS, lines, f"{name}: {target['title']}", target["source"]))
    for name, counts in {**ledger["counts_by_topic"], "all": ledger["counts"]}.items():
        if found := ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count):
            console.print(f"{name}: {found}", highlight=False)
