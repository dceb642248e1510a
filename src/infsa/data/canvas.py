"""Large black images with a few digits over patches of noise: what the datasets of digits have in common.

Images are composed on the device that wants them, from patches of 28 × 28 pixels: a whole image never passes through
the host.
"""

import math
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
from .tasks import Tasks

SPLITS = ("train", "val")
DIGITS = 5  # at most
STROKES = 4_096  # different patches of noise in a split
CLASSES = tuple("0123456789")
WARP = (math.radians(15), 0.15, 0.15)  # largest rotation, change of scale and shear of a patch


class Scenes(NamedTuple):
    """What to draw in each of B images."""

    digits: Tensor  # (B, 5), indices of the digits
    strokes: Tensor  # (B, n), indices of the patches of noise
    corners: Tensor  # (B, 5 + n, 2), x and y of their upper left corners; digits first
    sizes: Tensor  # (B, 5), sides of the digits in pixels; 0: no digit


class DigitCanvas:
    """The images of a split as functions of seed and index; a dataset says which digits, of which size, and what of.

    Args:
        root: the folder of MNIST's files, packed or not; None: scikit-learn's 8 × 8 digits, scaled up.
        split: ``"train"`` or ``"val"``, whose digits come from MNIST's test set.
        side: of the image in pixels.
        length: number of images.
        noise: patches of crossing strokes.
        endless: other training images in every epoch instead of the same ones.
        scatter: the same digits and strokes in every epoch of training, at other places.
        augment: strength, 0 to 1, of distortions of the training images that leave all answers as they are.
        seed: whole number, 0 or more.
    """

    name: ClassVar[str]
    tasks: ClassVar[Tasks]
    usual: ClassVar[dict[str, int]]  # side, and number of images of each split
    smallest: ClassVar[int]  # side
    attempts: ClassVar[tuple[int, int]]  # at a place that is free, and numbers drawn for each
    chosen: ClassVar[int]  # numbers drawn for the classes of the digits

    def __init__(
        self,
        root: str | Path | None = None,
        split: str = "train",
        side: int | None = None,
        length: int | None = None,
        noise: int = 50,
        endless: bool = False,
        scatter: bool = False,
        augment: float = 0.0,
        seed: int = 0,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split must be one of {list(SPLITS)}, got {split!r}")
        self.split, self.noise, self.seed = split, noise, seed
        self.side = self.usual["side"] if side is None else side
        self.length = self.usual[split] if length is None else length
        limits = {"side": (self.side, self.smallest), "length": (self.length, 1)}
        for name, (value, least) in (limits | {"noise": (noise, 0), "seed": (seed, 0)}).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of {least} or more, got {value!r}")
        for name, value in (("endless", endless), ("scatter", scatter)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, got {value!r}")
        if isinstance(augment, bool) or not isinstance(augment, int | float) or not 0 <= augment <= 1:
            raise ValueError(f"augment must be a number from 0 to 1, got {augment!r}")
        train = split == "train"
        self.endless, self.scatter, self.augment = endless and train, scatter and train, float(augment) * train
        self.note = STAND_IN if root is None else ""
        self.classes = self.tasks.names
        pixels, labels = read_digits(root, split)
        order = np.argsort(labels, kind="stable")
        tables = {
            "digits": pixels[order],
            "labels": labels[order].astype(np.int64),
            "counts": np.bincount(labels, minlength=10),
            "strokes": draw_strokes(keyed_generator("strokes", seed, split), STROKES),
            **self._more_tables(),
        }
        self._tables = {torch.device("cpu"): {name: torch.from_numpy(table) for name, table in tables.items()}}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not -self.length <= index < self.length:
            raise IndexError(f"index {index} is outside a dataset of {self.length} samples")
        index = range(self.length)[index]
        image, label, boxes = (part[0].numpy() for part in self.compose(torch.tensor([index])))
        grey = Image.fromarray(image[0]).convert("RGB")
        there = boxes[:, 2] > boxes[:, 0]
        return Sample(grey, label if label.ndim else int(label), boxes[there], f"{self.name}/{self.split}/{index}")

    def compose(self, indices: Tensor, epoch: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Images on the device of the indices: pixels, answers and the boxes of the digits.

        Args:
            indices: (B,) of images.
            epoch: which view of an augmented image, or which images if they are endless.

        Returns:
            (B, 1, side, side) uint8; (B, C) uint8, or (B,) int64 for a single task; and (B, 5, 4) float32, where a box
            without area stands for no digit.
        """
        tables, scenes = self._on(indices.device), self.scenes(indices, epoch)
        patches = torch.cat([tables["digits"][scenes.digits], tables["strokes"][scenes.strokes]], 1)
        if self.augment:  # patches (B, 5 + n, 28, 28)
            key = view_key(self.seed + 1, epoch).to(indices.device)
            draws = keyed_uniforms(key, indices, 2 + 5 * patches.shape[1])
            scenes = scenes._replace(corners=self._moved(scenes.corners, draws[:, :2]))
            patches = warped(patches, draws[:, 2:].unflatten(1, (-1, 5)), self.augment)
        boxes = squares(scenes.corners[:, :DIGITS], scenes.sizes)
        answers = self._answers(tables["labels"][scenes.digits], boxes)
        return self._paint(patches, scenes.corners, boxes), answers, boxes.float()

    def scenes(self, indices: Tensor, epoch: int = 0) -> Scenes:
        """What the images show, before augmentation: a function of seed, split and index, of the epoch if endless."""
        counts = self._on(indices.device)["counts"]
        columns = [self.chosen, DIGITS, self.noise]
        uniforms = keyed_uniforms(self._key(epoch * self.endless, indices.device), indices, sum(columns))
        draws, own, which = uniforms.split(columns, 1)
        classes = self._draw_classes(draws)  # (B, 5), -1: no digit
        shown = classes.clamp(min=0)
        digits = counts.cumsum(0)[shown] - counts[shown] + below(own, counts[shown])
        places = self._draw_places(indices, epoch * (self.endless or self.scatter), classes >= 0)
        return Scenes(digits, below(which, STROKES), *places)

    def _key(self, epoch: int, device: torch.device) -> Tensor:
        return mixed_bits(view_key(self.seed, epoch) + SPLITS.index(self.split)).to(device)

    def _draw_places(self, indices: Tensor, epoch: int, used: Tensor) -> tuple[Tensor, Tensor]:
        """Corners (B, 5 + n, 2) of digits and strokes, and the sizes (B, 5) of the digits that are used (B, 5)."""
        tries, each = self.attempts
        columns = [each * DIGITS * tries, 2 * self.noise]
        uniforms = keyed_uniforms(mixed_bits(self._key(epoch, indices.device)), indices, sum(columns))
        drawn, where = uniforms.split(columns, 1)
        drawn = drawn.view(-1, DIGITS, tries, each)
        sizes = self._sizes(drawn)  # (B, 5, T)
        places = squares(below(drawn[..., :2], self.side - sizes[..., None] + 1), sizes)
        boxes = place_apart(places * used[..., None, None])
        strokes = below(where, self.side - SIDE + 1).unflatten(1, (self.noise, 2))
        return torch.cat([boxes[..., :2], strokes], 1), boxes[..., 2] - boxes[..., 0]

    def _on(self, device: torch.device) -> dict[str, Tensor]:
        """Digits and strokes (n, 28, 28), labels (n,) in order, how many digits each class has, ..., on a device."""
        if device not in self._tables:
            host = self._tables[torch.device("cpu")]
            self._tables[device] = {name: table.to(device) for name, table in host.items()}
        return self._tables[device]

    def _more_tables(self) -> dict[str, NDArray[Any]]:
        return {}

    def _draw_classes(self, draws: Tensor) -> Tensor:
        """The classes of the digits, (B, 5), from uniform numbers; -1: no digit."""
        raise NotImplementedError

    def _sizes(self, draws: Tensor) -> Tensor:
        """The sizes of the digits (B, 5, T) in every attempt, from uniform numbers."""
        return torch.full(draws.shape[:-1], SIDE, device=draws.device)

    def _moved(self, corners: Tensor, draws: Tensor) -> Tensor:
        """The corners of an augmented image."""
        return corners

    def _answers(self, classes: Tensor, boxes: Tensor) -> Tensor:
        """Answers from the classes (B, 5) and boxes (B, 5, 4) of the digits."""
        raise NotImplementedError

    def _paint(self, patches: Tensor, corners: Tensor, boxes: Tensor) -> Tensor:
        """Images (B, 1, side, side) of patches (B, 5 + n, 28, 28), digits first."""
        raise NotImplementedError


def below(uniforms: Tensor, bound: Tensor | int) -> Tensor:
    """Uniform numbers in [0, 1) as whole numbers from 0 to below a bound."""
    return (uniforms * bound).long().clamp(max=bound - 1)  # rounding may reach the bound


def squares(corners: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (..., 4) from corners (..., 2) and sizes (...)."""
    return torch.cat([corners, corners + sizes[..., None]], -1)


def apart(boxes: Tensor, others: Tensor) -> Tensor:
    """Which boxes (..., 4) do not overlap; one without area at the origin overlaps none."""
    before, after = others[..., 2:] <= boxes[..., :2], boxes[..., 2:] <= others[..., :2]
    return (before | after).any(-1)


def place_apart(tries: Tensor) -> Tensor:
    """The first of several attempts (B, n, T, 4) at each box that leaves all boxes apart: (B, n, 4)."""
    chosen = tries[:, :1, 0]
    for place in range(1, tries.shape[1]):
        free = apart(tries[:, place, :, None], chosen[:, None]).all(-1)  # (B, T)
        first = free.int().argmax(-1)
        own = tries[:, place].gather(1, first[:, None, None].expand(-1, 1, 4))
        chosen = torch.cat([chosen, own], 1)
    return chosen


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


def paint(patches: Tensor, corners: Tensor, side: int, digits: int) -> Tensor:
    """Patches (B, n, 28, 28) in black images (B, 1, side, side): the first over the others, the brighter of two."""
    batch = len(corners)
    images = torch.zeros(batch * side * side, dtype=torch.uint8, device=patches.device)
    rows = torch.arange(SIDE, device=patches.device)
    inner = rows[:, None] * side + rows  # (28, 28)
    start = torch.arange(batch, device=patches.device)[:, None] * side**2 + corners[..., 1] * side + corners[..., 0]
    places = start[..., None, None] + inner  # (B, n, 28, 28)
    images.scatter_reduce_(0, places[:, digits:].flatten(), patches[:, digits:].flatten(), "amax")
    images.index_fill_(0, places[:, :digits].flatten(), 0)
    images.scatter_reduce_(0, places[:, :digits].flatten(), patches[:, :digits].flatten(), "amax")
    return images.view(batch, 1, side, side)


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
