"""Token activations that stay between passes: in device memory, in host memory, in a file.

The store is a cache: a tile that it does not hold is computed again from the pixels, with the same result.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .tiles import Tiling
from .upload import Download


class Spill:
    """Tokens of tiles, each with the layer they are about to enter.

    Args:
        capacity: bytes that may be held; tiles beyond it are not kept.
        device: a GPU to keep them on; None for host memory, which is pinned if tokens come from a GPU.
    """

    keeps_last = False  # whether the tokens that leave the last layer are worth keeping

    def __init__(self, capacity: int, device: torch.device | None = None) -> None:
        self.capacity, self.used, self.device = capacity, 0, device
        self.layers: dict[int, int] = {}
        self._kept: dict[int, Tensor] = {}
        self._written: dict[int, Any] = {}
        self._download = Download()

    def __contains__(self, number: int) -> bool:
        return number in self.layers

    def serves(self, number: int, layer: int) -> bool:
        """Whether the tokens of a tile that enter a layer follow from what is kept."""
        return self.layers.get(number, layer + 1) <= layer

    def get(self, number: int) -> tuple[int, Tensor]:
        """The layer and the tokens of a tile."""
        return self.layers[number], self._kept[number]

    def slow(self, number: int) -> bool:
        """Whether the tokens of a tile have to be read from a file."""
        return False

    def written(self, number: int) -> Any:
        """An event on a GPU after which the tokens of a tile are in host memory, or None if they are there."""
        return self._written.get(number)

    def fits(self, x: Tensor) -> bool:
        """Whether there is room for the tokens of one more tile."""
        return self.used + x.numel() * x.element_size() <= self.capacity

    def put(self, number: int, layer: int, x: Tensor) -> None:
        """Keep the tokens of a tile if there is room; those of an earlier layer are replaced."""
        if number not in self.layers:
            if not self.fits(x):
                return
            self.used += x.numel() * x.element_size()
        self._write(number, x)
        self.layers[number] = layer

    def close(self) -> None:
        """Forget everything."""
        self.layers.clear()
        self._kept.clear()

    def _write(self, number: int, x: Tensor) -> None:
        x = x.detach()
        if not x.is_cuda or self.device is not None:  # they are where they stay, and nobody writes into them
            alone = x.is_contiguous() and x.untyped_storage().nbytes() == x.numel() * x.element_size()
            self._kept[number] = x if alone else x.clone(memory_format=torch.contiguous_format)
            return
        if number not in self._kept:
            self._kept[number] = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self._written[number] = self._download(x, self._kept[number])


class FileSpill(Spill):
    """The same in a file of a folder, without mapping it: the system may cache it, the process does not hold it.

    ``pinned`` reads into memory from which a GPU copies.
    """

    def __init__(
        self, folder: str | Path, tiling: Tiling, width: int, dtype: torch.dtype, pinned: bool = False
    ) -> None:
        super().__init__(tiling.grid[0] * tiling.grid[1] * width * dtype.itemsize)
        self.folder, self.dtype, self.width, self.pinned = folder, dtype, width, pinned
        self._offsets: dict[int, tuple[int, int]] = {}
        start = 0
        for number in range(len(tiling)):
            count = tiling[number].tokens
            self._offsets[number] = (start, count)
            start += count * width * dtype.itemsize
        self._file = tempfile.TemporaryFile(dir=folder, prefix="infsa-spill-", buffering=0)  # noqa: SIM115

    def slow(self, number: int) -> bool:
        """Always."""
        return True

    def get(self, number: int) -> tuple[int, Tensor]:
        """The layer and the tokens of a tile."""
        start, count = self._offsets[number]
        x = torch.empty(1, count, self.width, dtype=self.dtype, pin_memory=self.pinned)
        target = _bytes_of(x)
        done = 0
        while done < len(target):
            read = os.preadv(self._file.fileno(), [target[done:]], start + done)
            if read == 0:
                raise OSError(f"the spilled tokens of tile {number} are gone")
            done += read
        return self.layers[number], x

    def close(self) -> None:
        """Remove the file."""
        super().close()
        self._file.close()

    def _write(self, number: int, x: Tensor) -> None:
        start, _ = self._offsets[number]
        data = _bytes_of(x.detach().cpu().contiguous())
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done:], start + done)
        except OSError as error:
            raise OSError(f"{self.folder}: {error.strerror}") from error


class Tiers(Spill):
    """Several stores, the fastest first: a tile stays in the first one that has room for it.

    Args:
        stores: that are filled one after the other.
    """

    def __init__(self, stores: Sequence[Spill]) -> None:
        super().__init__(sum(store.capacity for store in stores))
        self.stores = stores
        self._owner: dict[int, Spill] = {}

    def slow(self, number: int) -> bool:
        """Whether the tokens of a tile have to be read from a file."""
        return self._owner[number].slow(number)

    def written(self, number: int) -> Any:
        """See :meth:`Spill.written`."""
        return self._owner[number].written(number)

    def get(self, number: int) -> tuple[int, Tensor]:
        """The layer and the tokens of a tile."""
        return self._owner[number].get(number)

    def put(self, number: int, layer: int, x: Tensor) -> None:
        """Keep the tokens of a tile where they are, or where there is room first."""
        owner = self._owner.get(number) or next((store for store in self.stores if store.fits(x)), None)
        if owner is not None:
            owner.put(number, layer, x)
            self._owner[number], self.layers[number] = owner, layer

    def close(self) -> None:
        """Forget everything."""
        super().close()
        for store in self.stores:
            store.close()


def _bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor as bytes, not copied."""
    return x.view(torch.uint8).flatten().numpy().data
