"""The ``infsa`` command: one module per subcommand, each thin: parse, call the library, print."""

from .app import app, main

__all__ = ["app", "main"]
