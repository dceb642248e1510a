"""Datasets that are drawn on the training device, a batch at a time: nothing is read, decoded or copied."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from .loading import Batches
from .sample import Sample


@runtime_checkable
class DrawnDataset(Protocol):
    """A dataset whose images are computed where they are wanted."""

    classes: list[str]

    def __len__(self) -> int:
        """How many images there are."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """One image, drawn on the CPU."""
        ...

    def compose(self, indices: Tensor, epoch: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Images (B, 1, h, w) uint8, answers and boxes (B, n, 4) of ``indices`` (B,), on their device."""
        ...


class DrawnViews:
    """Drawn images as a model takes them: three channels, normalised, shrunk by averaging where it sees them smaller.

    Args:
        dataset: what to draw.
        size: side of the model's input.
        mean, std: of the normalisation.
        device: where to draw.
    """

    def __init__(
        self, dataset: DrawnDataset, size: int, mean: Sequence[float], std: Sequence[float], device: torch.device
    ) -> None:
        self.dataset, self.size, self.device = dataset, size, device
        self.mean, self.std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (mean, std))

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, epoch: int, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The images of ``indices`` in ``epoch``, (B, 3, size, size) float32, and their answers."""
        images, answers, _ = self.dataset.compose(indices.to(self.device, non_blocking=True), epoch)
        pixels = images.float() / 255
        if pixels.shape[-1] != self.size:
            pixels = F.interpolate(pixels, (self.size, self.size), mode="area")
        return (pixels - self.mean) / self.std, answers

    def batches(self, batch_size: int, rank: int = 0, world: int = 1) -> Batches:
        """Every ``world``-th image from ``rank`` on, in order, to be gone through again and again."""
        own: dict[str, Any] = {"batch_size": batch_size, "generator": torch.Generator()}  # global seeds stay
        images: Any = range(rank, len(self), world)
        return Batches(images, collate_fn=lambda some: self.batch(0, torch.tensor(some)), **own)
