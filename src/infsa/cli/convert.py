"""``infsa convert``: what a model's attention layers are, what they would become, and the converted weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..report.table import Table
from . import options
from .recipe_options import parse_pairs

if TYPE_CHECKING:
    from ..conversion import ConversionPlan


def convert(
    model: options.Foreign,
    variant: options.Variant = "pure",
    surgery: options.Surgery = False,
    norm: options.Norm = "auto",
    gamma: options.Gamma = 0.7,
    learn_gamma: options.LearnGamma = False,
    chunk_size: Annotated[int | None, typer.Option(help="Tokens per chunk of causal Linear-InfSA.")] = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    weights: options.Weights = None,
    pretrained: options.Pretrained = False,
    model_option: options.ModelPairs = None,
    out: Annotated[Path | None, typer.Option(help="File for the converted weights (.safetensors).")] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the plan and stop.")] = False,
    as_json: options.Json = False,
) -> None:
    """Print the plan for every attention layer of a model, then convert it and write its weights.

    Layers that cannot be converted are listed with the reason; --exclude keeps them as they are.

    Example: infsa convert --model timm:deit_tiny_patch16_224 --variant linear --plan
    """
    from ..conversion import convert as convert_model
    from ..conversion import open_model, plan_conversion, save_converted

    if out is None and not plan_only:
        raise typer.BadParameter("name the file for the weights with --out, or print the plan only, with --plan")
    console = Console(quiet=as_json)
    settings: dict[str, Any] = {
        "norm": norm, "gamma": gamma, "learn_gamma": learn_gamma, "chunk_size": chunk_size,
        "level": "surgery" if surgery else "swap",
    }  # fmt: skip
    extra = parse_pairs(model_option or [])
    with console.status(f"Building {model} ..."):
        network = open_model(model, weights, pretrained, extra)
    plan = plan_conversion(network, variant, include=include, exclude=exclude, **settings)  # type: ignore[arg-type]
    console.print(plan_table(plan, model))
    for note in plan.notes():
        console.print(f"  {note}", highlight=False, soft_wrap=True)
    content = {"model": model, **plan.as_dict()}
    if not plan_only:
        assert out is not None
        plan.check()
        convert_model(network, variant, include=include, exclude=exclude, inplace=True, **settings)  # type: ignore[arg-type]
        content["file"] = str(save_converted(network, out, model, extra))
        console.print(f"Written: {out}", highlight=False, soft_wrap=True)
    options.print_json(content, as_json)


def plan_table(plan: "ConversionPlan", title: str) -> Table:
    """A plan for the terminal, without the columns that say no for every layer."""

    layers = plan.rows()
    shown = (
        [column for column in layers[0] if any(row[column] not in ("no", "none") for row in layers)] if layers else []
    )
    cells = [[row[column] for column in shown] for row in layers]
    return Table(shown, cells, title, "" if layers else "no attention layers")
