"""Compiled blocks for a training run: one compilation for all that are alike, and eager code where there can be none.

On a GPU the steps of one process are then recorded as CUDA graphs.

Only the blocks are compiled. They take nearly all of a step, and compiling one of them takes a fraction of the time
that the whole model would. Before its first step a run tries a forward and backward pass on that step's images; what it
changes is put back, so after a failure the run is an eager one from its beginning. Random numbers are drawn as in eager
code and no code is chosen by measured times, so a resumed run computes the same bits.
"""

import contextlib
import functools
import logging
import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import lightning as L
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ..ops.dispatch import untouched
from .recipe import Recipe
from .recorded import record, uncached, why_not_recorded

KINDS = 4  # different blocks of a model that are compiled; with more, compiling takes minutes
PAYS = 1000  # steps of a run from which on "auto" compiles: fewer would save less time than compiling takes
LONGEST = 200  # characters of a reason


class Regions(L.Callback):
    """Compiles the blocks of a run's model before its first step, if the recipe says so, and tells what came of it.

    Args:
        recipe: ``compile`` decides.
        total: optimiser steps of the whole run.
        tell: receives the line.
        pause: receives the seconds that it took, which are no training time.
    """

    def __init__(self, recipe: Recipe, total: int, tell: Callable[[str], None], pause: Callable[[float], None]) -> None:
        self.recipe, self.choice, self.total, self.tell, self.pause = recipe, recipe.compile, total, tell, pause
        self._undo = contextlib.ExitStack()
        self._due = recipe.compile != "off"

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Compile before the first step of this process."""
        if not self._due:
            return
        self._due = False
        if self.choice == "auto" and pl_module.device.type != "cuda":
            return
        model: Any = pl_module.model
        reason = self._avoided(model)
        if reason is None:
            begin, (on_gpu, images) = time.perf_counter(), (pl_module.device.type == "cuda", batch[0])
            unrecorded = why_not_recorded(self.recipe, trainer.world_size) if on_gpu else "no GPU"
            plugin = trainer.precision_plugin
            make = plugin.forward_context if unrecorded else lambda: uncached(plugin.forward_context())
            reason = why_not(lambda: self._compile(model, images, make()))
            if reason is None and unrecorded is None:
                unrecorded = why_not(lambda: self._record(model, images, make()))
                if unrecorded is not None:  # the steps keep their casts, for which other code is compiled
                    self._undo.close()
                    reason = why_not(lambda: self._compile(model, images, plugin.forward_context()))
            seconds = time.perf_counter() - begin
            self.pause(seconds)
            if not trainer.strategy.reduce_boolean_decision(reason is None, all=True):
                reason = reason or "another process could not compile"
        if reason is None:
            done = f"compiled the {len(model.blocks)} blocks"
            if on_gpu:
                done += f", no CUDA graphs ({unrecorded})," if unrecorded else " and recorded a step as CUDA graphs"
            self.tell(f"{done} in {seconds:.0f} s; --compile off starts at once")
        else:
            self._undo.close()
            self.tell(f"not compiled, training runs eagerly: {reason}")

    def _compile(self, model: Any, images: Tensor, precision: AbstractContextManager[Any]) -> None:
        self._undo.enter_context(compiled_blocks(model))
        with precision:
            rehearse(model, images)

    def _record(self, model: Any, images: Tensor, precision: AbstractContextManager[Any]) -> None:
        with precision:
            record(model, images)
        self._undo.callback(vars(model).pop, "forward", None)

    def _avoided(self, model: Any) -> str | None:
        """Why it is not even tried."""
        if self.choice == "auto" and self.total < PAYS:
            return f"{self.total} steps are too few for compiling to pay off; --compile on forces it"
        if self.recipe.strategy == "fsdp":
            return "strategy fsdp gathers the weights of each block in a hook"
        if getattr(model, "readout", "last") != "last":
            return f"readout={model.readout!r} takes its blocks apart"
        for name, module in model.blocks.named_modules(prefix="blocks"):
            if not untouched(module):
                return f"{name} has hooks or another forward"
            if getattr(module, "redraw_every", 0):
                return f"{name} redraws its features while it trains"
        return None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Give the model its own blocks back."""
        self._undo.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Give them back after an error too."""
        self._undo.close()


class DrawnOutside(DropPath):
    """Drop path that runs eagerly between compiled parts, so that blocks with other rates are not other code."""

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        """x, or 0 for some of its samples."""
        return super().forward(x)


@contextlib.contextmanager
def compiled_blocks(model: Any) -> Iterator[None]:
    """Let the blocks of a model run compiled in training mode; names and values of its parameters stay."""
    from torch._inductor import config as inductor  # loads the compiler

    paths = [
        (parent, name, child)
        for parent in model.blocks.modules()
        for name, child in parent.named_children()
        if type(child) is DropPath
    ]
    drawn = any(child.drop_prob for _, _, child in paths)
    wanted = ("fallback_random", "deterministic")  # draw as eager code does; choose nothing by measured times
    options: dict[str, Any] = {name: True for name in wanted if hasattr(inductor, name)}
    compiled: dict[type, Any] = {}
    try:
        for parent, name, child in paths if drawn else ():
            setattr(parent, name, DrawnOutside(child.drop_prob, child.scale_by_keep))
        for block in model.blocks:
            kind = type(block)
            if kind not in compiled:
                compiled[kind] = torch.compile(_own_copy(kind.forward), dynamic=False, options=options)
            block.forward = functools.partial(_in_training, compiled[kind], kind.forward, block)
        yield
    finally:
        for block in model.blocks:
            vars(block).pop("forward", None)
        for parent, name, child in paths if drawn else ():
            setattr(parent, name, child.train(parent.training))


def _in_training(
    compiled: Callable[..., Tensor], eager: Callable[..., Tensor], block: nn.Module, *given: Any, **named: Any
) -> Tensor:
    return (compiled if block.training else eager)(block, *given, **named)


def _own_copy(function: Any) -> Any:
    """A function with code of its own, under which the compiler files nothing of earlier runs in this process."""
    code, names = function.__code__.replace(), function.__globals__
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def rehearse(model: nn.Module, images: Tensor) -> None:
    """A forward and backward pass that leaves no trace in gradients, buffers and random numbers."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    graphs = torch._dynamo.utils.counters["stats"]
    known = graphs["unique_graphs"]
    limits = torch._dynamo.config.patch(recompile_limit=KINDS, fail_on_recompile_limit_hit=True)
    try:
        with torch.random.fork_rng([images.device] if images.is_cuda else []), limits:
            torch.autograd.grad(model(images).float().square().sum(), parameters, allow_unused=True)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
    finally:
        for buffer, value in before:
            buffer.copy_(value)
    if graphs["unique_graphs"] == known:
        raise RuntimeError("the compiler found nothing that it could compile")


def why_not(attempt: Callable[[], object]) -> str | None:
    """Why a first compiled call fails, in one line; None if it does not."""
    muted = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)  # the compiler's advice to its own developers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attempt()
    except torch._dynamo.exc.FailOnRecompileLimitHit:
        return f"the model has blocks of more than {KINDS} kinds"
    except Exception as error:  # the compiler and its backends raise many kinds
        cause: BaseException = getattr(error, "inner_exception", None) or error
        text = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        return f"{type(cause).__name__}: {text}"[:LONGEST]
    finally:
        logging.disable(muted)
    return None
