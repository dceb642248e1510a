"""A model as it was, so that a conversion in place that fails leaves no trace."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Snapshot:
    """Classes and attributes of a model's modules and configurations, and the values of some of its tensors.

    Tensors that are not named keep their values by themselves; they are held, not copied.
    """

    def __init__(self, model: nn.Module, tensors: Iterable[Tensor]) -> None:
        holders: dict[int, Any] = {id(module): module for module in model.modules()}
        for module in model.modules():
            config = vars(module).get("config")
            if hasattr(config, "__dict__"):
                holders[id(config)] = config
        self._objects = [(held, held.__class__, dict(vars(held))) for held in holders.values()]
        inner = (value for _, _, state in self._objects for value in state.values() if isinstance(value, dict))
        self._dictionaries = [(value, dict(value)) for value in inner]  # hooks keep a reference to theirs
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore(self) -> None:
        """Make the model what it was."""
        for dictionary, content in self._dictionaries:
            dictionary.clear()
            dictionary.update(content)
        for held, kind, state in self._objects:
            held.__class__ = kind
            vars(held).clear()
            vars(held).update(state)
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
