"""``infsa adapt``: convert a model and train it to do what the original did."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..report.table import Table
from . import options
from .parameters import check_gamma, check_seed, checked, usage
from .recipe_options import parse_pairs


def adapt(
    model: options.Foreign,
    data: Annotated[str, typer.Option(help="images:FOLDER (no labels), or a dataset such as folder:PATH.")] = "shapes",
    weights: options.Weights = None,
    pretrained: options.Pretrained = False,
    model_option: options.ModelPairs = None,
    data_option: options.DataPairs = None,
    variant: options.Variant = "pure",
    level: Annotated[str, typer.Option(help="swap, or surgery (linear).")] = "swap",
    norm: options.Norm = "auto",
    gamma: Annotated[float, typer.Option(help="First decay, between 0 and 1.", callback=checked(check_gamma))] = 0.7,
    fixed_gamma: Annotated[bool, typer.Option("--fixed-gamma", help="Do not learn the decay.")] = False,
    include: options.Include = None,
    exclude: options.Exclude = None,
    layer_epochs: Annotated[int, options.number("Matching each layer's output.", 0)] = 2,
    logit_epochs: Annotated[int, options.number("Matching the logits.", 0)] = 5,
    label_epochs: Annotated[int, options.number("Fine-tuning on labels.", 0)] = 0,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of infsa.train.adaptation.Adaptation; repeatable.")
    ] = None,
    size: Annotated[int, options.number("Side of the images in pixels.")] = 224,
    batch_size: Annotated[int, options.number("Images per step.")] = 128,
    seed: Annotated[int, typer.Option(help="Of order and views.", callback=checked(check_seed))] = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/adapt"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a model's attention and recover its accuracy by distillation from the original model.

    Each layer learns the original's output, then the model learns the original's logits, then the labels if asked. The
    folder receives checkpoints, result.json and model.safetensors.

    Example: infsa adapt timm:deit_tiny_patch16_224 --pretrained --data images:photos --out runs/deit
    """
    from ..conversion import convert, open_model, save_converted
    from ..data.paths import few
    from ..train.adapt import adapt as adapt_model
    from ..train.adaptation import Adaptation

    extra, fields = parse_pairs(model_option or []), parse_pairs(setting or [])
    named: dict[str, Any] = {
        "data": data, "layer_epochs": layer_epochs, "logit_epochs": logit_epochs, "label_epochs": label_epochs,
        "size": size, "batch_size": batch_size, "seed": seed, "data_options": parse_pairs(data_option or []),
    }  # fmt: skip
    if twice := fields.keys() & named.keys():
        raise typer.BadParameter(f"--set {min(twice)} has an option of its own")
    with usage():
        plan = Adaptation(**named, **fields)
    place = options.chosen_device(device)
    console = Console(quiet=as_json)
    original = open_model(model, weights, pretrained, extra).to(place)
    settings: dict[str, Any] = {"norm": norm, "gamma": gamma, "learn_gamma": not fixed_gamma, "level": level}
    converted = convert(original, variant, include=include, exclude=exclude, **settings)  # type: ignore[arg-type]
    with Progress(*options.BAR, console=console, disable=as_json, transient=True) as progress:
        task = progress.add_task("measuring", total=None)

        def watch(row: dict[str, Any]) -> None:
            text = f"{row['stage']}, loss {row['loss']:.4f}" if row["kind"] == "train" else row["kind"]
            progress.update(task, description=text, completed=row["step"], total=row["total"])

        result = adapt_model(original, converted, plan, out, resume=resume, watch=watch)
    file = save_converted(converted, out / "model.safetensors", model, extra)
    options.print_json({**result, "file": file}, as_json)
    console.print(stages_table(result))
    if skipped := result["skipped"]:
        console.print(f"note: images skipped: {few(skipped)}", markup=False, soft_wrap=True)
    for name in ("model.safetensors", "result.json", "checkpoints"):
        console.print(f"  {out / name}", highlight=False, soft_wrap=True)


def stages_table(result: dict[str, Any]) -> Table:
    """Agreement and accuracy after every stage."""
    rows = []
    for row in result["history"]:
        top1 = "" if row["top1"] is None else f"{row['top1']:.2%}"
        rows.append([row["stage"], f"{row['agreement']:.2%}", top1, f"{row['seconds']:.1f}"])
    return Table(["after", "agreement with the original", "top-1", "seconds so far"], rows)
