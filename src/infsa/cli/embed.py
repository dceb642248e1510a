"""``infsa embed``: embeddings and predictions of many images, as one table."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ..report.table import Table
from . import options
from .options import chosen_device, counted

if TYPE_CHECKING:
    from ..cohort.forecast import Forecast
    from ..cohort.run import Cohort, Summary

QUIET = 30.0  # seconds between two lines where there is no terminal


def embed(
    images: Annotated[
        list[str],
        typer.Argument(
            help="Image files, folders, patterns such as 'new/*.jpg', a .csv with a column path (and perhaps id), or "
            "WebDataset shards such as 'train-{0000..0012}.tar'."
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help=f"{options.SOURCE}; or timm:NAME or timm:FOLDER.")
    ] = "infvit_linear_tiny",
    out: Annotated[Path, typer.Option(help="The table, .parquet.")] = Path("cohort.parquet"),
    resolution: options.Resolution = "native",
    embedding: Annotated[
        str | None,
        typer.Option(
            help="class (token), pooled (patch tokens) or both.", show_default="the class token where there is one"
        ),
    ] = None,
    with_maps: Annotated[bool, typer.Option("--with-maps", help="Add the attention map of every image.")] = False,
    memory: Annotated[
        str, typer.Option(help="Memory limit per worker; images that need more than half of it are streamed.")
    ] = "4GiB",
    batch_size: Annotated[int, options.number("Largest batch of images of one size.")] = 32,
    tile: Annotated[int, options.number("Side of the tiles of streamed images.")] = 1024,
    dtype: Annotated[str, typer.Option(help="Model dtype: float32, bfloat16 or float16.")] = "float32",
    devices: Annotated[
        str,
        typer.Option(
            "--devices", "--device", help="auto, cpu, cuda, cuda:1, or a list with one per worker: cuda:0,cuda:1."
        ),
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes, spread over the devices.", show_default="one per device named")
    ] = None,
    readers: Annotated[int, options.number("Threads per worker that read images.")] = 2,
    ray: Annotated[str | None, typer.Option(help="Compute on the Ray cluster at this address, or auto.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a table of another model, other options or other images.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print what would be batched and streamed, with a time estimate from a short measurement, and stop.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write embeddings and predictions of many images as one table, a row per image.

    Images that fit in memory are batched by size, larger ones are streamed. A file that cannot be read has a row with
    the reason. An interrupted run continues when the command is repeated; unchanged files are not computed again. The
    exit code is 1 if no image could be read.

    Example: infsa embed slides/ --model runs/slides --memory 16GiB --out cohort.parquet
    """
    from ..cohort.forecast import forecast
    from ..cohort.run import Cohort
    from ..cohort.settings import Settings

    chosen = _devices(devices, workers, ray)
    with options.usage():
        settings = Settings(
            resolution=options.chosen_resolution(resolution), embedding=embedding, maps=with_maps, dtype=dtype,
            batch_size=batch_size, memory=memory, tile=tile, readers=readers,
        )  # fmt: skip
    options.tell_unfinished(model)
    cohort = Cohort(images, model, chosen, ray, settings)
    console = Console(highlight=False, soft_wrap=True, quiet=as_json)
    if plan:
        found = forecast(cohort, out, overwrite)
        options.print_json(asdict(found), as_json)
        _print_plan(console, found, cohort)
        return
    with _bar(Console(stderr=True, highlight=False)) as report:
        done = cohort.run(out, overwrite, report)
    options.print_json(asdict(done), as_json)
    _print_summary(console, done)
    if done.failed == done.rows:
        raise typer.Exit(1)


def _devices(names: str, workers: int | None, ray: str | None) -> list[str]:
    """The device of every worker."""
    from ..cohort.run import all_devices

    if workers is not None and workers < 1:
        raise typer.BadParameter(f"--workers must be 1 or more, got {workers}")
    if ray is not None:
        if workers is not None:
            raise typer.BadParameter("--workers cannot be combined with --ray: the cluster sets the number of workers")
        if names not in ("auto", "cpu", "cuda"):
            raise typer.BadParameter(f"--devices must be cpu or cuda with --ray, got {names!r}")
        return ["cpu" if names == "auto" else names]
    given = all_devices() if names == "auto" else [str(chosen_device(name.strip())) for name in names.split(",")]
    if workers is None:
        return given[:1] if names == "auto" else given
    return list(islice(cycle(given), workers))


@contextmanager
def _bar(console: Console) -> Iterator[Any]:
    """A bar with rates, time left and failures; lines now and then where there is no terminal."""
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    last = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading headers", total=1.0)

        def report(at: Any) -> None:
            nonlocal last
            share = at.done_megapixels / at.megapixels if at.megapixels else at.done / max(at.images, 1)
            bar.update(task, description=str(at), completed=share)
            if not console.is_terminal and time.perf_counter() - last > QUIET:
                last = time.perf_counter()
                typer.echo(str(at), err=True)

        yield report


def _print_summary(console: Console, done: "Summary") -> None:
    from ..data.paths import shown

    rates = [f"{done.computed / done.seconds:.1f}", f"{done.megapixels / done.seconds:.2f}"]
    columns = ["rows", "failed", "kept", "computed", "streamed", "megapixels", "seconds", "images/s", "Mpx/s"]
    cells = [done.rows, done.failed, done.kept, done.computed, done.streamed, f"{done.megapixels:.1f}"]
    console.print(Table(columns, [[*map(str, cells), f"{done.seconds:.1f}", *rates]], shown(str(done.table))))
    for path, reason in done.failures:
        console.print(f"failed: {shown(path)}: {shown(reason)}", markup=False)
    if done.failed > len(done.failures):
        console.print(f"and {done.failed - len(done.failures)} more: the rows whose error is not null")
    for note in done.notes:
        console.print(shown(note), markup=False)


def _print_plan(console: Console, found: "Forecast", cohort: "Cohort") -> None:
    from ..data.paths import shown

    what = {
        "batched": f"{counted(found.batches, 'batch', 'es')} of {counted(found.sizes, 'size')}",
        "streamed": f"tiles of {cohort.settings.tile} px in {cohort.settings.memory}",
        "unread": "a row with the reason",
    }
    rows = [
        [kind, str(count), f"{found.megapixels[kind]:.1f}", what[kind], f"{found.seconds[kind]:.1f}"]
        for kind, count in found.images.items()
    ]
    rows.append(["kept", str(found.kept), "", "computed before", ""])
    console.print(Table(["images", "number", "megapixels", "how", "seconds of work"], rows, "Plan"))
    console.print(f"About {found.total_seconds:.0f} s with {counted(found.workers, 'worker')}, by a short measurement")
    for note in found.notes:
        console.print(shown(note), markup=False)
