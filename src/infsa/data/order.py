"""The order in which a run sees its training images: a function of (seed, epoch), cut into steps, ranks and parts."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .random_keys import keyed_generator


class Order:
    """Which images make up optimiser step ``s``, the same for any number of processes.

    Every epoch is a permutation of the images keyed by (seed, epoch); images left over after the last full batch wait
    for another epoch. A step's batch is cut into ``accumulate`` parts and every part over the ranks, so that the same
    images meet in the same step however many processes share the work.
    """

    def __init__(
        self, images: int, batch_size: int, seed: int = 0, accumulate: int = 1, rank: int = 0, world: int = 1
    ) -> None:
        if not 0 < batch_size <= images:
            raise ValueError(f"batch_size must be from 1 to the number of images {images}, got {batch_size}")
        if batch_size % (accumulate * world):
            raise ValueError(f"batch_size {batch_size} cannot be split over {world} processes x {accumulate} parts")
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.accumulate, self.rank, self.world = accumulate, rank, world
        self.steps_per_epoch = images // batch_size
        self._permutation = lru_cache(maxsize=2)(self._draw)

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        return keyed_generator("order", self.seed, epoch).permutation(self.images)

    def batch(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """The epoch of a step and the images of its whole batch."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return epoch, self._permutation(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def parts(self, start: int, end: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(epoch, images) of this rank, part after part, from step ``start`` up to ``end``."""
        for step in range(start, end):
            epoch, indices = self.batch(step)
            for part in indices.reshape(self.accumulate, self.world, -1):
                yield epoch, part[self.rank]
