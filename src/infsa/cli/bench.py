"""``infsa bench``: speed, memory, energy and multiply-adds of the compared mechanisms."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..report.table import Table
from .options import Device, Json, chosen_device, number, print_json, usage

if TYPE_CHECKING:
    from ..bench.presets import Plan

LEGEND = (
    "ms: median ± half the interquartile range; ~ marks rounds that differ by more than 5 %. J in brackets: the "
    "paper's formula, 200 W (training: 300 W) times the time."
)
MECHANISMS = (
    "softmax-naive (unfused), softmax, softmax-flash, softmax-cudnn, linformer, performer, soft, flatten, agent, mlla, "
    "infsa_pure-naive, infsa_pure, infsa_pure-triton, infsa_linear, mean, energy or fastformer; repeatable."
)
QUICK = {"seconds": 0.1, "budget": 140.0, "cap": 2**30, "limit_seconds": 3.0}  # settings of --quick


def bench(
    preset: Annotated[
        list[str] | None, typer.Option(help="table1, graphs, resolution, limits, compiled or quick; repeatable.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Same as --preset quick: a few minutes on a small CPU.")
    ] = False,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(help=MECHANISMS, show_default="the paper's nine"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            "--config",
            help="Layers, heads and, if wanted, width, patch and stem: 4L-64H, 12L-12H-768, 4L-64H-conv; repeatable.",
            show_default="4L-64H",
        ),
    ] = None,
    resolution: Annotated[
        list[str] | None, typer.Option(help="1024 or 512x768; repeatable.", show_default="224; 512 in a search")
    ] = None,
    mode: Annotated[list[str] | None, typer.Option(help="infer or train; repeatable.", show_default="infer")] = None,
    batch_size: Annotated[int, number("Images per call.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32.", show_default="float32 on a CPU, else bfloat16")
    ] = None,
    compile: Annotated[
        str,
        typer.Option(
            help="none: eager; graph: eager, replayed as a CUDA graph; default, reduce-overhead: torch.compile."
        ),
    ] = "none",
    part: Annotated[str, typer.Option(help="model, or attention: a single layer.")] = "model",
    energy: Annotated[bool, typer.Option("--energy", help="Measure energy, 5 s per row.")] = False,
    max_resolution: Annotated[
        bool, typer.Option("--max-resolution", help="Search for the largest image that fits, instead of timing.")
    ] = False,
    memory_cap: Annotated[
        str | None,
        typer.Option(help="Memory that the search may use, such as 40GiB.", show_default="all; 1GiB with --quick"),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds per call in the search.", show_default="10; 3 with --quick")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Timed seconds per row and round.", show_default="0.25; 0.1 with --quick")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds; in each, all rows are timed in turn.", show_default="3")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds after which no further row starts.", show_default="no limit; 140 with --quick"),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Measure failed rows again.")] = False,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Result file; a CSV and figures go beside it.")] = Path("runs/bench.json"),
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the rows and stop.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Print the ratios of two result files and stop.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the speed, memory and energy of attention mechanisms, in models or as single layers.

    An interrupted run continues when the command is repeated. Failed rows state the reason.

    Example: infsa bench --mechanism infsa_linear --mechanism softmax-flash --resolution 1024 --resolution 512x768
    """
    from ..bench.build import check_device
    from ..bench.settings import Settings
    from ..bench.suite import run_plan
    from ..streaming.memory import parse_bytes

    if compare is not None:
        show_comparison(*compare, as_json)
        return
    where = chosen_device(device)
    with usage():
        cap = None if memory_cap is None else parse_bytes(memory_cap, "--memory-cap")
    chosen: dict[str, Any] = {
        "seconds": seconds, "rounds": rounds, "budget": budget, "limit_seconds": time_limit, "retry": retry,
        "cap": cap,
    }  # fmt: skip
    axes = {"mechanism": mechanism, "config": config, "resolution": resolution, "mode": mode}
    fields = {"batch": batch_size, "dtype": dtype, "compile": compile, "part": part, "energy": energy}
    presets = [*(preset or []), *(["quick"] if quick else [])]
    if presets == ["quick"]:
        chosen = QUICK | {name: value for name, value in chosen.items() if value is not None}
    with usage():
        settings = Settings(**{name: value for name, value in chosen.items() if value is not None})
        plan = make_plan(presets, axes, {**fields, "limit": max_resolution}, where.type)
        if not plan_only and any(case.compile == "graph" for cases in plan for case in cases):
            check_device(where)
        searched = any(case.limit for cases in plan for case in cases)
        if not searched and (memory_cap is not None or time_limit is not None):
            raise ValueError("--memory-cap and --time-limit need --max-resolution")
        if max_resolution and len(resolution or ()) > 1:
            raise ValueError(f"a search starts at one --resolution, got {resolution}")
    if plan_only:
        keys = [case.key for cases in plan for case in cases]
        typer.echo(json.dumps(keys, indent=1) if as_json else "\n".join(keys))
        return
    console = Console(quiet=as_json)
    with row_progress(console) as report:
        content = run_plan(plan, out, str(where), settings, report=report)
    show(content, out, console, as_json)
    rows = [content["rows"][case.key] for cases in plan for case in cases]
    if rows and all(row["status"] == "failed" for row in rows):
        raise typer.Exit(1)


def make_plan(presets: list[str], axes: dict[str, Any], fields: dict[str, Any], kind: str) -> "Plan":
    """The rows that the options ask for: presets, thinned out by --mechanism, or all combinations of the axes."""
    from ..bench.cases import NINE, VARIANTS, Case, parse_config, parse_size
    from ..bench.presets import PRESETS
    from ..ops.checks import check_choice

    names = axes.get("mechanism")
    for name in names or ():
        check_choice("mechanism", name, VARIANTS)
    if presets:
        for name in presets:
            check_choice("preset", name, PRESETS)
        given = [name for name in ("config", "resolution", "mode") if axes.get(name)]
        neutral = {"batch": 1, "dtype": None, "compile": "none", "part": "model", "energy": False, "limit": False}
        given += [name for name, value in fields.items() if value != neutral[name]]
        if given:
            option = {"config": "size", "batch": "batch-size", "limit": "max-resolution"}.get(given[0], given[0])
            raise ValueError(f"--{option} cannot be combined with a preset, which sets it")
        plan = [cases for name in presets for cases in PRESETS[name]()]
        kept = [[case for case in cases if not names or case.mechanism in names] for cases in plan]
        return [cases for cases in kept if cases]
    dtype = fields["dtype"] or ("float32" if kind == "cpu" else "bfloat16")
    single = {"depth": 1} if fields["part"] == "attention" else {}
    sizes = [parse_size(text) for text in axes["resolution"] or ["512" if fields["limit"] else "224"]]
    return [
        [Case(name, size=size, mode=mode, **{**parse_config(text), **single, **fields, "dtype": dtype}) for name in
         names or NINE]
        for text in axes["config"] or ["4L-64H"] for size in sizes for mode in axes["mode"] or ["infer"]
    ]  # fmt: skip


@contextmanager
def row_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over the rows, with the time left; without a terminal, a line for each step."""
    if not console.is_terminal:
        begin = time.monotonic()
        yield lambda text, done, total: console.print(
            f"{time.monotonic() - begin:4.0f} s  {done}/{total}  {text}", highlight=False, soft_wrap=True
        )
        return
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    columns = (BarColumn(20), MofNCompleteColumn(), *times, TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda text, done, total: progress.update(task, description=text, completed=done, total=total)


def show(content: dict[str, Any], out: Path, console: Console, as_json: bool) -> None:
    """Print a run's tables, or its content, and draw its figures."""
    from ..report.bench_figures import draw_bench
    from ..report.bench_tables import check_table, group_table, limit_table, machine_line, slope_tables, timed_groups

    files = [out, out.with_suffix(".csv"), *draw_bench(content, out.with_suffix(""))]
    print_json({**content, "files": files}, as_json)
    for name, rows in timed_groups(content).items():
        console.print(group_table(rows).titled(name))
    for name, table in slope_tables(content).items():
        console.print(table.titled(f"Growth with N: {name}", "95 % confidence intervals"))
    limits = limit_table(content)
    if limits.rows:
        console.print(limits_table(limits))
    if content["checks"]:
        console.print(check_table(content).titled("Known matrix product: what the harness adds to a time"))
    console.print(f"{machine_line(content)} {LEGEND}", highlight=False)
    console.print("Written: " + ", ".join(str(file) for file in files), highlight=False, soft_wrap=True)


def limits_table(limits: Table) -> Table:
    """The largest images; terms that are the same for all rows go below the table."""
    terms = {tuple(row[-2:]) for row in limits.rows}
    if len(terms) > 1:
        return limits.titled("Largest image")
    caption = ", ".join(f"{name}: {value}" for name, value in zip(limits.columns[-2:], *terms, strict=True))
    return Table(limits.columns[:-2], [row[:-2] for row in limits.rows], "Largest image", caption)


def show_comparison(first: Path, second: Path, as_json: bool) -> None:
    """Print the ratios of two result files."""
    from ..bench.results import read_results
    from ..report.bench_tables import compare_note, compare_rows, compare_table

    a, b = read_results(first), read_results(second)
    rows = compare_rows(a, b)
    if not rows:
        raise ValueError(f"{first} and {second} have no measured row in common")
    print_json(rows, as_json)
    Console(quiet=as_json).print(compare_table(a, b).titled(f"{second} against {first}", compare_note(a, b)))
