"""Megapixel digits: a large black image with five small digits among fifty patches of noise, and four questions.

After Katharopoulos & Fleuret (2019) and Bergner et al. (2023). Images are composed on the device that wants them, from
patches of 28 × 28 pixels: a whole image never passes through the host.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from .mnist import SIDE, STAND_IN, read_digits
from .random_keys import keyed_generator
from .resident import keyed_uniforms, mixed_bits, view_key
from .sample import Sample
from .tasks import Task, Tasks

LENGTHS = {"train": 5_000, "val": 1_000}
DIGITS = 5
SAME = 3  # of one class
ATTEMPTS = 48  # at a place that is free
SMALLEST = 6 * SIDE  # four digits block at most three fifths of the places for the fifth
STROKES = 4_096  # different patches of noise in a split
CLASSES = tuple("0123456789")
WARP = (math.radians(15), 0.15, 0.15)  # largest rotation, change of scale and shear of a patch


class Scenes(NamedTuple):
    """What to draw in each of B images."""

    digits: Tensor  # (B, 5), indices of the digits
    strokes: Tensor  # (B, n), indices of the patches of noise
    corners: Tensor  # (B, 5 + n, 2), x and y of their upper left corners; digits first


class MegapixelDigits:
    """Five digits, three of one class, in a black image of any side, over patches of crossing strokes.

    The answers: *majority*, the class that occurs three times; *max*, the largest digit; *top*, the uppermost one;
    *multi*, which digits occur. Labels are rows of 40 zeros and ones.

    Args:
        root: the folder of MNIST's files, packed or not; None: scikit-learn's 8 × 8 digits, scaled up.
        split: ``"train"`` or ``"val"``, whose digits come from MNIST's test set.
        side: of the image in pixels, 168 or more; 1500, 3000 and 6000 are the usual ones.
        length: number of images; 5,000 for training and 1,000 for validation if not given.
        noise: patches of crossing strokes.
        endless: other training images in every epoch instead of the same ones.
        scatter: the same digits and strokes in every epoch, at other places, where *top* may have another answer.
        augment: strength, 0 to 1, of distortions of the training images that leave all answers as they are: every
            patch, digit or noise, is rotated, scaled and sheared a little, and all of them are moved together, across
            with wrap-around and up or down as far as there is room.
        seed: whole number, 0 or more.

    Example:
        >>> digits = MegapixelDigits(side=200, noise=3)
        >>> image, label, boxes, name = digits[7]
        >>> image.size, label.shape, boxes.shape
        ((200, 200), (40,), (5, 4))
    """

    def __init__(
        self,
        root: str | Path | None = None,
        split: str = "train",
        side: int = 1500,
        length: int | None = None,
        noise: int = 50,
        endless: bool = False,
        scatter: bool = False,
        augment: float = 0.0,
        seed: int = 0,
    ) -> None:
        if split not in LENGTHS:
            raise ValueError(f"split must be one of {list(LENGTHS)}, got {split!r}")
        limits = {"side": (side, SMALLEST), "length": (LENGTHS[split] if length is None else length, 1)}
        for name, (value, least) in (limits | {"noise": (noise, 0), "seed": (seed, 0)}).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of {least} or more, got {value!r}")
        for name, value in (("endless", endless), ("scatter", scatter)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, got {value!r}")
        if isinstance(augment, bool) or not isinstance(augment, int | float) or not 0 <= augment <= 1:
            raise ValueError(f"augment must be a number from 0 to 1, got {augment!r}")
        self.split, self.side, self.noise, self.seed = split, side, noise, seed
        self.length = limits["length"][0]
        train = split == "train"
        self.endless, self.scatter, self.augment = endless and train, scatter and train, float(augment) * train
        self.note = STAND_IN if root is None else ""
        self.tasks = Tasks([Task(name, CLASSES, name == "multi") for name in ("majority", "max", "top", "multi")])
        self.classes = self.tasks.names
        pixels, labels = read_digits(root, split)
        order = np.argsort(labels, kind="stable")
        strokes = draw_strokes(keyed_generator("strokes", seed, split), STROKES)
        self._tables = {
            torch.device("cpu"): tuple(
                torch.from_numpy(table)
                for table in (pixels[order], strokes, labels[order].astype(np.int64), np.bincount(labels, minlength=10))
            )
        }
        self._fixed: dict[torch.device, Scenes] = {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not -self.length <= index < self.length:
            raise IndexError(f"index {index} is outside a dataset of {self.length} samples")
        index = range(self.length)[index]
        image, label, boxes = (part[0].numpy() for part in self.compose(torch.tensor([index])))
        grey = Image.fromarray(image[0]).convert("RGB")
        return Sample(grey, label, boxes, f"megapixel-digits/{self.split}/{index}")

    def compose(self, indices: Tensor, epoch: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Images on the device of the indices: pixels, answers and the boxes of the digits.

        Args:
            indices: (B,) of images.
            epoch: which view of an augmented image, or which images if they are endless.

        Returns:
            (B, 1, side, side) uint8, (B, 40) uint8 and (B, 5, 4) float32.
        """
        pixels, strokes, labels, _ = self._on(indices.device)
        scenes = self.scenes(indices, epoch)
        patches = torch.cat([pixels[scenes.digits], strokes[scenes.strokes]], 1)  # (B, 5 + n, 28, 28)
        corners = scenes.corners
        if self.augment:
            key = view_key(self.seed + 1, epoch).to(indices.device)
            draws = keyed_uniforms(key, indices, 2 + 5 * patches.shape[1])
            corners = moved(corners, draws[:, :2], self.side)
            patches = warped(patches, draws[:, 2:].unflatten(1, (-1, 5)), self.augment)
        images = paint(patches, corners, self.side)
        boxes = torch.cat([corners[:, :DIGITS], corners[:, :DIGITS] + SIDE], -1).float()
        return images, answers(labels[scenes.digits], corners[:, :DIGITS]), boxes

    def scenes(self, indices: Tensor, epoch: int = 0) -> Scenes:
        """What the images show, before augmentation: a function of seed, split and index, of the epoch if endless."""
        if self.endless:
            return self._draw_scenes(indices, epoch)
        if indices.device not in self._fixed:
            every = torch.arange(self.length, device=indices.device).split(1000)
            parts = [self._draw_scenes(some, 0) for some in every]
            self._fixed[indices.device] = Scenes(*(torch.cat(column) for column in zip(*parts, strict=True)))
        found = Scenes(*(table[indices] for table in self._fixed[indices.device]))
        return found._replace(corners=self._draw_corners(indices, epoch)) if self.scatter else found

    def _key(self, epoch: int, device: torch.device) -> Tensor:
        return mixed_bits(view_key(self.seed, epoch) + list(LENGTHS).index(self.split)).to(device)

    def _draw_scenes(self, indices: Tensor, epoch: int) -> Scenes:
        counts = self._on(indices.device)[3]
        columns = [1 + 2 + DIGITS, self.noise]
        draws, which = keyed_uniforms(self._key(epoch, indices.device), indices, sum(columns)).split(columns, 1)
        major = below(draws[:, :1], 10)
        other = (major + 1 + below(draws[:, 1:3], 9)) % 10
        classes = torch.cat([major.expand(-1, SAME), other], 1)  # (B, 5)
        digits = counts.cumsum(0)[classes] - counts[classes] + below(draws[:, 3:], counts[classes])
        return Scenes(digits, below(which, STROKES), self._draw_corners(indices, epoch))

    def _draw_corners(self, indices: Tensor, epoch: int) -> Tensor:
        columns = [2 * DIGITS * ATTEMPTS, 2 * self.noise]
        key = mixed_bits(self._key(epoch, indices.device))
        tries, where = (
            below(u, self.side - SIDE + 1) for u in keyed_uniforms(key, indices, sum(columns)).split(columns, 1)
        )
        return torch.cat([place_apart(tries.view(-1, DIGITS, ATTEMPTS, 2)), where.view(-1, self.noise, 2)], 1)

    def _on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Digits and strokes (n, 28, 28), labels (n,) in order, and how many digits each class has, on a device."""
        if device not in self._tables:
            self._tables[device] = tuple(table.to(device) for table in self._tables[torch.device("cpu")])
        return self._tables[device]


def below(uniforms: Tensor, bound: Tensor | int) -> Tensor:
    """Uniform numbers in [0, 1) as whole numbers from 0 to below a bound."""
    return (uniforms * bound).long().clamp(max=bound - 1)  # rounding may reach the bound


def place_apart(tries: Tensor) -> Tensor:
    """The first of several attempts (B, n, T, 2) at each place that leaves all patches apart: (B, n, 2)."""
    chosen = tries[:, :1, 0]
    for place in range(1, tries.shape[1]):
        gaps = (tries[:, place, :, None] - chosen[:, None]).abs().amax(-1)  # (B, T, placed)
        first = (gaps >= SIDE).all(-1).int().argmax(-1)
        own = tries[:, place].gather(1, first[:, None, None].expand(-1, 1, 2))
        chosen = torch.cat([chosen, own], 1)
    return chosen


def moved(corners: Tensor, draws: Tensor, side: int) -> Tensor:
    """Corners (B, n, 2) moved together: anywhere across, with wrap-around, and up or down where there is room."""
    room = side - SIDE + 1
    x, y = corners.unbind(-1)
    low, high = -y.amin(1, keepdim=True), room - 1 - y.amax(1, keepdim=True)
    x = (x + below(draws[:, :1], room)) % room
    return torch.stack([x, y + low + below(draws[:, 1:], high - low + 1)], -1)


def warped(patches: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Patches (B, n, h, w) rotated, scaled and sheared about their middles by random amounts, draws (B, n, 5)."""
    turn, wide, high, lean, _ = (strength * (2 * draws.flatten(0, 1) - 1)).unbind(-1)
    cos, sin = (WARP[0] * turn).cos(), (WARP[0] * turn).sin()
    wide, high, lean = 1 + WARP[1] * wide, 1 + WARP[1] * high, WARP[2] * lean
    zero = torch.zeros_like(cos)
    theta = torch.stack([cos * wide, lean * cos - sin * high, zero, sin * wide, lean * sin + cos * high, zero], -1)
    flat = patches.flatten(0, 1).unsqueeze(1).float()
    grid = F.affine_grid(theta.view(-1, 2, 3), list(flat.shape), align_corners=False)
    return F.grid_sample(flat, grid, align_corners=False).round().to(torch.uint8).view_as(patches)


def paint(patches: Tensor, corners: Tensor, side: int) -> Tensor:
    """Patches (B, n, 28, 28) in black images (B, 1, side, side): digits over strokes, the brighter of two strokes."""
    batch = len(corners)
    images = torch.zeros(batch * side * side, dtype=torch.uint8, device=patches.device)
    rows = torch.arange(SIDE, device=patches.device)
    inner = rows[:, None] * side + rows  # (28, 28)
    start = torch.arange(batch, device=patches.device)[:, None] * side**2 + corners[..., 1] * side + corners[..., 0]
    places = start[..., None, None] + inner  # (B, n, 28, 28)
    images.scatter_reduce_(0, places[:, DIGITS:].flatten(), patches[:, DIGITS:].flatten(), "amax")
    images.index_fill_(0, places[:, :DIGITS].flatten(), 0)
    images.scatter_reduce_(0, places[:, :DIGITS].flatten(), patches[:, :DIGITS].flatten(), "amax")
    return images.view(batch, 1, side, side)


def answers(classes: Tensor, corners: Tensor) -> Tensor:
    """Classes (B, 5) and corners (B, 5, 2) of the digits as rows of zeros and ones, (B, 40) uint8."""
    shown = F.one_hot(classes, 10)  # (B, 5, 10)
    counts = shown.sum(1)
    height = corners[..., 1] * corners.amax().add(1) + corners[..., 0]  # the leftmost of equals
    top = classes.gather(1, height.argmin(1, keepdim=True))[:, 0]
    single = [F.one_hot(best, 10) for best in (counts.argmax(1), classes.amax(1), top)]
    return torch.cat([*single, counts.clamp(max=1)], 1).to(torch.uint8)


def draw_strokes(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Patches (count, 28, 28) of two bright lines that cross: slopes ± tan(u·π/2.5), brightness 0.8 to 1."""
    rows = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    patches = np.zeros((count, SIDE, SIDE), np.float32)
    centre = rng.uniform(-4, 4, (2, count, 1, 1)).astype(np.float32)
    for sign in (1, -1):
        slope = sign * np.tan(rng.random((count, 1, 1)) * np.pi / 2.5).astype(np.float32)
        distance = np.abs(rows[:, None] - centre[0] - slope * (rows - centre[1])) / np.sqrt(1 + slope**2)
        light = rng.uniform(0.8, 1.0, (count, 1, 1)).astype(np.float32)
        patches = np.maximum(patches, light * np.clip(1.5 - distance, 0, 1))
    return (255 * patches).round().astype(np.uint8)
