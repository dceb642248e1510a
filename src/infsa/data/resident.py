"""A small dataset kept whole in memory, on the training device, and its views made a batch at a time there.

For images of tens of pixels this feeds a GPU faster than any number of worker processes. The random numbers are a
hash of (seed, epoch, index), computed alike on every device.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .loading import Batches
from .sample import ImageDataset
from .transforms import ValTransform, check_view
from .views import Views, collate

DRAWS = 16  # random numbers per view
GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, SplitMix64's step


def mixed_bits(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 tensors: a bijection of 64-bit words that scatters neighbours."""
    x = (x ^ _shifted(x, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ _shifted(x, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical, where torch's shift is arithmetic


def view_key(seed: int, epoch: int) -> Tensor:
    """A 64-bit word for (seed, epoch)."""
    return mixed_bits(mixed_bits(torch.tensor(seed) + GOLDEN) + torch.tensor(epoch) * GOLDEN)


def keyed_uniforms(key: Tensor, indices: Tensor, count: int = DRAWS) -> Tensor:
    """Uniform numbers in [0, 1) that depend on a key and on the index, (B, count) float32."""
    rows = mixed_bits(key + indices.to(torch.int64) * GOLDEN)
    columns = torch.arange(1, count + 1, device=indices.device) * GOLDEN
    return (_shifted(mixed_bits(rows[:, None] + columns), 40)).float() / 2**24


class ResidentViews:
    """Training views of images that all lie in memory: crop, mirror image, brightness, contrast, saturation, erasing.

    Args:
        images: (N, 3, size, size) uint8, on the device where the views are wanted.
        labels: (N,) int64, there too.
        seed, scale, ratio, flip, jitter, erase, mean, std: as for :class:`TrainTransform`, without the hue; an erased
            rectangle gets the mean colour.
        interpolation: ``"bilinear"``, ``"bicubic"`` or ``"nearest"``.
        compile: make the views with fused kernels.

    The area and ratio of a crop are drawn once and its sides kept within the image, where :class:`TrainTransform` draws
    up to ten times, so the two do not give the same views.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        seed: int = 0,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: Sequence[float] = (0.4, 0.4, 0.4),
        erase: float = 0.0,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        interpolation: str = "bilinear",
        compile: bool = False,
    ) -> None:
        check_view(seed, scale, ratio, flip, jitter, erase)
        if len(jitter) > 3 and jitter[3] > 0:
            raise ValueError(f"resident views have no hue jitter; got jitter={tuple(jitter)}")
        if interpolation not in ("bilinear", "bicubic", "nearest"):
            raise ValueError(f"resident views are resampled bilinear, bicubic or nearest, got {interpolation!r}")
        self.images, self.labels, self.interpolation = images, labels, interpolation
        self.seed, self.scale, self.ratio, self.flip, self.erase = seed, scale, ratio, flip, erase
        self.jitter = tuple(jitter[:3])
        self.mean, self.std = (torch.tensor(v, device=images.device).view(1, 3, 1, 1) for v in (mean, std))
        self._seen: Any = torch.compile(self._view, dynamic=False) if compile else self._view

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, epoch: int, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The views of ``indices`` in ``epoch``, (B, 3, size, size) float32, and their labels."""
        indices = indices.to(self.images.device, non_blocking=True)
        key = view_key(self.seed, epoch).to(indices.device, non_blocking=True)
        return self._seen(self.images[indices], keyed_uniforms(key, indices)), self.labels[indices]

    def _view(self, pixels: Tensor, draws: Tensor) -> Tensor:
        x = self._cropped(pixels.float() / 255, draws[:, :5])
        x = (self._jittered(x, draws[:, 5:8]) - self.mean) / self.std
        return self._erased(x, draws[:, 8:13])

    def _cropped(self, x: Tensor, u: Tensor) -> Tensor:
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, 0]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        aspect = (low + (high - low) * u[:, 1]).exp()
        width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        mirror = torch.where(u[:, 4] < self.flip, -width, width)
        zero = torch.zeros_like(width)
        theta = torch.stack(  # from the view's [-1, 1]² to the image's
            [mirror, zero, (1 - width) * (2 * u[:, 2] - 1), zero, height, (1 - height) * (2 * u[:, 3] - 1)], 1
        ).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode=self.interpolation, padding_mode="border", align_corners=False)

    def _jittered(self, x: Tensor, u: Tensor) -> Tensor:
        brightness, contrast, saturation = (
            (1 + strength * (2 * u[:, i] - 1)).clamp(min=0).view(-1, 1, 1, 1) for i, strength in enumerate(self.jitter)
        )
        weights = x.new_tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)  # luma, ITU-R BT.601
        x = (x * brightness).clamp(0, 1)
        mean = (x * weights).sum(1, keepdim=True).mean((2, 3), keepdim=True)
        x = (mean + contrast * (x - mean)).clamp(0, 1)
        grey = (x * weights).sum(1, keepdim=True)
        return (grey + saturation * (x - grey)).clamp(0, 1)

    def _erased(self, x: Tensor, u: Tensor) -> Tensor:
        if not self.erase:
            return x
        size = x.shape[-1]
        area, aspect = 0.02 + (1 / 3 - 0.02) * u[:, 1], ((2 * u[:, 2] - 1) * math.log(1 / 0.3)).exp()
        width, height = (area * aspect).sqrt().clamp(max=1) * size, (area / aspect).sqrt().clamp(max=1) * size
        place = torch.arange(size, device=x.device) + 0.5
        top, left = u[:, 3] * (size - height), u[:, 4] * (size - width)
        rows = (place >= top[:, None]) & (place < (top + height)[:, None])
        columns = (place >= left[:, None]) & (place < (left + width)[:, None])
        hit = rows[:, :, None] & columns[:, None, :] & (u[:, 0] < self.erase)[:, None, None]
        return x.masked_fill(hit[:, None], 0.0)  # the mean colour


def load_resident(
    dataset: ImageDataset,
    size: int,
    workers: int = 0,
    interpolation: str = "bicubic",
    tell: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode a whole dataset to (N, 3, size, size) uint8 and (N,) labels: shorter side to ``size``, centre crop."""
    plain = Views(dataset, ValTransform(size, mean=(0, 0, 0), std=(1, 1, 1), interpolation=interpolation))
    images = torch.empty(len(plain), 3, size, size, dtype=torch.uint8)
    labels = torch.empty(len(plain), dtype=torch.int64)
    place = 0
    for batch in Batches(plain, workers, batch_size=64, collate_fn=collate):
        rows = slice(place, place + len(batch.labels))
        images[rows], labels[rows] = (batch.images * 255).round().to(torch.uint8), batch.labels
        place = rows.stop
        if tell is not None:
            tell(place)
    return images, labels
