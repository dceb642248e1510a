"""``infsa stream``: a model on an image of any size, in bounded memory."""

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ..report.table import Table
from .options import SOURCE, Device, Json, at_least, check_seed, checked, chosen_device, chosen_model

if TYPE_CHECKING:
    from ..models import InfViT
    from ..streaming import Progress as At


def _check_memory(memory: str) -> None:
    from ..streaming.memory import parse_bytes

    parse_bytes(memory)


def _one_of(*names: str) -> Any:
    def check(value: str) -> None:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got {value!r}")

    return checked(check)


def _bands(text: str | None) -> list[int] | None:
    return None if text is None else [int(word) for word in text.split(",")]


def _check_bands(text: str) -> None:
    try:
        _bands(text)
    except ValueError as error:
        raise ValueError(f"must be numbers such as 0,1,2, got {text!r}") from error


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"must lie in (0, 1], got {share!r}")


def stream(
    image: Annotated[Path, typer.Argument(help="A .npy, JPEG, PNG, WebP, GIF, TIFF, whole-slide or Zarr image.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help=f"{SOURCE}; must use Linear-InfSA.")
    ] = "infvit_linear_tiny",
    tile: Annotated[
        int | None,
        typer.Option(
            help="Side of the tiles in pixels; the result does not depend on it.",
            show_default="1024, larger on a GPU",
            callback=at_least(1),
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory limit of the process, such as 2GiB.",
            show_default="in use now, plus half of what is free",
            callback=checked(_check_memory),
        ),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory limit on the GPU.", show_default="four fifths of what is free", callback=checked(_check_memory)
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="spill (keep tokens between passes), recompute, or auto (keep what fits).",
            callback=_one_of("auto", "recompute", "spill"),
        ),
    ] = "auto",
    scratch: Annotated[Path | None, typer.Option(help="Folder for tokens that do not fit in memory.")] = None,
    level: Annotated[int, typer.Option(help="Level of a pyramid; 0 is the largest.", callback=at_least(0))] = 0,
    series: Annotated[
        int | None, typer.Option(help="Image within a multi-image TIFF.", show_default="first", callback=at_least(0))
    ] = None,
    page: Annotated[
        int | None,
        typer.Option(
            help="Page of the TIFF (or of its --series); frame of a GIF or WebP.",
            show_default="first",
            callback=at_least(0),
        ),
    ] = None,
    bands: Annotated[
        str | None,
        typer.Option(help="Channels to use, such as 0,1,2.", show_default="all", callback=checked(_check_bands)),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(help="raise, or skip: mask out tiles that cannot be read.", callback=_one_of("raise", "skip")),
    ] = "raise",
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map", help="Write the attention map here: .ome.tif for viewers, .tif or .zarr, with a .png beside it."
        ),
    ] = None,
    regions: Annotated[
        Path | None, typer.Option(help="Write the regions of highest attention here, for QuPath and napari: .geojson.")
    ] = None,
    region_share: Annotated[
        float | None,
        typer.Option(
            help="Share of the attention inside the regions.", show_default="0.2", callback=checked(_check_share)
        ),
    ] = None,
    region_count: Annotated[
        int | None, typer.Option(help="Maximum number of regions.", show_default="50", callback=at_least(1))
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(help="Write the scene code, from which features of any region can be computed: .safetensors."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace any file; otherwise only an older map or code.")
    ] = False,
    state: Annotated[Path | None, typer.Option(help="Checkpoint file; the same command continues from it.")] = None,
    save_every: Annotated[
        float | None,
        typer.Option(help="Minimum seconds between saves of --state.", show_default="30", callback=at_least(0)),
    ] = None,
    estimate: Annotated[
        float | None,
        typer.Option(
            help="Estimate the logits, with intervals, from this share of the tiles, drawn at random.",
            callback=checked(_check_share),
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of --estimate.", show_default="0", callback=checked(check_seed))
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the plan, and at the end where the time went.")
    ] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print the tiles and where tokens would be kept, and stop.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Run a Linear-InfSA model on an image of any size, exactly, in bounded memory.

    Sides are padded to multiples of the patch. --estimate reads only a part of the image and gives each logit a 90 %
    interval.

    Example: infsa stream orion.jpg --memory 2GiB --map orion-map.tif
    """
    if seed is not None and estimate is None:
        raise typer.BadParameter("--seed needs --estimate")
    if save_every is not None and state is None:
        raise typer.BadParameter("--save-every needs --state")
    if overwrite and map_file is None and code is None and regions is None:
        raise typer.BadParameter("--overwrite needs --map, --regions or --code")
    rule = {name: value for name, value in (("share", region_share), ("count", region_count)) if value is not None}
    if rule and regions is None:
        raise typer.BadParameter(f"--region-{next(iter(rule))} needs --regions")
    loaded = chosen_model(model, chosen_device(device))
    loaded.patch_embed.dynamic_img_pad = True  # type: ignore[misc]  # only a hint to TorchScript
    console = Console(quiet=as_json, stderr=True)
    choice = {"level": level, "series": series, "page": page, "bands": _bands(bands)}
    if estimate is not None:
        given: dict[str, Any] = {"--map": map_file, "--regions": regions, "--code": code, "--state": state}
        given |= {"--scratch": scratch, "--device-memory": device_memory, "--profile": profile or None}
        given |= {"--plan": plan_only or None}
        for name, value in given.items():
            if value is not None:
                raise typer.BadParameter(f"--estimate cannot be combined with {name}")
        if strategy != "auto" or on_error != "raise":
            raise typer.BadParameter("--estimate cannot be combined with --strategy or --on-error")
        with _warnings_in_one_line():
            record = _estimate(loaded, image, console, choice, tile or 1024, memory, estimate, seed or 0)
    else:
        options: dict[str, Any] = {
            "tile": tile,
            "memory": memory,
            "device_memory": device_memory,
            "strategy": strategy,
            "scratch": scratch,
            "on_error": on_error,
            "map": map_file or False,
            "regions": regions,
            **{f"region_{name}": value for name, value in rule.items()},
            "code": code,
            "overwrite": overwrite,
            "state": state,
            **choice,
        }
        if save_every is not None:
            options["save_every"] = save_every
        if plan_only:
            _, planned = _planned(loaded, image, options)
            typer.echo(
                json.dumps({"image": str(image), "model": model, "plan": planned}, indent=1) if as_json else planned
            )
            return
        with _warnings_in_one_line():
            record = _stream(loaded, image, console, options, profile)
    if as_json:
        typer.echo(json.dumps({"image": str(image), "model": model, **record}, indent=1))
    else:
        _print(Console(), record)


@contextmanager
def _warnings_in_one_line() -> "Iterator[None]":
    def show(message: Warning | str, *_: Any) -> None:
        typer.echo(f"infsa: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # the rest of its arguments is not shown
        yield


def _planned(model: "InfViT", image: Path, options: dict[str, Any]) -> tuple[Any, str]:
    """The opened image, whose options are taken from ``options``, and the plan of its stream."""
    from ..streaming import open_source, plan_stream

    source = open_source(image, **{name: options.pop(name) for name in ("level", "series", "page", "bands")})
    named = ("tile", "strategy", "memory", "device_memory", "scratch")
    return source, str(plan_stream(model, source, **{name: options[name] for name in named}))


def _stream(model: "InfViT", image: Path, console: Console, options: dict[str, Any], profile: bool) -> dict[str, Any]:
    from ..streaming import stream as run

    began = time.perf_counter()
    source: Any = image
    if profile:
        source, planned = _planned(model, image, options)
        typer.echo(planned, err=True)
    with _bar(console) as report:
        result = run(model, source, progress=report, **options)
    height, width = result.code.size
    seconds = time.perf_counter() - began
    return {
        "size": [width, height],
        "strategy": result.strategy,
        "passes": result.passes,
        "seconds": seconds,
        "seconds_per_megapixel": seconds / (height * width / 1e6),
        "peak_memory": result.peak_memory,
        "skipped": [str(bad) for bad in result.skipped],
        "map": None if result.map_file is None else str(result.map_file),
        "regions": None if options["regions"] is None else str(options["regions"]),
        "code": None if options["code"] is None else str(options["code"]),
        "predictions": _predictions(model, result.logits),
        "logits": result.logits[0].tolist(),
        **({"plan": str(result.plan), "profile": result.profile.record()} if profile else {}),
    }


def _estimate(
    model: "InfViT",
    image: Path,
    console: Console,
    choice: dict[str, Any],
    tile: int,
    memory: str | None,
    share: float,
    seed: int,
) -> dict[str, Any]:
    from ..streaming import estimate, open_source

    source = open_source(image, **choice)
    with _bar(console) as report:
        found = estimate(model, source, share, tile=tile, memory=memory, seed=seed, progress=report)
    return {
        "share": found.share,
        "tiles": found.tiles,
        "level": found.confidence,
        "predictions": _predictions(model, found.logits),
        "logits": found.logits[0].tolist(),
        "low": found.low[0].tolist(),
        "high": found.high[0].tolist(),
    }


def _predictions(model: "InfViT", logits: Any) -> list[dict[str, Any]]:
    """The likeliest classes, of every task if the model has several."""
    from ..evaluate.maps import class_names, likeliest_outputs

    if not (names := class_names(model)):
        return []
    return [
        {"class": names[output], "number": output, "probability": chance}
        for output, chance in likeliest_outputs(model, logits)[0]
    ]


@contextmanager
def _bar(console: Console) -> "Iterator[Any]":
    """A bar over all passes: megapixels per second, what most of the time goes to, and the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=1.0, rate="")

        def report(at: "At") -> None:
            left = f"{at.left // 3600:.0f}:{at.left // 60 % 60:02.0f}:{at.left % 60:02.0f}"
            rate = f"{at.rate:.1f} Mpx/s, mostly {at.waits_for}, {left} left"
            done = (at.passed + at.done / at.tiles) / at.passes
            text = f"pass {min(at.passed + 1, at.passes)} of {at.passes}, {at.name}"
            bar.update(task, description=text, completed=done, rate=rate)

        yield report


def _print(console: Console, record: dict[str, Any]) -> None:
    from ..streaming.memory import show_bytes

    rows = []
    for guess in record["predictions"]:
        number = guess["number"]
        row = [guess["class"], f"{guess['probability']:.1%}", f"{record['logits'][number]:.3f}"]
        if "low" in record:
            row.append(f"{record['low'][number]:.3f} to {record['high'][number]:.3f}")
        rows.append(row)
    columns = ["class", "probability", "logit", *(["90 % interval"] if "low" in record else [])]
    if rows:
        console.print(Table(columns, rows, "What the model sees"))
    if "low" in record:
        console.print(f"From {record['tiles']} tiles, {record['share']:.1%} of the image", highlight=False)
        return
    width, height = record["size"]
    console.print(
        f"{width} × {height}, {record['passes']} passes ({record['strategy']}), {record['seconds']:.1f} s, "
        f"{record['seconds_per_megapixel']:.3f} s per megapixel, peak {show_bytes(record['peak_memory'])}",
        highlight=False,
        soft_wrap=True,
    )
    for bad in record["skipped"]:
        console.print(f"masked out: {bad}", highlight=False, soft_wrap=True)
    if "profile" in record:
        from ..streaming.timing import table

        console.print(table(record["profile"]), highlight=False, soft_wrap=True)
