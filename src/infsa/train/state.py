"""The state of a run as named tensors and plain facts, whole on rank 0, however the model is sharded."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

PLAIN = (bool, int, float, str, tuple, type(None))  # settings of an optimiser that change from step to step


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or a sharded one put together; every rank must call it."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, sharded and placed as another one of its shape."""
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value


class WeightAverage:
    """An exponential moving average of a model's parameters, with a decay that rises from 0.1 to its full value."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards the model's weights."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        now = [p.detach() for p in model.parameters()]
        torch._foreach_lerp_(list(self.values.values()), now, 1 - decay)

    @torch.no_grad()
    def exchange(self, model: nn.Module) -> None:
        """Swap the average and the model's weights; calling it again swaps them back."""
        for average, p in zip(self.values.values(), model.parameters(), strict=True):
            current = p.detach().clone()
            p.detach().copy_(average)
            average.copy_(current)


def gather_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Model, optimiser and average as whole tensors and plain facts; every rank must call it."""
    tensors = {f"model.{name}": whole(value) for name, value in model.state_dict().items()}
    numbers: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{name}:{key}"] = whole(value)
            else:
                numbers[f"{name}:{key}"] = value
    groups: list[dict[str, Any]] = []
    for index, group in enumerate(optimizer.param_groups):
        tensors |= {f"group.{index}:{key}": value for key, value in group.items() if isinstance(value, Tensor)}
        groups.append({key: value for key, value in group.items() if isinstance(value, PLAIN)})
    facts: dict[str, Any] = {"numbers": numbers, "groups": groups, "average_updates": 0}
    if average is not None:
        tensors |= {f"average.{name}": whole(value) for name, value in average.values.items()}
        facts["average_updates"] = average.updates
    return tensors, facts


@torch.no_grad()
def restore_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
) -> None:
    """Put back what :func:`gather_state` gave; every rank must bring the same."""
    for name, value in model.state_dict().items():
        value.copy_(shared_as(tensors[f"model.{name}"], value))
    if average is not None:
        average.updates = facts["average_updates"]
        for name, value in average.values.items():
            value.copy_(shared_as(tensors[f"average.{name}"], value))
    optimizer.load_state_dict(_optimizer_state(model, optimizer, tensors, facts))


def _optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> dict[str, Any]:
    """What ``optimizer.load_state_dict`` takes, from states that are filed under the parameters' names."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    state: dict[int, dict[str, Any]] = {}
    fresh = optimizer.state_dict()
    for group, filed in zip(optimizer.param_groups, fresh["param_groups"], strict=True):
        for parameter, index in zip(group["params"], filed["params"], strict=True):
            prefix = f"{names[parameter]}:"
            own = {key.removeprefix(prefix): value for key, value in facts["numbers"].items() if key.startswith(prefix)}
            for key, value in tensors.items():
                if key.startswith(f"optimizer.{prefix}"):
                    like = value.shape == parameter.shape
                    own[key.rpartition(":")[2]] = shared_as(value, parameter) if like else value
            state[index] = own
    for index, (filed, saved) in enumerate(zip(fresh["param_groups"], facts["groups"], strict=True)):
        own = {key: value for key, value in saved.items() if key != "params"}  # the model's own, never the file's
        filed |= {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
        prefix = f"group.{index}:"
        filed |= {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    return {"state": {index: own for index, own in state.items() if own}, "param_groups": fresh["param_groups"]}
