"""Every field of a recipe as a command-line option, made from the dataclass itself."""

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..train.recipe import RECIPES, Recipe, read_recipe

SET_OTHERWISE = ("model_options", "data_options")


def parse_pairs(pairs: list[str]) -> dict[str, Any]:
    """``["depth=9", "gamma=0.5"]`` as a table; values are numbers, true, false, JSON, or else words."""
    table = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"expected name=value, got {pair!r}")
        table[name] = parse_value(value)
    return table


def parse_value(text: str) -> Any:
    """A number, true, false or JSON if it reads as one, otherwise the word itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def comments() -> dict[str, str]:
    """The comment beside every field of :class:`Recipe`, read from its source, as the option's help."""
    found = re.findall(r"^    (\w+): [^#\n]*?(?:  # (.*))?$", inspect.getsource(Recipe), re.MULTILINE)
    return dict(found)


def sentence(text: str, kind: Any = str) -> str:
    """A comment as a help text, after the choices if the field has some: as a column of their own they would be cut."""
    if typing.get_origin(kind) is typing.Literal:
        *names, last = typing.get_args(kind)
        return f"{', '.join(names)} or {last}: {text}."
    return text[:1].upper() + text[1:] + "." if text else ""


def sections() -> dict[str, str]:
    """The heading above every field in the source: the panel of its option in the help."""
    panel, panels = "", {}
    for line in inspect.getsource(Recipe).splitlines():
        if heading := re.fullmatch(r"    # (.+)", line):
            panel = heading[1]
        elif assignment := re.match(r"    (\w+): ", line):
            panels[assignment[1]] = panel
    return panels


def default_of(name: str) -> str:
    """What a field is without the option: one value, or each recipe's where they differ; "" if it is empty."""
    values = {recipe: _written(getattr(fields, name)) for recipe, fields in RECIPES.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{recipe}: {value}" for recipe, value in values.items() if value)


def format_of(kind: Any) -> str | None:
    """How an option is written: a list of numbers; None where its type says it."""
    return "X,Y,..." if typing.get_origin(kind) is tuple else None


def _written(value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(_written, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def with_recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``changes`` one option per field of the recipe instead."""
    signature = inspect.signature(command)
    own = [p for name, p in signature.parameters.items() if name != "changes"]
    hints, help_texts, panels = typing.get_type_hints(Recipe), comments(), sections()
    extra = []
    for field in dataclasses.fields(Recipe):
        if field.name in SET_OTHERWISE or field.name in signature.parameters:
            continue
        kind = hints[field.name]
        option = typer.Option(
            help=sentence(help_texts[field.name], kind) or None, rich_help_panel=panels[field.name],
            show_default=default_of(field.name) or False, metavar=format_of(kind),
        )  # fmt: skip
        shown: Any = kind if kind in (int, float, bool) else str
        annotation = Annotated[shown | None, option]
        extra.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def wrapped(**arguments: Any) -> None:
        changes = {p.name: value for p in extra if (value := arguments.pop(p.name)) is not None}
        command(**arguments, changes=changes)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    wrapped.__signature__ = signature.replace(parameters=[*keyword, *extra])  # type: ignore[attr-defined]
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    wrapped.__annotations__ = {p.name: p.annotation for p in (*keyword, *extra)}
    return wrapped


def choose_recipe(
    name: str | None, config: Path | None, model_option: list[str], data_option: list[str], changes: dict[str, Any]
) -> tuple[Recipe, list[str], set[str]]:
    """A named recipe, changed by a file, by options and by what follows from both; a wrong field is wrong usage.

    Returns:
        The recipe; a line for each field that gave way to others; the fields that were asked for.

    Without a name it is ``finetune`` where there are weights to start from, and ``tiny`` otherwise.
    """
    from ..train.fitting import fitted

    if name is not None and name not in RECIPES:
        raise typer.BadParameter(f"unknown recipe {name!r}; known are {', '.join(RECIPES)}")
    try:
        fields = read_recipe(config) if config else {}
        name = name or ("finetune" if changes.get("init", fields.get("init")) else "tiny")
        recipe = amended(RECIPES[name].override(fields), model_option, data_option, changes)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    asked = {*fields, *changes}
    return *fitted(recipe, RECIPES[name], asked), asked


def amended(recipe: Recipe, model_option: list[str], data_option: list[str], changes: dict[str, Any]) -> Recipe:
    """A recipe changed by the options of the command line."""
    tables = {"model_options": parse_pairs(model_option), "data_options": parse_pairs(data_option)}
    merged = {name: {**getattr(recipe, name), **table} for name, table in tables.items() if table}
    return recipe.override({**changes, **merged})
