"""The subcommands by name: listed without being imported, imported when one of them runs."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = (
    "demo", "info", "train", "evaluate", "predict", "embed", "export", "ablate", "explain", "app", "quality", "align",
    "bench", "stream", "convert", "adapt", "reproduce",
)  # fmt: skip
MODULES = {"app": "explore"}  # of a command, where it is called otherwise; its function bears the module's name


def load(name: str) -> Any:
    """A command as click sees it, with its options; imports its module."""
    module = MODULES.get(name, name)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(import_module(f"{__package__}.{module}"), module))
    command = typer.main.get_command(alone)
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))  # no ragged lines
    return command


def summary(name: str) -> str:
    """The first paragraph of a command's docstring, read from its source."""
    module = MODULES.get(name, name)
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(functions[module]) or "").partition("\n\n")[0]


class Commands(TyperGroup):
    """A group that knows its commands by name and first line, and loads the one that runs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # the names, to list and to suggest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What the list of commands shows of one."""
        return TyperCommand(cmd_name, help=summary(cmd_name)) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that an argument names, with its options."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(str(found.name)), rest
