"""Win back what conversion cost: match the original's layers, then its logits, then labels if there are any.

Of a model without a classifier, the features take the place of the logits.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.nn import functional as F

from ..conversion import converted_layers
from ..data import SkipLog
from ..data.mixing import mix_pairs
from ..data.order import Order
from ..files import write_json
from ..provenance import provenance
from .adaptation import STAGES, Adaptation, open_images
from .checkpoint import list_checkpoints, newest_checkpoint, write_checkpoint
from .distill import class_logits, layer_loss, logit_loss, recorded_calls, relative_error
from .feed import Feed, skip_log
from .module import STEP_SEED, smoothed
from .recipe import current
from .state import gather_state, restore_state

Watcher = Callable[[dict[str, Any]], None]
FREE = {"workers", "save_every", "log_every"}  # may change when a run continues


class Adapter:
    """One run of :func:`adapt`: the two models, the data, and the step that it has reached."""

    def __init__(
        self,
        original: nn.Module,
        converted: nn.Module,
        plan: Adaptation,
        out: Path,
        watch: Watcher | None = None,
        fit_batch: bool = False,
    ) -> None:
        self.original, self.converted, self.out, self.watch = original, converted, out, watch
        self.layers = converted_layers(converted)
        if not self.layers:
            raise ValueError(f"no layer of this {type(converted).__name__} was converted")
        if not all(any(p.requires_grad for p in layer.parameters()) for layer in self.layers.values()):
            raise ValueError("the converted layers have no parameters to train: requires_grad is False")
        self.settings = {name: layer.infsa_settings.as_dict() for name, layer in self.layers.items()}  # type: ignore
        self.train_set, val_set, self.labelled = open_images(plan, out)
        if plan.label_epochs and not self.labelled:
            raise ValueError(f"label_epochs={plan.label_epochs} needs labels, and {plan.data} has none")
        self.device = next(converted.parameters()).device
        self.classes = len(self.train_set.classes)
        self.headless = getattr(original, "num_classes", None) == 0
        if fit_batch:
            plan = plan.with_batch_for(len(self.train_set))
        self.plan = plan
        self.order = Order(len(self.train_set), plan.batch_size, plan.seed)
        self.feed = Feed(plan.recipe("logits"), self.train_set, val_set, original, self.order, self.device)
        self.history: list[dict[str, Any]] = []  # one entry per stage
        self.wanted: Tensor | None = None  # the original's answers to the validation images
        self.seconds = 0.0
        self.step = 0
        original.eval()

    @property
    def starts(self) -> list[int]:
        """The first step of each stage, and the end."""
        ends = [0]
        for stage in STAGES:
            ends.append(ends[-1] + self.plan.epochs(stage) * self.order.steps_per_epoch)
        return ends

    def run(self, resume: bool = False) -> dict[str, Any]:
        """Go through the stages, from the newest checkpoint if asked, and write the result."""
        saved = self._saved() if resume and list_checkpoints(self.out / "checkpoints") else None
        if saved is None:
            if list_checkpoints(self.out / "checkpoints"):
                raise ValueError(f"{self.out} already holds a run: resume it (--resume), or choose another folder")
            self._measure("original", self.original)
            self._measure("converted", self.converted)
        else:
            self.step, self.history, self.seconds = (saved[1][name] for name in ("step", "history", "seconds"))
        for stage, start, end in zip(STAGES, self.starts, self.starts[1:], strict=False):
            if start <= self.step < end:
                self._timed(lambda stage=stage, end=end, saved=saved: self._train(stage, end, saved))  # type: ignore[misc]
                self._measure(stage, self.converted)
                self._save(None)
                saved = None
        if saved is not None:  # the end of a stage
            restore_model(self.converted, saved[0])
        return self._result()

    def _timed(self, work: Callable[[], None]) -> None:
        self._began, before = time.perf_counter(), self.seconds
        work()
        self.seconds = before + time.perf_counter() - self._began

    def _saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        _, tensors, facts, _ = newest_checkpoint(self.out / "checkpoints")
        before = current(facts["plan"])
        for name, value in self.plan.as_dict().items():
            if name not in FREE and before.get(name, value) != value:
                raise ValueError(f"the run was started with {name}={before[name]!r}, got {value!r}")
        if facts["settings"] != self.settings:
            raise ValueError("the run was started with a model that was converted with other settings")
        return tensors, facts

    def _stream(self, start: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.feed.training(start, end):
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _original_calls(self, images: Tensor) -> dict[str, Any]:
        with torch.no_grad(), recorded_calls(self.original, list(self.layers)) as calls, self._precision():
            self.original(images)
        return calls

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.precision == "bf16-mixed")

    def _train(self, stage: str, end: int, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        """Train from this step to the end of the stage."""
        recipe, first = self.plan.recipe(stage), self.starts[STAGES.index(stage)]
        chosen = nn.ModuleList(self.layers.values()) if stage == "layers" else self.converted
        weight_decay = recipe.weight_decay if stage != "layers" else 0.0
        optimizer = create_optimizer_v2(chosen, opt=recipe.optimizer, lr=recipe.lr, weight_decay=weight_decay)
        if saved is not None and self.step > first:
            restore_state(self.converted, optimizer, None, *saved)
        elif saved is not None:
            restore_model(self.converted, saved[0])
        self.converted.train()
        models = (self.converted, self.original)
        if self.plan.compile and stage != "layers":
            models = tuple(torch.compile(model) for model in models)  # type: ignore[assignment]
        for images, labels in self._stream(self.step, end):
            rate = recipe.learning_rate(self.step - first, self.order.steps_per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("lr_scale", 1.0)
            torch.manual_seed((self.plan.seed * STEP_SEED + self.step) % 2**63)
            loss = self._loss(stage, *models, images, labels)
            optimizer.zero_grad()
            loss.backward()
            if self.plan.clip_norm:
                nn.utils.clip_grad_norm_(chosen.parameters(), self.plan.clip_norm)
            optimizer.step()
            self.step += 1
            if self.step % self.plan.log_every == 0 or self.step == end:
                value = float(loss.detach())
                self._tell({"kind": "train", "stage": stage, "step": self.step, "loss": value, "lr": rate})
                if not math.isfinite(value):
                    raise ValueError(f"the loss is {value} at step {self.step}; a lower {stage[:-1]}_lr may help")
            if self.step % self.plan.save_every == 0 and self.step < end:
                self._save(optimizer)

    def _loss(self, stage: str, student: Any, teacher: Any, images: Tensor, labels: Tensor) -> Tensor:
        if stage == "layers":
            calls = self._original_calls(images)
            with self._precision():
                return torch.stack([layer_loss(layer, calls[name]) for name, layer in self.layers.items()]).mean()
        targets = smoothed(labels, self.classes, self.plan.label_smoothing)
        if self.plan.mixup or self.plan.cutmix:
            mix: dict[str, Any] = {"mixup": self.plan.mixup, "cutmix": self.plan.cutmix, "prob": 0.8}
            images, targets = mix_pairs(images, targets, key=(self.plan.seed, self.step), **mix)
        with self._precision():
            if stage == "labels":
                return F.cross_entropy(class_logits(student(images)).float(), targets)
            with torch.no_grad():
                wanted = class_logits(teacher(images))
            given = class_logits(student(images))
            return relative_error(given, wanted) if self.headless else logit_loss(given, wanted, self.plan.temperature)

    def _measure(self, name: str, model: nn.Module) -> None:
        """Agreement with the original on validation images, and accuracy if they have labels.

        Models agree on an image if both take it for the same class; without a classifier, as far as the cosine of their
        features says.
        """
        given, labels = self._answers(model)
        if self.wanted is None:
            self.wanted = given if model is self.original else self._answers(self.original)[0]
        same = F.cosine_similarity(given, self.wanted) if self.headless else (given == self.wanted).double()
        right = (given == labels).double().mean().item() if self.labelled and not self.headless else None
        row: dict[str, Any] = {"stage": name, "step": self.step, "agreement": same.mean().item()}
        row |= {"top1": right, "seconds": self.seconds, "images": len(labels)}
        self.history.append(row)
        self._tell({"kind": "val", **row})

    @torch.no_grad()
    def _answers(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """The class that a model gives each validation image, or its features, and the label."""
        model.eval()
        given, labels = [], []
        for batch in self.feed.val:
            try:
                with self._precision():
                    logits = class_logits(model(batch[0].to(self.device)))
            except AssertionError as error:  # timm's word for images of another size
                raise ValueError(f"image_size={self.plan.image_size} does not fit the model: {error}") from error
            if self.plan.label_epochs and logits.shape[1] != self.classes:
                raise ValueError(f"label_epochs needs a model with {self.classes} classes, got {logits.shape[1]}")
            given.append(logits.double() if self.headless else logits.argmax(-1))
            labels.append(batch[1].to(self.device))
        return torch.cat(given), torch.cat(labels)

    def _save(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Write a checkpoint; between stages there is no optimiser to keep."""
        empty = torch.optim.SGD(self.converted.parameters(), lr=0.0)
        tensors, facts = gather_state(self.converted, optimizer or empty, None)
        seconds = self.seconds + (time.perf_counter() - self._began if optimizer is not None else 0.0)
        facts |= {"step": self.step, "history": self.history, "seconds": seconds}
        facts |= {"plan": self.plan.as_dict(), "settings": self.settings}
        write_checkpoint(self.out / "checkpoints", self.step, tensors, facts, keep=2)

    def _tell(self, row: dict[str, Any]) -> None:
        if self.watch is not None:
            self.watch({**row, "total": self.starts[-1]})

    def _result(self) -> dict[str, Any]:
        self.converted.eval()
        gammas = {name: _gamma(layer) for name, layer in self.layers.items()}
        skips = [SkipLog.read(skip_log(self.out, split)) for split in ("train", "val")]
        result = {
            "history": self.history,
            "seconds": self.seconds,
            "gamma": gammas,
            "settings": self.settings,
            "plan": self.plan.as_dict(),
            "skipped": [name for log in skips for name in log.names],
            "made_with": provenance(self.device),
        }
        write_json(result, self.out / "result.json")
        return result


def adapt(
    original: nn.Module,
    converted: nn.Module,
    plan: Adaptation,
    out: str | Path,
    *,
    resume: bool = False,
    watch: Watcher | None = None,
    fit_batch: bool = False,
) -> dict[str, Any]:
    """Train a converted model, in place, to do what the original does; with ``resume``, from the newest checkpoint.

    First every converted layer learns, on the original's own input, to give the original's output; then the whole model
    learns the original's class probabilities; last, if there are labels and the plan says so, the labels. The original
    is put into evaluation mode and not changed. The folder receives checkpoints and ``result.json``. With ``fit_batch``
    a batch larger than the training set becomes smaller; the plan in the result says how large it was.
    """
    return Adapter(original, converted, plan, Path(out), watch, fit_batch).run(resume)


def restore_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the model's part of a checkpoint."""
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})


def _gamma(layer: Any) -> list[float]:
    value = layer.decay()
    return value.tolist() if isinstance(value, Tensor) else [float(value)]
