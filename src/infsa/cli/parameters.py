"""Turning the library's own checks into checks of command-line options."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


@contextmanager
def usage() -> Iterator[None]:
    """What the library refuses inside is wrong usage of the command."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def checked(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A typer callback that runs ``check`` on an option, if it is given."""

    def callback(value: Any) -> Any:
        if value is not None:
            with usage():
                check(value)
        return value

    return callback


def check_seed(seed: int) -> None:
    """Refuse a seed that torch's generators do not take."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"a seed must lie in [0, 2**63), got {seed}")


def check_gamma(gamma: float) -> None:
    """Refuse a decay outside (0, 1)."""
    from ..ops.checks import check_gamma as check

    check(gamma)
