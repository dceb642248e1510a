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

from ..data import Part, SkipLog
from ..data.order import Order
from ..data.parts import fingerprint
from ..data.tasks import Tasks, tasks_of
from ..evaluate.held_out import HELD_OUT_FILE
from ..files import write_json
from ..models import save_weights
from ..provenance import provenance
from .checkpoint import list_checkpoints, newest_checkpoint
from .facts import training_facts
from .feed import Feed, notes_on_data, open_splits, skip_log, with_val_share
from .fitting import fitted_batch
from .init import completed
from .module import Classifier
from .product import trained_model
from .recipe import Recipe
from .record import Record, Watcher, best_of
from .regions import Regions
from .resume import on_same_data, saved_state, tell_longer

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # who this is, before there is a trainer to ask


@dataclass(frozen=True)
class Run:
    """What a training run left behind."""

    out: Path
    result: dict[str, Any]  # empty if the run was stopped, and in processes that do not write
    stopped: bool  # by a signal, before its end
    notes: list[str]  # what the user should know: damaged checkpoints, skipped images
    main: bool  # the process that writes
    signal: int | None = None  # the one that stopped it


def train(
    recipe: Recipe,
    out: str | Path,
    resume: bool = False,
    watch: Watcher | None = None,
    *,
    accept_new_data: bool = False,
    fit_batch: bool = False,
) -> Run:
    """Train a recipe in a folder; with ``resume``, continue at the step of the newest complete checkpoint.

    The folder receives ``recipe.json``, ``log.jsonl``, ``tensorboard/``, ``checkpoints/`` with the best model so far in
    ``best/``, ``result.json`` and the model as ``model/`` (safetensors; ``infsa.create_model(name,
    pretrained="OUT/model")`` loads it). A resumed run may have more epochs than before: the schedule then is that of a
    run of so many epochs.

    Args:
        recipe: what to train.
        out: the folder.
        resume: continue with the run in the folder.
        watch: called with every line of the log, with what happens in between, and with notes.
        accept_new_data: continue although the images have changed.
        fit_batch: lower the batch size if it is more than the images or cannot be split over the processes.
    """
    out, notes = Path(out), list[str]()
    recipe = with_val_share(completed(recipe, out if resume else None))
    recipe.check()
    main = int(next((os.environ[name] for name in RANKS if name in os.environ), "0")) == 0

    def tell(text: str) -> None:
        notes.append(text)
        if watch is not None and main:
            watch({"kind": "note", "text": text})

    saved = saved_state(recipe, out, tell) if resume else None
    if not resume and list_checkpoints(out / "checkpoints"):
        raise ValueError(f"{out} already holds a run: resume it (--resume), or choose another folder")
    train_set, val_set = open_splits(recipe, out)
    for note in notes_on_data(train_set, val_set, recipe):
        tell(note)
    options = machine_options(recipe)
    world = options["devices"] * options["num_nodes"]
    if fit_batch:
        recipe, changed = fitted_batch(recipe, len(train_set), world)
        for note in changed:
            tell(note)
    recipe.check_batches(len(train_set), world)
    per_epoch = len(train_set) // recipe.batch_size
    tasks = tasks_of(train_set)
    data = {"train": fingerprint(train_set), "val": fingerprint(val_set)}
    if saved is not None:
        saved = on_same_data(saved, data, per_epoch, out, accept_new_data, recipe.keep, tell)
        tell_longer(recipe, saved[1], per_epoch, tell)
    start, total = saved[1]["step"] if saved else 0, recipe.epochs * per_epoch
    try:
        module = Classifier(recipe, train_set.classes, per_epoch, fresh=saved is None, tasks=tasks)
    except TypeError as error:
        raise ValueError(f"model_options do not fit {recipe.model}: {error}") from error
    for note in module.notes:
        tell(note)

    with quiet_lightning():
        trainer = L.Trainer(**options)
        place = trainer.global_rank, trainer.world_size
        order = Order(len(train_set), recipe.batch_size, recipe.seed, recipe.accumulate, *place)
        if trainer.is_global_zero:
            write_json(recipe.as_dict(), out / "recipe.json")
            if recipe.val_share and isinstance(val_set, Part):
                write_json(held_out_record(recipe, val_set), out / HELD_OUT_FILE)
        told = watch if trainer.is_global_zero else None
        feed = Feed(recipe, train_set, val_set, module.model, order, trainer.strategy.root_device, told)
        record = Record(out, feed, tasks, total, saved, told, {"data": data, "per_epoch": per_epoch})
        saved = None  # the record alone holds it, and lets go of it
        regions = Regions(recipe, total, tell, record.pause)
        trainer.callbacks += [regions, record]  # type: ignore[attr-defined]  # the folder and the rank come with the trainer
        if start < total:
            trainer.fit(module, feed.training(start, total))
    for split in ("train", "val"):
        skips = SkipLog.read(skip_log(out, split))
        if len(skips):
            tell(f"{split}: {skips}")
    result = {}
    if trainer.is_global_zero and not record.stopped:
        sizes = len(train_set), len(val_set)
        result = export(recipe, out, tasks, trainer.strategy.root_device, sizes)
    trainer.strategy.barrier()  # the others may read what was exported
    atexit.register(leave)
    return Run(out, result, record.stopped, notes, trainer.is_global_zero, record.signal)


def held_out_record(recipe: Recipe, val_set: Part) -> dict[str, Any]:
    """Which images a run keeps from training, as plain data."""
    names = [val_set.name(index) for index in range(len(val_set))]
    place = str(Path(recipe.data.partition(":")[2]).resolve())  # the same, read from another folder
    return {"data": recipe.data, "place": place, "share": recipe.val_share, "seed": recipe.seed, "images": names}


def leave() -> None:
    """End the process group while Python still runs: a thread that lets go of its last message later would abort."""
    if dist.is_available() and dist.is_initialized():
        gc.collect()  # what holds the group keeps its threads
        dist.destroy_process_group()


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keep Lightning's advice off the screen: what matters here is in the log and in one-line errors."""
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


def machine_options(recipe: Recipe) -> dict[str, Any]:
    """Arguments of Lightning's Trainer; under torchrun the launcher decides the number of processes."""
    devices, nodes = recipe.devices, recipe.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    device: str = recipe.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"  # MPS has to be asked for
    if device == "cuda" and torch.cuda.device_count() < devices:
        found = torch.cuda.device_count()
        raise ValueError(f"device='cuda' with devices={devices} needs {devices} GPUs, this machine has {found}")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps' is not available on this machine")
    if device != "cuda" and recipe.precision == "16-mixed":
        raise ValueError(f"precision '16-mixed' needs a GPU; on {device} use '32-true' or 'bf16-mixed'")
    strategy: Any = "auto"
    world = devices * nodes
    if recipe.strategy == "fsdp":
        strategy = ModelParallelStrategy(world, 1, save_distributed_checkpoint=False)
    elif recipe.strategy == "ddp" or world > 1:
        strategy = DDPStrategy(gradient_as_bucket_view=True)
    slurm = SLURMEnvironment.detect()
    return {
        "accelerator": device,
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
    recipe: Recipe, out: Path, tasks: Tasks, device: torch.device, images: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Write the model and the result of a finished run from its last checkpoint; ``images`` are for the model card."""
    _, tensors, facts, _ = newest_checkpoint(out / "checkpoints")
    model, last = trained_model(recipe, tasks, tensors), facts["history"][-1]
    save_weights(model, out / "model", training_facts(recipe, facts["history"], tasks.outputs, images))
    result = {
        **{name: last[name] for name in ("top1", "top5", "val_loss", "tasks") if name in last},
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": facts["seconds"],
        "classes": tasks.names,
        "best": {name: best_of(facts["history"])[name] for name in ("epoch", "top1")},
        "history": facts["history"],
        "recipe": recipe.as_dict(),
        "made_with": provenance(device),
    }
    write_json(result, out / "result.json")
    return result
