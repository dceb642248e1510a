"""Ablations: a grid of recipes, several seeds each, every run resumable, one table at the end."""

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..evaluate import Boxes, Removal, Subject, study_quality
from ..files import read_json, write_json
from ..models.infvit import InfViT
from ..nn.peers.registry import ATTENTIONS, attention_options
from ..provenance import provenance
from .checkpoint import list_checkpoints
from .feed import open_splits, with_val_share
from .fit import machine_options, train
from .init import completed
from .latency import measure_latency, measuring_device
from .module import build_model
from .recipe import Recipe
from .resume import check_same_run

Grid = dict[str, list[Any]]
Point = dict[str, Any]

PAPER_SWEEPS: tuple[Grid, ...] = (
    {"gamma": [0.3, 0.5, 0.7, 0.9], "activation": ["relu"]},
    {"gamma": [0.7], "activation": ["relu", "gelu", "abs"]},
)
SHORT = {"heads": "num_heads", "decay": "gamma"}  # words of the command line
CONVERGED = 0.005  # an epoch within half a point of the last counts as converged


@dataclass(frozen=True)
class Study:
    """A base recipe, the grids whose points are trained, and how often; ``timed=0`` leaves latencies out."""

    recipe: Recipe
    grids: Sequence[Grid] = PAPER_SWEEPS
    seeds: int = 3
    warmups: int = 50
    timed: int = 300
    latency_batch: int = 64
    quality_images: int = 0  # for MoRF, LeRF and boxes
    points: list[Point] = field(init=False)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        object.__setattr__(self, "recipe", completed(self.recipe))
        points: list[Point] = []
        for grid in self.grids:
            for values in itertools.product(*grid.values()):
                point = dict(zip(grid, values, strict=True))
                if point not in points:
                    points.append(point)
        if not points:
            raise ValueError("the grid has no point")
        object.__setattr__(self, "points", points)
        for point in points:
            recipe = vary(self.recipe, point)
            recipe.check()
            try:
                with torch.device("meta"):
                    build_model(recipe, classes=2)
            except TypeError as error:
                raise ValueError(f"{point_name(point)}: {error}") from error


def vary(recipe: Recipe, point: Point) -> Recipe:
    """The recipe at a point: each name is a field of the recipe, an argument of the model or of its attention."""
    known = {f.name for f in fields(Recipe)} - {"seed"}
    changes: dict[str, Any] = {}
    options = dict(recipe.model_options)
    arguments = InfViT.__init__.__code__.co_varnames[1 : InfViT.__init__.__code__.co_argcount]
    own = {option for name in ATTENTIONS for option in attention_options(name)}
    for word, value in point.items():
        name = SHORT.get(word, word)
        if name in known:
            changes[name] = value
        elif name in arguments:
            options[name] = value
        elif name in own:
            options["attention_options"] = {**options.get("attention_options", {}), name: value}
        else:
            raise ValueError(
                f"{word!r} is neither a field of the recipe (other than seed) nor an argument of the model or attention"
            )
    return replace(recipe.override(changes), model_options=options)


def point_name(point: Point) -> str:
    """A point as a folder name."""
    return ",".join(f"{name}={value}" for name, value in point.items()).replace("/", "-")


def epochs_to_convergence(history: Sequence[dict[str, Any]], within: float = CONVERGED) -> float:
    """The first validated epoch whose accuracy lies within half a point of the last one's."""
    final = history[-1]["top1"]
    return next(row["epoch"] for row in history if abs(row["top1"] - final) <= within + 1e-12)


def run_study(study: Study, out: str | Path, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Train every point with every seed, measure latencies, and write ``ablation.json``; finished runs are kept.

    Args:
        study: what to run.
        out: folder; a run is ``OUT/POINT/seed-N``.
        tell: receives a line before and after each run.
    """
    out, rows = Path(out), []
    main = int(os.environ.get("RANK", "0")) == 0
    seeds = range(study.recipe.seed, study.recipe.seed + study.seeds)
    _check_data(study)
    for point in study.points:
        name = point_name(point)
        runs = [_run(study, point, seed, out / name / f"seed-{seed}", tell) for seed in seeds]
        if any(run is None for run in runs):
            tell("stopped; the same command continues from here")
            return {}
        values = [_numbers(run) for run in runs if run is not None]
        if study.quality_images and main:
            tell(f"{name}: measuring the maps")
            for seed, numbers in zip(seeds, values, strict=True):
                folder = out / name / f"seed-{seed}"
                settings = {"images": study.quality_images}
                numbers |= _kept(folder / "quality.json", settings, partial(_quality, study, point, folder))
        row = {"point": point, "seeds": values, **summarise(values)}
        if study.timed and main:
            settings = {"batch": study.latency_batch, "warmups": study.warmups, "timed": study.timed}
            row["latency"] = _kept(out / name / "latency.json", settings, partial(_latency, study, point, runs))
        rows.append(row)
    summary = {
        "recipe": study.recipe.as_dict(),
        "seeds": study.seeds,
        "rows": rows,
        "made_with": runs[0]["made_with"] if runs[0] else provenance(),
    }
    if main:
        write_json(summary, out / "ablation.json")
    return summary


def _check_data(study: Study) -> None:
    """Refuse, before anything is trained, a point whose data cannot be opened or whose batches do not fit."""
    opened: dict[str, int] = {}
    for point in study.points:
        recipe = vary(study.recipe, point)
        key = str((recipe.data, recipe.val_data, recipe.data_options, recipe.image_size))
        if key not in opened:
            opened[key] = len(open_splits(recipe)[0])
        options = machine_options(recipe)
        recipe.check_batches(opened[key], options["devices"] * options["num_nodes"])


def _run(study: Study, point: Point, seed: int, folder: Path, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """The result of one run, trained now or before; None if it was stopped by a signal."""
    recipe = with_val_share(replace(vary(study.recipe, point), seed=seed))
    if (folder / "result.json").exists():
        result = read_json(folder / "result.json")
        check_same_run(recipe, result["recipe"])
        return result
    resume = bool(list_checkpoints(folder / "checkpoints"))
    tell(f"{point_name(point)}, seed {seed}: {'continuing' if resume else 'training'}")
    run = train(recipe, folder, resume=resume)
    for note in run.notes:
        tell(note)
    if run.stopped:
        return None
    if not run.main:
        return read_json(folder / "result.json")
    tell(f"{point_name(point)}, seed {seed}: top-1 {run.result['top1']:.2%} after {run.result['seconds']:.0f} s")
    return run.result


def _numbers(result: dict[str, Any]) -> dict[str, float]:
    return {
        "top1": result["top1"],
        "top5": result["top5"],
        "val_loss": result["val_loss"],
        "epochs_to_convergence": epochs_to_convergence(result["history"]),
        "seconds": result["seconds"],
    }


def _latency(study: Study, point: Point, runs: Iterable[dict[str, Any] | None]) -> dict[str, float]:
    first = next(run for run in runs if run is not None)
    recipe = vary(study.recipe, point)
    return measure_latency(recipe, len(first["classes"]), study.latency_batch, study.warmups, study.timed)


def _quality(study: Study, point: Point, folder: Path) -> dict[str, float]:
    """MoRF, LeRF and boxes of a finished run; nothing for a mechanism without a map."""
    subject = Subject(name="model", group="model", source=str(folder / "model"))
    try:
        subject.load().attention_maps(torch.zeros(1, 3, study.recipe.image_size, study.recipe.image_size))
    except ValueError:
        return {}
    recipe = vary(study.recipe, point)
    data = {"model": (recipe.data, open_splits(recipe)[1])}
    found = study_quality(
        [subject], data, [Removal()], Boxes(), out=folder / "quality", images=study.quality_images,
        device=measuring_device(recipe),
    )["runs"]["model"]  # fmt: skip
    numbers = {}
    removal = found["removal"]["mean"]
    if last := removal["methods"].get("last"):  # some image was classified well enough
        numbers["morf_aoc"] = last["aoc"]["mean"]
        numbers["morf_aoc_random"] = removal["random"]["aoc"]["mean"]
        numbers["lerf_auc"] = last["lerf_auc"]["mean"]
    if boxes := found["boxes"]["rules"].get("centre", {}).get("methods", {}).get("last"):  # the data has boxes
        numbers["roc_auc"], numbers["average_precision"] = boxes["roc"]["mean"], boxes["ap"]["mean"]
    return numbers


def _kept(path: Path, settings: dict[str, Any], compute: Callable[[], dict[str, float]]) -> dict[str, float]:
    """A small result that is computed once for its settings and kept beside the runs."""
    if not path.exists() or read_json(path)["settings"] != settings:
        write_json({"settings": settings, "found": compute()}, path)
    return read_json(path)["found"]


def summarise(values: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and sample deviation over the seeds, of every number that all of them have."""
    names = [name for name in values[0] if all(name in row for row in values)]
    columns = {name: [row[name] for row in values] for name in names}
    return {
        "mean": {name: statistics.fmean(column) for name, column in columns.items()},
        "deviation": {name: statistics.stdev(column) if len(column) > 1 else 0.0 for name, column in columns.items()},
    }
