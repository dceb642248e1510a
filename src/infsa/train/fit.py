"""From a recipe to a trained, validated, exported model."""

import atexit
import contextlib
import gc
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from ..data import SkipLog
from ..data.order import Order
from ..files import write_json
from ..models import save_weights
from ..models.weights import describe_data
from ..provenance import provenance
from .checkpoint import list_checkpoints, newest_checkpoint
from .facts import training_facts
from .feed import Feed, open_splits, skip_log
from .init import completed
from .module import Classifier, build_model
from .recipe import Recipe
from .record import Record, Watcher

# What may change when a run goes on: where it runs and what it records, not what it computes
FREE = {
    "accelerator", "devices", "nodes", "strategy", "compile", "workers", "save_every", "keep", "log_every",
    "accumulate", "grad_checkpointing",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a training run left behind.

    Example:
        >>> run = train(RECIPES["tiny"], "runs/tiny")
        >>> run.result["top1"]
    """

    out: Path
    result: dict[str, Any]  # empty if the run was stopped, and in processes that do not write
    stopped: bool  # by a signal, before its end
    notes: list[str]  # what the user should know: damaged checkpoints, skipped images
    main: bool  # the process that writes


def train(recipe: Recipe, out: str | Path, resume: bool = False, watch: Watcher | None = None) -> Run:
    """Train a recipe in a folder; with ``resume``, go on at the step of the newest whole checkpoint.

    The folder receives ``recipe.json``, ``log.jsonl``, ``tensorboard/``, ``checkpoints/``, ``result.json`` and the
    model as ``model/`` (safetensors; ``infsa.create_model(name, pretrained="OUT/model")`` loads it).

    Example:
        >>> train(RECIPES["tiny"].override({"data": "folder:photos", "epochs": 100}), "runs/photos")
    """
    out = Path(out)
    recipe = completed(recipe, out if resume else None)
    recipe.check()
    notes: list[str] = []
    saved = None
    if resume and (out / "recipe.json").exists() and not list_checkpoints(out / "checkpoints"):
        notes.append("there is no checkpoint yet: starting at step 0")
    elif resume:
        path, tensors, facts, damage = newest_checkpoint(out / "checkpoints")
        check_same_run(recipe, facts["recipe"])
        notes += [f"{line}; going on from {path.name}" for line in damage]
        saved = tensors, facts
    elif list_checkpoints(out / "checkpoints"):
        raise ValueError(f"{out} already holds a run: resume it, or choose another folder")
    train_set, val_set = open_splits(recipe, out)
    options = machine_options(recipe)
    recipe.check_batches(len(train_set), options["devices"] * options["num_nodes"])
    per_epoch = len(train_set) // recipe.batch_size
    start, total = saved[1]["step"] if saved else 0, recipe.epochs * per_epoch
    try:
        module = Classifier(recipe, train_set.classes, per_epoch, fresh=saved is None)
    except TypeError as error:
        raise ValueError(f"model_options do not fit {recipe.model}: {error}") from error

    with quiet_lightning():
        trainer = L.Trainer(**options)
        place = trainer.global_rank, trainer.world_size
        order = Order(len(train_set), recipe.batch_size, recipe.seed, recipe.accumulate, *place)
        if trainer.is_global_zero:
            write_json(recipe.as_dict(), out / "recipe.json")
        feed = Feed(recipe, train_set, val_set, module.model, order, trainer.strategy.root_device)
        record = Record(out, feed, train_set.classes, total, saved, watch)
        trainer.callbacks.append(record)  # type: ignore[attr-defined]  # the folder and the rank come with the trainer
        if watch is not None and trainer.is_global_zero:
            for line in module.notes:
                watch({"kind": "note", "text": line})
        if start < total:
            trainer.fit(module, feed.training(start, total))
    for split in ("train", "val"):
        skips = SkipLog.read(skip_log(out, split))
        notes += [f"{split}: {skips}"] if len(skips) else []
    result = {}
    if trainer.is_global_zero and not record.stopped:
        sizes = len(train_set), len(val_set)
        result = export(recipe, out, train_set.classes, trainer.strategy.root_device, sizes)
    trainer.strategy.barrier()  # the others may read what was exported
    atexit.register(leave)
    return Run(out, result, record.stopped, notes, trainer.is_global_zero)


def leave() -> None:
    """End the process group while Python still runs: a thread that lets go of its last message later would abort.

    Example:
        >>> atexit.register(leave)
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()  # what holds the group keeps its threads
        dist.destroy_process_group()


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keep Lightning's advice off the screen: what matters here is in the log and in one-line errors.

    Example:
        >>> with quiet_lightning(): trainer.fit(module, stream)
    """
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_same_run(recipe: Recipe, saved: dict[str, Any]) -> None:
    """Refuse to go on with a recipe that computes something else.

    Example:
        >>> check_same_run(recipe, facts["recipe"])
    """
    for name, value in recipe.as_dict().items():
        if name not in FREE and saved.get(name, value) != value:
            raise ValueError(f"the run was started with {name}={saved[name]!r}, got {value!r}")


def machine_options(recipe: Recipe) -> dict[str, Any]:
    """Arguments of Lightning's Trainer; under torchrun the launcher decides the number of processes.

    Example:
        >>> trainer = L.Trainer(**machine_options(RECIPES["tiny"]))
    """
    devices, nodes = recipe.devices, recipe.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    accelerator = recipe.accelerator
    if accelerator == "auto":
        accelerator = "gpu" if torch.cuda.is_available() else "cpu"  # MPS has to be asked for
    if accelerator == "gpu" and torch.cuda.device_count() < devices:
        raise ValueError(f"devices must be at most the {torch.cuda.device_count()} GPUs of this machine, got {devices}")
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise ValueError("accelerator='mps' is not available on this machine")
    if accelerator != "gpu" and recipe.precision == "16-mixed":
        raise ValueError(f"precision '16-mixed' needs a GPU; on the {accelerator} use '32-true' or 'bf16-mixed'")
    strategy: Any = "auto"
    world = devices * nodes
    if recipe.strategy == "fsdp":
        strategy = ModelParallelStrategy(world, 1, save_distributed_checkpoint=False)
    elif recipe.strategy == "ddp" or world > 1:
        strategy = DDPStrategy(gradient_as_bucket_view=True)
    slurm = SLURMEnvironment.detect()
    return {
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": nodes,
        "strategy": strategy,
        "precision": recipe.precision,
        "accumulate_grad_batches": recipe.accumulate,
        "plugins": [SLURMEnvironment(auto_requeue=False)] if slurm else None,
        "max_epochs": 1,  # the stream of batches runs through all epochs of the recipe
        "limit_val_batches": 0,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def export(
    recipe: Recipe, out: Path, classes: list[str], device: torch.device, images: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Write the model and the result of a finished run from its last checkpoint; ``images`` are for the model card.

    Example:
        >>> result = export(recipe, Path("runs/tiny"), classes, torch.device("cpu"))
    """
    _, tensors, facts, _ = newest_checkpoint(out / "checkpoints")
    model = build_model(recipe, len(classes), fresh=False)
    state = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    state |= {name.removeprefix("average."): value for name, value in tensors.items() if name.startswith("average.")}
    model.load_state_dict(state)
    describe_data(
        model, label_names=classes, crop_pct=recipe.size / recipe.val_resize, interpolation=recipe.interpolation
    )
    save_weights(model, out / "model", training_facts(recipe, facts["history"], len(classes), images))
    result = {
        **{name: facts["history"][-1][name] for name in ("top1", "top5", "val_loss")},
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": facts["seconds"],
        "classes": classes,
        "history": facts["history"],
        "recipe": recipe.as_dict(),
        "made_with": provenance(device),
    }
    write_json(result, out / "result.json")
    return result
