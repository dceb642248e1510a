"""A model's forward and backward pass as CUDA graphs: the host launches two graphs a step instead of 2,000 kernels.

A graph reads its images from one place, and writes every gradient to one place, which the parameters' ``.grad`` share.
So each step has to begin without gradients, and gradients of several parts of a batch cannot add up.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .recipe import Recipe


def alone() -> dict[str, Any]:
    """What keeps a recording to its own thread, where PyTorch can: while a process records, all others may fail."""
    known = inspect.signature(torch.cuda.make_graphed_callables).parameters
    return {"capture_error_mode": "thread_local"} if "capture_error_mode" in known else {}


def why_not_recorded(recipe: Recipe, processes: int) -> str | None:
    """Why the steps of a recipe are not recorded."""
    if processes > 1:
        return "several processes share gradients while they arise"
    if recipe.strategy != "auto":
        return f"strategy {recipe.strategy} takes gradients while they arise"
    if recipe.accumulate > 1:
        return f"a step has {recipe.accumulate} parts"
    if recipe.grad_checkpointing:
        return "gradient checkpointing sets the state of random numbers"
    if recipe.loader == "workers" and not alone():  # a thread copies its batches into pinned memory meanwhile
        return f"PyTorch {torch.__version__} cannot record beside loader='workers'"
    return None


@contextlib.contextmanager
def uncached(precision: AbstractContextManager[Any]) -> Iterator[None]:
    """A precision whose casts of weights are not kept: a graph has to make them at every step."""
    kept = torch.is_autocast_cache_enabled()
    try:
        with precision:
            torch.set_autocast_cache_enabled(False)
            yield
    finally:
        torch.set_autocast_cache_enabled(kept)


def record(model: Any, images: Tensor) -> None:
    """Let a model run as CUDA graphs for images like these, in training; all other calls run as before.

    Buffers and random numbers are left as they were. ``vars(model).pop("forward")`` ends it.
    """
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng([images.device]):
            torch.cuda.make_graphed_callables(model, (images.clone(),), allow_unused_input=True, **alone())
    finally:
        for buffer, value in before:
            buffer.copy_(value)
        graphed = vars(model).pop("forward", None)
    assert graphed is not None
    model.forward = partial(_recorded, graphed, type(model).forward, model, _kind(images))


def _recorded(
    graphed: Callable[[Tensor], Tensor],
    other: Callable[..., Tensor],
    model: Any,
    kind: Any,
    images: Tensor,
    *further: Any,
    **named: Any,
) -> Tensor:
    learning = model.training and torch.is_grad_enabled()
    if learning and not further and not named and _kind(images) == kind:
        return graphed(images)
    return other(model, images, *further, **named)


def _kind(images: Tensor) -> Any:
    return images.shape, images.stride(), images.dtype, images.device, images.requires_grad
