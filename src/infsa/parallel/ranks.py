"""The ranks that share one image, and the three ways in which they talk: a sum, a small exchange, a ring."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


class PeerError(RuntimeError):
    """Another rank has ended, or did not arrive within the time limit of the process group."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """A process group seen from one of its ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @classmethod
    def of(cls, group: "Group") -> "Ranks":
        """From a process group, one dimension of a device mesh, or None for all processes."""
        if isinstance(group, Ranks):
            return group
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                names = group.mesh_dim_names
                raise ValueError(f"group must be one dimension of a mesh, as mesh['sequence'], got {names or group}")
            group = group.get_group()
        elif group is None:
            if not dist.is_initialized():
                raise ValueError("there is no process group: call torch.distributed.init_process_group() first")
            group = dist.group.WORLD
        if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
            raise ValueError(f"group must be a process group or mesh dimension that holds this rank, got {group!r}")
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        return self  # a copied model talks to the same ranks

    @contextlib.contextmanager
    def talking(self, what: str) -> Iterator[None]:
        """Turn what the backend raises about a lost rank into one line."""
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"^\[[^]]*\] ", "", str(error)).partition("\n")[0].partition(". ")[0]
            raise PeerError(
                f"rank {self.rank} of {self.size}: {what} failed, a rank has ended or did not arrive in time: {reason}"
            ) from error

    def add(self, *tensors: Tensor) -> list[Tensor]:
        """The sums over ranks of tensors of one dtype, in one all-reduce; differentiable.

        The derivative is that of the sum of all ranks' losses: gradients are added over ranks in one all-reduce too.
        """
        if self.size == 1:
            return list(tensors)
        flat: Tensor = _Add.apply(self, torch.cat([tensor.flatten() for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks, stacked: (P, *x.shape); differentiable, and meant for small ones."""
        before = x.new_zeros(self.rank, *x.shape)
        after = x.new_zeros(self.size - 1 - self.rank, *x.shape)
        return self.add(torch.cat([before, x.unsqueeze(0), after]))[0]

    def first(self, x: Tensor) -> Tensor:
        """What rank 0 holds, on every rank."""
        return self.add(x if self.rank == 0 else torch.zeros_like(x))[0]

    def exchange(self, facts: Sequence[int]) -> list[list[int]]:
        """The integers of every rank, through host memory if the group can: then no device waits."""
        by_host = self.size == 1 or "cpu:" in dist.get_backend_config(self.group)
        device = torch.device("cpu") if by_host else torch.accelerator.current_accelerator()
        everyone: list[list[int]] = self.gather(torch.tensor(facts, dtype=torch.int64, device=device)).tolist()
        return everyone

    def shift(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> "Shift":
        """Start sending tensors to the next rank of the ring and receiving those of the previous one."""
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        talk = [dist.P2POp(dist.isend, x, group=self.group, group_peer=following) for x in tensors]
        talk += [dist.P2POp(dist.irecv, x, group=self.group, group_peer=previous) for x in into]
        what = f"the ring from rank {previous} to rank {following}"
        with self.talking(what):
            return Shift(self, dist.batch_isend_irecv(talk), what, (*tensors, *into))


@dataclass(frozen=True)
class Shift:
    """A step of the ring under way; it keeps its tensors alive."""

    ranks: Ranks
    works: list[Any]
    what: str
    tensors: tuple[Tensor, ...]

    def wait(self) -> None:
        """Until the received tensors can be used."""
        with self.ranks.talking(self.what):
            for work in self.works:
                work.wait()


class _Add(torch.autograd.Function):
    """y = Σ_r x_r on every rank; with L = Σ_r L_r, ∂L/∂x_r = Σ_s ∂L_s/∂y."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor) -> Tensor:
        ctx.ranks = ranks
        total = x.clone(memory_format=torch.contiguous_format)
        with ranks.talking("an all-reduce"):
            dist.all_reduce(total, group=ranks.group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, _Add.apply(ctx.ranks, grads[0])


Group = Ranks | dist.ProcessGroup | DeviceMesh | None


@torch.no_grad()
def average_gradients(module: nn.Module, group: Group) -> None:
    """Replace the gradients of a module's parameters by their mean over ranks; a missing one counts as zero.

    Where every rank computed the loss of the whole image, the mean is the gradient of that loss.
    """
    ranks = Ranks.of(group)
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for parameters in by_dtype.values():
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter, total in zip(parameters, ranks.add(*own), strict=True):
            parameter.grad = total / ranks.size
