"""What is left to do after ``backward`` where neither DistributedDataParallel nor ``fully_shard`` does it."""

import torch
from torch import Tensor, nn

from .ranks import Group, Ranks


@torch.no_grad()
def average_gradients(module: nn.Module, group: Group) -> None:
    """Replace the gradients of a module's parameters by their mean over ranks; a missing one counts as zero.

    Where every rank computed the loss of the whole image, the mean is the gradient of that loss.

    Example:
        >>> loss.backward()
        >>> average_gradients(model, group=None)
    """
    ranks = Ranks.of(group)
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for parameters in by_dtype.values():
        for parameter, total in zip(parameters, ranks.add(*map(_gradient, parameters)), strict=True):
            parameter.grad = total / ranks.size


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
