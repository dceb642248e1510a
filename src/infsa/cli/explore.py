"""``infsa app``: the explorer page on this machine."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import MODELS, tell_unfinished


def _more_than_nothing(value: float) -> float:
    if not value > 0:
        raise typer.BadParameter(f"must be more than 0, got {value}")
    return value


def explore(
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="Large image to offer in the Gigapixel tab; repeatable.")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help=MODELS, show_default="the shipped models"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the page.", show_default="the first free one from 7860"),
    ] = None,
    max_megapixels: Annotated[
        float, typer.Option(help="Largest image of the Gigapixel tab.", callback=_more_than_nothing)
    ] = 400,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page that shows attention maps, token graphs, and predictions as patches are removed.

    Only this machine can open the page, and it loads nothing from the network. Ctrl+C ends it.

    Example: infsa app --model birds=runs/birds --file slide.tif
    """
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ImportError("the page needs gradio: pip install '.[app]' in a checkout") from error
    from ..app.page import serve
    from ..evaluate import Subject

    tell_unfinished(*(Subject.of(model).source for model in models or []))
    page, address = serve(files, max_megapixels, checkpoints=models, port=port, open_browser=open_browser)
    typer.echo(f"The page is at {address} (Ctrl+C ends it)")
    for name in ("SIGTERM", "SIGHUP"):  # an orderly end as well: uploads are removed
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
    page.block_thread()
