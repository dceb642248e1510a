"""Turning the library's own checks into checks of command-line options."""

from collections.abc import Callable
from typing import Any

import typer


def checked(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A typer callback that runs ``check`` on an option: what the library refuses is wrong usage."""

    def callback(value: Any) -> Any:
        try:
            check(value)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error)) from error
        return value

    return callback
