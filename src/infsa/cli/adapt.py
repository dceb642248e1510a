"""``infsa adapt``: convert a model and train it to do what the original did."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..report.table import Table
from . import options
from .convert import plan_table
from .recipe_options import parse_pairs

SETTABLE = (
    "layer_lr", "logit_lr", "label_lr", "temperature", "label_smoothing", "mixup", "cutmix", "warmup", "optimizer",
    "weight_decay", "clip_norm", "crop_min", "jitter", "interpolation", "loader", "workers", "precision", "compile",
    "save_every", "log_every",
)  # fmt: skip
FIELDS = f"field=value; repeatable. Fields: {', '.join(SETTABLE)}."


def adapt(
    model: options.Foreign,
    data: Annotated[str, typer.Option(help="images:FOLDER (no labels), or a dataset such as folder:PATH.")],
    weights: options.Weights = None,
    pretrained: options.Pretrained = False,
    model_option: options.ModelPairs = None,
    data_option: options.DataPairs = None,
    variant: options.Variant = "pure",
    surgery: options.Surgery = False,
    norm: options.Norm = "auto",
    gamma: options.Gamma = 0.7,
    learn_gamma: options.LearnGamma = True,
    include: options.Include = None,
    exclude: options.Exclude = None,
    layer_epochs: Annotated[int, options.number("Epochs that match each layer's output.", 0)] = 2,
    logit_epochs: Annotated[int, options.number("Epochs that match the logits.", 0)] = 5,
    label_epochs: Annotated[int, options.number("Epochs of fine-tuning on labels.", 0)] = 0,
    setting: Annotated[list[str] | None, typer.Option("--set", help=FIELDS)] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels.", show_default="the model's")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Images per step.", callback=options.at_least(1), show_default="128; fewer for few images"),
    ] = None,
    seed: Annotated[int, options.seed_of("data order and augmentation")] = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/adapt"),
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the plan and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a model's attention and recover its accuracy by distillation from the original model.

    Each layer learns the original's output, then the model learns the original's logits, then the labels with
    --label-epochs. The output folder receives checkpoints, result.json and model.safetensors.

    Example: infsa adapt --model timm:deit_tiny_patch16_224 --pretrained --data images:photos --out runs/deit
    """
    from ..conversion import convert, open_model, plan_conversion, save_converted
    from ..data.paths import few
    from ..train.adapt import adapt as adapt_model
    from ..train.adaptation import STAGES, Adaptation, usual_side

    extra, fields = parse_pairs(model_option or []), parse_pairs(setting or [])
    named: dict[str, Any] = {
        "data": data, "layer_epochs": layer_epochs, "logit_epochs": logit_epochs, "label_epochs": label_epochs,
        "batch_size": 128 if batch_size is None else batch_size, "seed": seed,
        "data_options": parse_pairs(data_option or []),
        "image_size": 224 if image_size is None else image_size,
    }  # fmt: skip
    if twice := fields.keys() & named.keys():
        option = "data-option" if "data_options" in twice else min(twice).replace("_", "-")
        raise typer.BadParameter(f"--set does not take {min(twice)}: use --{option}")
    if unknown := fields.keys() - {field.name for field in dataclasses.fields(Adaptation)}:
        raise typer.BadParameter(f"--set: unknown field {min(unknown)!r}; known are {', '.join(SETTABLE)}")
    with options.usage():
        plan = Adaptation(**named, **fields)
    place = options.chosen_device(device)
    console = Console(quiet=as_json)
    original = open_model(model, weights, pretrained, extra)
    if image_size is None:
        plan = dataclasses.replace(plan, image_size=usual_side(original))
    settings: dict[str, Any] = {
        "norm": norm, "gamma": gamma, "learn_gamma": learn_gamma, "level": "surgery" if surgery else "swap",
    }  # fmt: skip
    if plan_only:
        layers = plan_conversion(original, variant, include=include, exclude=exclude, **settings)  # type: ignore[arg-type]
        stages = {stage: plan.epochs(stage) for stage in STAGES}
        images = {"data": data, "image_size": plan.image_size}
        options.print_json({"model": model, **layers.as_dict(), **images, "epochs": stages}, as_json)
        console.print(plan_table(layers, model))
        epochs = ", ".join(f"{stage} {count}" for stage, count in stages.items())
        console.print(f"On {data} at {plan.image_size} px, epochs: {epochs}")
        return
    if weights is None and not pretrained:
        console.print("note: the original has random weights; --pretrained or --weights gives it trained ones")
    original.to(place)
    converted = convert(original, variant, include=include, exclude=exclude, **settings)  # type: ignore[arg-type]
    with Progress(*options.BAR, console=console, disable=as_json, transient=True) as progress:
        task = progress.add_task("measuring", total=None)

        def watch(row: dict[str, Any]) -> None:
            text = f"{row['stage']}, loss {row['loss']:.4f}" if row["kind"] == "train" else row["kind"]
            progress.update(task, description=text, completed=row["step"], total=row["total"])

        fit = batch_size is None
        result = adapt_model(original, converted, plan, out, resume=resume, watch=watch, fit_batch=fit)
    file = save_converted(converted, out / "model.safetensors", model, extra)
    options.print_json({**result, "file": file}, as_json)
    console.print(stages_table(result))
    if (used := result["plan"]["batch_size"]) != plan.batch_size:
        console.print(f"note: batch_size {plan.batch_size} became {used}: there are few training images")
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
