"""A dataset seen through a transform, and its samples put into batches."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .sample import BoxArray, ImageDataset
from .transforms import Transform


class Example(NamedTuple):
    """A sample ready for a model."""

    image: torch.Tensor  # (3, size, size), normalised
    label: int | NDArray[np.uint8]
    boxes: BoxArray  # (n, 4) in pixels of the tensor
    name: str


class Batch(NamedTuple):
    """Examples together; boxes stay apart, because images differ in their number."""

    images: torch.Tensor  # (B, 3, size, size)
    labels: torch.Tensor  # (B,) int64, or (B, C) uint8: the answers of several tasks
    boxes: list[BoxArray]
    names: list[str]


class Views(torch.utils.data.Dataset[Example]):
    """A dataset through a transform: view ``index`` depends on (seed, epoch, index) and nothing else.

    The epoch lives in shared memory, so that :meth:`set_epoch` reaches workers that persist between epochs.
    """

    def __init__(self, dataset: ImageDataset, transform: Transform) -> None:
        self.dataset, self.transform = dataset, transform
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch whose views are drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw the views of ``epoch`` from now on, in every worker; call it before the loader is iterated."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Example:
        image, label, boxes, name = self.dataset[index]
        tensor, boxes = self.transform(image, boxes, epoch=self.epoch, index=range(len(self))[index])
        return Example(tensor, label, boxes, name)


def collate(examples: Sequence[Example]) -> Batch:
    """Stack images and labels, list boxes and names: the ``collate_fn`` of a DataLoader."""
    images, labels, boxes, names = zip(*examples, strict=True)
    return Batch(torch.stack(images), torch.from_numpy(np.array(labels)), list(boxes), list(names))
