"""What happens between steps: the log, validation, checkpoints, and a clean stop on a signal."""

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.tensorboard import SummaryWriter

from ..data.loading import STOP_SIGNALS
from ..evaluate.accuracy import measure_accuracy
from ..files import write_atomically
from .checkpoint import write_checkpoint
from .feed import Feed
from .module import Classifier
from .state import WeightAverage, gather_state, restore_state

Watcher = Callable[[dict[str, Any]], None]


class Record(L.Callback):
    """Logs, validates and saves a run, and stops it cleanly.

    Args:
        out: the run's folder.
        feed: for validation.
        classes: names, in the order of the labels.
        total: optimiser steps of the whole run.
        saved: tensors and facts of the checkpoint to go on from.
        watch: called with every line of the log on rank 0, after a first one that gives the total of steps.

    Example:
        >>> trainer = L.Trainer(callbacks=[Record(out, feed, classes, total=1000)])
    """

    def __init__(
        self,
        out: Path,
        feed: Feed,
        classes: list[str],
        total: int,
        saved: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self.out, self.feed, self.classes, self.total = out, feed, classes, total
        self.saved, self.watch = saved, watch
        self.history: list[dict[str, Any]] = []  # one entry per validation
        self.stopped = False  # by a signal
        self.seconds = 0.0  # of earlier processes of this run
        self._signalled = False
        self._handlers: dict[int, Any] = {}
        self._loss, self._losses = torch.zeros(()), 0
        self._writer: SummaryWriter | None = None

    # Beginning and end

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the state, open the logs and watch for signals."""
        module = _classifier(pl_module)
        if module.recipe.ema:
            module.average = WeightAverage(module.model, module.recipe.ema)
        if self.saved is not None:
            tensors, facts = self.saved
            restore_state(module.model, trainer.optimizers[0], module.average, tensors, facts)
            trainer.precision_plugin.load_state_dict(facts["precision"])
            module.step, self.history, self.seconds = facts["step"], facts["history"], facts["seconds"]
            self._loss, self._losses = torch.tensor(facts["loss"]), facts["losses"]
            self.saved = None
        if trainer.is_global_zero:
            _cut_log(self.out / "log.jsonl", module.step)
            self._writer = SummaryWriter(str(self.out / "tensorboard"), purge_step=module.step + 1)
            if self.watch is not None:
                self.watch({"kind": "start", "step": module.step, "total": self.total})
        self._loss = self._loss.to(module.device)
        self._began = self._logged = time.perf_counter()
        self._logged_step = module.step
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
            self._launcher = trainer.strategy.launcher

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the logs and give the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._writer is not None:
            self._writer.close()

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signalled = True
        if self._launcher is not None:
            with contextlib.suppress(AttributeError, ProcessLookupError):
                self._launcher.kill(signal.Signals(number))  # processes that this one started

    # Steps

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a whole step: log, validate, save or stop, as it is due."""
        module = _classifier(pl_module)
        assert module.last_loss is not None
        self._loss += module.last_loss
        self._losses += 1
        if not module.count():
            return
        recipe, per_epoch = module.recipe, module.steps_per_epoch
        ended = module.step % per_epoch == 0
        if module.step % recipe.log_every == 0 or module.step == self.total or ended:
            self._log_training(trainer, module)
        validated = ended and (module.step // per_epoch % recipe.val_every == 0 or module.step == self.total)
        if validated:
            self._validate(trainer, module)
        due = module.step % (recipe.save_every or per_epoch) == 0 or module.step == self.total
        signalled = trainer.strategy.reduce_boolean_decision(self._signalled, all=False)
        if due or signalled:
            self.save(trainer, module)
        if signalled and module.step < self.total:
            self.stopped = trainer.should_stop = True

    def _log_training(self, trainer: L.Trainer, module: Classifier) -> None:
        loss = float(trainer.strategy.reduce(self._loss / self._losses, reduce_op="mean"))
        now = time.perf_counter()
        steps = module.step - self._logged_step
        row = {
            "step": module.step,
            "epoch": module.epoch,
            "loss": loss,
            "lr": module.recipe.learning_rate(module.step - 1, module.steps_per_epoch),
            "images_per_s": steps * module.recipe.batch_size / (now - self._logged),
        }
        self._loss.zero_()
        self._losses, self._logged, self._logged_step = 0, now, module.step
        self._write(trainer, "train", row)
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} at step {module.step}; a lower lr or a clip_norm may help")

    def _validate(self, trainer: L.Trainer, module: Classifier) -> None:
        with evaluating(trainer, module):
            feed = self.feed
            found = measure_accuracy(
                module.model, feed.val, self.classes, module.device, rounds=feed.rounds, blank=feed.blank
            )
        row = {
            "step": module.step,
            "epoch": module.epoch,
            "top1": found.top1,
            "top5": found.top5,
            "val_loss": found.loss,
        }
        self.history.append(row)
        self._write(trainer, "val", row)
        self._logged = time.perf_counter()  # validation is not training time

    def _write(self, trainer: L.Trainer, kind: str, row: dict[str, Any]) -> None:
        if not trainer.is_global_zero:
            return
        with open(self.out / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps({"kind": kind, **row}) + "\n")
        assert self._writer is not None
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(f"{kind}/{name}", value, row["step"])
        if self.watch is not None:
            self.watch({"kind": kind, **row})

    def save(self, trainer: L.Trainer, module: Classifier) -> None:
        """Write a checkpoint; every rank must call it."""
        tensors, facts = gather_state(module.model, trainer.optimizers[0], module.average)
        loss = float(trainer.strategy.reduce(self._loss, reduce_op="mean"))
        if trainer.is_global_zero:
            facts |= {
                "step": module.step,
                "history": self.history,
                "precision": trainer.precision_plugin.state_dict(),
                "seconds": self.elapsed(),
                "loss": loss,  # since the last line of the log
                "losses": self._losses,
                "recipe": module.recipe.as_dict(),
            }
            write_checkpoint(self.out / "checkpoints", module.step, tensors, facts, module.recipe.keep)
        trainer.strategy.barrier()

    def elapsed(self) -> float:
        """Seconds of this run so far, over all its processes."""
        return self.seconds + time.perf_counter() - self._began


@contextlib.contextmanager
def evaluating(trainer: L.Trainer, module: Classifier) -> Iterator[None]:
    """The averaged weights if there are any, evaluation mode, and the run's precision.

    Example:
        >>> with evaluating(trainer, module): measure_accuracy(...)
    """
    if module.average is not None:
        module.average.exchange(module.model)
    module.model.eval()
    try:
        with trainer.precision_plugin.forward_context(), torch.no_grad():
            yield
    finally:
        module.model.train()
        if module.average is not None:
            module.average.exchange(module.model)


def _classifier(module: L.LightningModule) -> Classifier:
    assert isinstance(module, Classifier)
    return module


def _cut_log(log: Path, step: int) -> None:
    """Drop the lines that a killed process wrote after its last checkpoint."""
    if log.exists():
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        write_atomically(log, lambda aside: aside.write_text("".join(whole), encoding="utf-8"))
