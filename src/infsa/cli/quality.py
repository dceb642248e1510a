"""``infsa quality``: MoRF, LeRF and boxes for several models and seeds."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from . import options


def quality(
    models: options.Models,
    data: options.Data,
    split: options.Split = "val",
    limit: Annotated[int, options.number("Number of images, drawn by the seed.")] = 500,
    fills: Annotated[
        list[str] | None,
        typer.Option("--fill", help="mean, black, blur, road or tokens; repeatable.", show_default="mean"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="last, rollout, tokenrank, katz, gradient or degree; repeatable.", show_default="last"
        ),
    ] = None,
    steps: Annotated[int, options.number("Steps in which all patches are removed.")] = 20,
    score: Annotated[str, typer.Option(help="probability, logit or top1, of the predicted class.")] = "probability",
    normalise: Annotated[str, typer.Option(help="intact (divide by the score of the full image) or none.")] = "intact",
    draws: Annotated[int, options.number("Random orders averaged where patches have equal scores.")] = 3,
    only_correct: Annotated[
        bool, typer.Option("--only-correct/--all-images", help="Use correctly classified images only.")
    ] = True,
    min_probability: Annotated[
        float, typer.Option(help="Skip images whose predicted class has a lower probability.")
    ] = 0.1,
    seed: Annotated[int, options.seed_of("images and orders")] = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for records, numbers and figures.")] = Path("runs/quality"),
    as_json: options.Json = False,
) -> None:
    """Measure the quality of attention maps: patch removal (MoRF, LeRF) and agreement with boxes.

    Models whose names differ only in a final -SEED count as runs of one model: the tables give their mean and
    deviation. The model must have the classes of the data; of a folder without splits, the images that its run held
    out are used. An interrupted run continues when the command is repeated. To try it, train a model on generated
    shapes first (minutes on a CPU): infsa train --out runs/shapes.

    Example: infsa quality --model runs/shapes --data shapes --limit 50
    """
    from ..evaluate import Boxes, Removal, study_quality
    from ..evaluate.summary import NORMALISATIONS
    from ..files import write_json
    from ..ops.checks import check_choice
    from ..report.quality_figures import draw_quality, has_boxes
    from ..report.quality_tables import box_table, caption, removal_table

    chosen = tuple(methods or ["last"])
    options.checked(lambda value: check_choice("normalise", value, NORMALISATIONS))(normalise)
    common: dict[str, Any] = {
        "levels": steps, "score": score, "methods": chosen, "draws": draws, "only_correct": only_correct,
        "min_probability": min_probability, "seed": seed,
    }  # fmt: skip
    with options.usage():
        removals = [Removal(fill=fill, **common) for fill in dict.fromkeys(fills or ["mean"])]
    console = Console(quiet=as_json)
    summary = options.run_study(
        study_quality, models, data, split, removals, Boxes(methods=chosen, seed=seed), console=console, device=device,
        out=out, images=limit, normalise=normalise,
    )  # fmt: skip
    files = [write_json(summary, out / "quality.json"), *draw_quality(summary, out)]
    options.print_json({**summary, "files": files}, as_json)
    for removal in removals:
        title = f"Removing patches, fill: {removal.fill}"
        console.print(removal_table(summary, removal.fill).titled(title, caption(summary["config"])))
    rules = {"centre": "centre of the patch inside", "area": "half of the patch covered"} if has_boxes(summary) else {}
    for rule, title in rules.items():
        console.print(box_table(summary, rule).titled(f"Patches and boxes: {title}"))
    if not rules:
        console.print("The data has no boxes to compare the maps with.", highlight=False)
    console.print("Written: " + ", ".join(str(file) for file in files), highlight=False, soft_wrap=True)
