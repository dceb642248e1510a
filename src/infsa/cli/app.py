"""The command-line application and its rule for errors: one line, exit code 1 (failed) or 2 (wrong usage)."""

import sys
from typing import Annotated

import typer

from ..version import __version__
from .commands import Commands

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, wherever typer takes it from
INTERRUPTED = 130  # what typer makes of Ctrl-C
LONGEST = 600  # characters of an error; a failed compilation brings the compiler's whole output

app = typer.Typer(
    name="infsa",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"infsa {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Infinite Self-Attention (InfSA): vision models whose attention sums paths on a token graph.

    Start with: infsa demo
    """


def main() -> None:
    """Run the command line; a failure prints one line, or its traceback with ``infsa --debug``."""
    try:
        code = app([argument for argument in sys.argv[1:] if argument != "--debug"], standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", 1)
    except UsageError as error:
        fail(getattr(error, "format_message", error.__str__)(), 2)
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        fail(explanation(error), 1)
    if code == INTERRUPTED:
        fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def explanation(error: Exception) -> str:
    """What an error says to somebody who did not write this program."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ValueError | OSError | RuntimeError | ImportError):
        return str(error)
    return f"{type(error).__name__}: {error} (infsa --debug shows where)"


def fail(message: str, code: int) -> None:
    """Print the message as one line and leave."""
    if message:
        line = " ".join(message.split())
        shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ... (infsa --debug shows all)"
        typer.echo(f"infsa: {shown}", err=True)
    sys.exit(code)
