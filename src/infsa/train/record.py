"""What happens between steps: the log, validation, checkpoints, and a clean stop on a signal."""

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.tensorboard import SummaryWriter

from ..data.loading import STOP_SIGNALS
from ..data.tasks import Tasks
from ..evaluate.accuracy import measure_accuracy
from ..files import write_atomically
from ..models import save_weights
from .checkpoint import write_checkpoint
from .feed import Feed
from .module import Classifier
from .product import trained_model
from .state import WeightAverage, gather_state, restore_state, whole

Watcher = Callable[[dict[str, Any]], None]
INTERRUPTED = 130  # exit code after Ctrl-C
TICK = 0.2  # seconds between two words to the watcher


class Record(L.Callback):
    """Logs, validates and saves a run, and stops it cleanly.

    Args:
        out: the run's folder.
        feed: for validation.
        tasks: what is asked about an image, with the names of the classes in the order of the outputs.
        total: optimiser steps of the whole run.
        saved: tensors and facts of the checkpoint to continue from.
        watch: called on rank 0 with every line of the log, after a first one that gives the total of steps, and in
            between with what has been done since.
        facts: further facts for checkpoints.
    """

    def __init__(
        self,
        out: Path,
        feed: Feed,
        tasks: Tasks,
        total: int,
        saved: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None,
        watch: Watcher | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.out, self.feed, self.tasks, self.total = out, feed, tasks, total
        self.saved, self.watch, self.facts = saved, watch, facts or {}
        self.history: list[dict[str, Any]] = []  # one entry per validation
        self.stopped = False  # by a signal
        self.signal: int | None = None  # the one that asked for it
        self.seconds = 0.0  # of earlier processes of this run
        self._told = 0.0  # when the watcher last heard of a step
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

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Give the signals back after an error too."""
        self.on_train_end(trainer, pl_module)

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT == self.signal:  # a second Ctrl-C
            raise SystemExit(INTERRUPTED)
        self.signal = number
        if self.watch is not None:
            self.watch({"kind": "stopping", "signal": number})
        if self._launcher is not None and number != signal.SIGINT:  # which the terminal sends to all
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
        self._tick({"kind": "step", "step": module.step, "epoch": module.epoch})
        recipe, per_epoch = module.recipe, module.steps_per_epoch
        ended = module.step % per_epoch == 0
        if module.step % recipe.log_every == 0 or module.step == self.total or ended:
            self._log_training(trainer, module)
        validated = ended and (module.step // per_epoch % recipe.val_every == 0 or module.step == self.total)
        if validated:
            self._validate(trainer, module)
        due = module.step % (recipe.save_every or per_epoch) == 0 or module.step == self.total
        signalled = trainer.strategy.reduce_boolean_decision(self.signal is not None, all=False)
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
            shared: dict[str, Any] = {"rounds": self.feed.rounds, "blank": self.feed.blank, "tasks": self.tasks}
            batches = self._counted(self.feed.val)
            found = measure_accuracy(module.model, batches, self.tasks.names, module.device, **shared)
        row = {
            "step": module.step,
            "epoch": module.epoch,
            "top1": found.top1,
            "top5": found.top5,
            "val_loss": found.loss,
            **({"tasks": found.tasks} if found.tasks else {}),
        }
        self.history.append(row)
        self._write(trainer, "val", row)
        if best_of(self.history) is row:
            self._save_best(trainer, module)
        self._logged = time.perf_counter()  # validation is not training time

    def _counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for done, batch in enumerate(batches, start=1):
            yield batch
            self._tick({"kind": "validating", "done": done, "total": self.feed.rounds})

    def _tick(self, row: dict[str, Any]) -> None:
        """Tell the watcher what was done, a few times a second."""
        now = time.perf_counter()
        if self.watch is not None and now - self._told > TICK:
            self._told = now
            self.watch(row)

    def _save_best(self, trainer: L.Trainer, module: Classifier) -> None:
        """Write the model as ``checkpoints/best``; every rank must call it."""
        tensors = {f"model.{name}": whole(value) for name, value in module.model.state_dict().items()}
        if module.average is not None:
            tensors |= {f"average.{name}": whole(value) for name, value in module.average.values.items()}
        if trainer.is_global_zero:
            cpu = {name: value.cpu() for name, value in tensors.items()}
            save_weights(trained_model(module.recipe, self.tasks, cpu), self.out / "checkpoints" / "best")
        trainer.strategy.barrier()

    def _write(self, trainer: L.Trainer, kind: str, row: dict[str, Any]) -> None:
        if not trainer.is_global_zero:
            return
        with open(self.out / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps({"kind": kind, **row}) + "\n")
        assert self._writer is not None
        further = {f"{task}_{name}": share for task, own in row.get("tasks", {}).items() for name, share in own.items()}
        for name, value in (row | further).items():
            if name not in ("step", "tasks"):
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
                **self.facts,
            }
            write_checkpoint(self.out / "checkpoints", module.step, tensors, facts, module.recipe.keep)
        trainer.strategy.barrier()

    def pause(self, seconds: float) -> None:
        """Leave seconds out of the speed in the next line of the log."""
        self._logged += seconds

    def elapsed(self) -> float:
        """Seconds of this run so far, over all its processes."""
        return self.seconds + time.perf_counter() - self._began


@contextlib.contextmanager
def evaluating(trainer: L.Trainer, module: Classifier) -> Iterator[None]:
    """The averaged weights if there are any, evaluation mode, and the run's precision."""
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


def best_of(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The validation with the highest accuracy, the first of equals."""
    return max(history, key=lambda row: row["top1"])


def _classifier(module: L.LightningModule) -> Classifier:
    assert isinstance(module, Classifier)
    return module


def _cut_log(log: Path, step: int) -> None:
    """Drop the lines that a killed process wrote after its last checkpoint."""
    if log.exists():
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        write_atomically(log, lambda aside: aside.write_text("".join(kept), encoding="utf-8"))
