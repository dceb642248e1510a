"""The training step as a Lightning module: loss, optimiser, learning rate, weight average."""

import inspect
from collections.abc import Sequence
from typing import Any

import lightning as L
import timm
import torch
from timm.optim import create_optimizer_v2, get_optimizer_class
from torch import Tensor, nn

from ..data.mixing import mix_pairs
from ..data.tasks import Tasks, single_task
from ..models.infvit import InfViT
from ..models.weights import describe_data
from .init import load_start
from .recipe import Recipe
from .state import WeightAverage

STEP_SEED = 1_000_003  # a prime: seeds of different runs and steps stay apart


class Classifier(L.LightningModule):
    """A model of this package and one optimiser step of a recipe.

    ``step`` counts optimiser steps since the beginning of the run, through restarts. Random numbers of the forward
    pass (stochastic depth) are seeded by (seed, step, part, rank), so a restart needs no generator state.
    """

    def __init__(
        self,
        recipe: Recipe,
        classes: int | Sequence[str],
        steps_per_epoch: int,
        fresh: bool = True,
        tasks: Tasks | None = None,
    ) -> None:
        super().__init__()
        self.recipe, self.steps_per_epoch = recipe, steps_per_epoch
        self.tasks = tasks or single_task([str(i) for i in range(classes)] if isinstance(classes, int) else classes)
        self.notes: list[str] = []  # what became of the weights that it starts from
        self.step = 0
        self.parts = 0  # of the batch of this step, already seen
        self.last_loss: Tensor | None = None
        self.average: WeightAverage | None = None
        self.model = build_model(recipe, classes, fresh, self.notes)

    def configure_model(self) -> None:
        """Shard block by block if the recipe says so."""
        if self.recipe.strategy != "fsdp" or self.device_mesh is None:
            return
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if isinstance(self.model, FSDPModule):
            return
        mesh = self.device_mesh["data_parallel"]
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh, reshard_after_forward=True)  # validation has no backward pass that would

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """timm's optimiser; biases, norms, tokens and positions are not decayed."""
        recipe = self.recipe
        takes = inspect.signature(get_optimizer_class(recipe.optimizer, bind_defaults=False)).parameters
        default = takes["betas"].default if "betas" in takes else None
        two = isinstance(default, tuple) and len(default) == 2
        options: dict[str, Any] = {"betas": (0.9, recipe.beta2)} if two else {}
        if recipe.optimizer == "adamw" and self.device.type == "cuda":
            options["fused"] = True
        if recipe.layer_decay < 1:
            options["layer_decay"] = recipe.layer_decay
        return create_optimizer_v2(
            self.model, opt=recipe.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay, **options
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.model(images)
        return found

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set this step's learning rate and seed."""
        rate = self.recipe.learning_rate(self.step, self.steps_per_epoch)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)
        place = (self.step * self.recipe.accumulate + self.parts) * self.trainer.world_size + self.global_rank
        torch.manual_seed((self.recipe.seed * STEP_SEED + place) % 2**63)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of all tasks, with smoothed and mixed targets."""
        recipe = self.recipe
        images, labels = batch[0], batch[1]
        targets = self.tasks.targets(labels, recipe.label_smoothing)
        if recipe.mixup or recipe.cutmix:
            world = self.trainer.world_size
            share = (self.parts * world + self.global_rank, recipe.accumulate * world)
            strengths: dict[str, float] = {"mixup": recipe.mixup, "cutmix": recipe.cutmix, "prob": recipe.mix_prob}
            images, targets = mix_pairs(images, targets, key=(recipe.seed, self.step), share=share, **strengths)
        loss = self.tasks.loss(self(images), targets)
        self.last_loss = loss.detach()
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip, after the scale of mixed precision is undone."""
        if self.recipe.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)

    def count(self) -> bool:
        """Note that a part is done; true if a step is complete. The average follows every step."""
        self.parts = (self.parts + 1) % self.recipe.accumulate
        if self.parts:
            return False
        self.step += 1
        if self.average is not None:
            self.average.update(self.model)
        return True

    @property
    def epoch(self) -> float:
        """Epochs done, with fractions."""
        return self.step / self.steps_per_epoch


def build_model(
    recipe: Recipe, classes: int | Sequence[str], fresh: bool = True, notes: list[str] | None = None
) -> InfViT:
    """The recipe's model, seeded, for a number of classes or for those named.

    Weights to start from (``init``) are fitted: positions follow the image size, and a classifier for other classes
    starts anew; ``notes`` gets a line about it. With ``fresh=False`` they are left out, for a model that will be given
    other weights.
    """
    count = classes if isinstance(classes, int) else len(classes)
    options = {"num_classes": count, "img_size": recipe.image_size, **recipe.model_options}
    if recipe.drop_path:
        options.setdefault("drop_path_rate", recipe.drop_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model: InfViT = timm.create_model(recipe.model, **options)  # type: ignore[assignment]
        if recipe.weight_init != "normal":
            model.init_weights(recipe.weight_init)
    model.grid_of(
        torch.empty(1, model.in_chans, recipe.image_size, recipe.image_size, device="meta")
    )  # refuses odd sizes early
    describe_data(model, **{name: getattr(recipe, name) for name in ("mean", "std") if getattr(recipe, name)})
    if recipe.init and fresh:
        line = load_start(model, recipe, classes)
        if notes is not None:
            notes.append(line)
    if recipe.grad_checkpointing:
        model.set_grad_checkpointing(True)
    return model


def smoothed(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Labels as rows: 1 − ε + ε / C for the class, ε / C for the others, (B, C) float32."""
    rows = torch.full((len(labels), classes), smoothing / classes, device=labels.device)
    return rows.scatter_(1, labels[:, None], 1 - smoothing + smoothing / classes)
