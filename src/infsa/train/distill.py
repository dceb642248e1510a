"""What a converted model can learn from the original: the outputs of its attention layers, its logits, its features."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Call(NamedTuple):
    """One call of an attention layer: what it was given and what it gave."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    output: Tensor


def first_tensor(output: Any) -> Tensor:
    """The output of an attention layer, whatever it returns beside it."""
    return output if isinstance(output, Tensor) else output[0]


def class_logits(output: Any) -> Tensor:
    """The logits of a classifier, also where they come inside an output object of Hugging Face."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None or found.dim() != 2:
        got = type(output).__name__ if found is None else f"logits of shape {tuple(found.shape)}"
        raise ValueError(f"the model must be a classifier of images, with logits (B, classes), got {got}")
    return found


@contextmanager
def recorded_calls(model: nn.Module, layers: list[str]) -> Iterator[dict[str, Call]]:
    """Note the last call of each of the named layers while the model runs."""
    calls: dict[str, Call] = {}

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            calls[name] = Call(arguments, options, first_tensor(output))

        return hook

    hooks = [model.get_submodule(name).register_forward_hook(hook_for(name), with_kwargs=True) for name in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def relative_error(given: Tensor, wanted: Tensor) -> Tensor:
    """‖y' − y‖² / ‖y‖²."""
    given, wanted = given.float(), wanted.float()
    return (given - wanted).square().sum() / wanted.square().sum().clamp_min(torch.finfo(torch.float32).tiny)


def layer_loss(layer: nn.Module, call: Call) -> Tensor:
    """The relative error of a converted layer on the original's input."""
    return relative_error(first_tensor(layer(*call.arguments, **call.options)), call.output)


def logit_loss(given: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """T² KL(original ‖ converted) of the softened class probabilities, mean over images."""
    log_given, log_wanted = ((x.float() / temperature).log_softmax(-1) for x in (given, wanted))
    return temperature**2 * F.kl_div(log_given, log_wanted, reduction="batchmean", log_target=True)
