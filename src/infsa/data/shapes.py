"""A procedural dataset: one textured outline in clutter, drawn on the fly, with its exact box.

The class is the pair of an outline and a texture. Clutter shows both without saying anything about the class: the
background carries textures without an outline, the distractors are outlines without a texture.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .drawing import OUTLINES, REACH, TEXTURES, Mask, Plane, direction, outline_mask, texture_mask
from .random_keys import keyed_generator
from .sample import BoxArray, Sample

DISTRACTORS = (3, 6)  # from, to (exclusive)
RADIUS = (0.2, 0.38)  # of the object, in multiples of the size
CONTRAST = 0.2  # of the background's textures; the object's have 1
NOISE = (0.02, 0.15)  # weight of triangular noise of ±255
LEAN = 0.4  # largest tangent of the angle to the upright, 22°

LENGTHS = {"train": 50_000, "val": 5_000}
Colour = NDArray[np.float32]  # (3,), 0 to 255


class Drawing(NamedTuple):
    """Pixels (size, size, 3) uint8 and the mask (size, size) of the object's visible pixels."""

    pixels: NDArray[np.uint8]
    mask: Mask


class Shapes:
    """Textured outlines on cluttered backgrounds: image, class and exact box, from (seed, split, index) alone.

    Args:
        size: side of the square images, 32 or more.
        split: ``"train"`` or ``"val"``: disjoint streams of random numbers.
        length: number of samples; 50,000 for training and 5,000 for validation if not given. A sample does not
            depend on it.
        classes: 2 to 48; the first outlines and textures, about as many of each, are combined.
        seed: whole number, 0 or more.

    Example:
        >>> shapes = Shapes(size=64, split="train", classes=10)
        >>> image, label, boxes, name = shapes[7]
        >>> shapes.classes[label], image.size, boxes.shape
        ('ringed cross', (64, 64), (1, 4))
    """

    def __init__(
        self, size: int = 64, split: str = "train", length: int | None = None, classes: int = 10, seed: int = 0
    ) -> None:
        most = len(OUTLINES) * len(TEXTURES)
        if size < 32:
            raise ValueError(f"size must be 32 pixels or more, got {size}")
        if split not in LENGTHS:
            raise ValueError(f"split must be one of {list(LENGTHS)}, got {split!r}")
        if not 2 <= classes <= most:
            raise ValueError(f"classes must be from 2 to {most}, got {classes}")
        if length is not None and length < 1:
            raise ValueError(f"length must be 1 or more, got {length}")
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, got {seed}")
        self.size, self.split, self.seed = size, split, seed
        self.length = LENGTHS[split] if length is None else length
        textures = min(math.ceil(math.sqrt(classes)), len(TEXTURES))
        self._pairs = [(outline, texture) for outline in OUTLINES for texture in list(TEXTURES)[:textures]][:classes]
        self.classes = [f"{texture} {outline}" for outline, texture in self._pairs]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        pixels, mask = self.draw(index)
        index = range(self.length)[index]
        name = f"shapes/{self.split}/{index}"
        return Sample(Image.fromarray(pixels), index % len(self.classes), box_of_mask(mask), name)

    def draw(self, index: int) -> Drawing:
        """The pixels of a sample and the mask of its object.

        Example:
            >>> Shapes(size=64).draw(0).mask.shape
            (64, 64)
        """
        if not -self.length <= index < self.length:
            raise IndexError(f"index {index} is outside a dataset of {self.length} samples")
        index = range(self.length)[index]
        scene = _Scene(self.size, keyed_generator("shapes", self.seed, self.split, self.size, index))
        return scene.compose(*self._pairs[index % len(self._pairs)])


def box_of_mask(mask: Mask) -> BoxArray:
    """The smallest box around the True pixels of a mask (h, w), as (1, 4), or (0, 4) if there are none."""
    columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
    if not len(columns):
        return np.zeros((0, 4), np.float32)
    return np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float32)


class _Scene:
    """One image in the making: a canvas, pixel coordinates and a source of random numbers."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.x = np.arange(size, dtype=np.float32)[None, :] + 0.5  # (1, size)
        self.y = self.x.T  # (size, 1)
        self.canvas = np.empty((size, size, 3), np.float32)

    def compose(self, outline: str, texture: str) -> Drawing:
        """Background, distractors, the object, one distractor over it, light and noise."""
        self.background()
        for _ in range(int(self.rng.integers(*DISTRACTORS))):
            self.distractor(self.between(0.07, 0.18))
        mask = self.subject(outline, texture)
        window, hidden = self.distractor(self.between(0.05, 0.11))  # smaller than any object: never hides it whole
        mask[window] &= ~hidden
        return Drawing(self.developed(), mask)

    def background(self) -> None:
        """Two textures of low contrast, divided by a line."""
        x, y = self.x - self.between(0, 1) * self.size, self.y - self.between(0, 1) * self.size
        self.canvas[:] = self.textured(self.any_of(TEXTURES), x, y, contrast=CONTRAST)
        cos, sin = direction(self.rng)
        side = x * cos + y * sin > 0
        self.canvas[side] = self.textured(self.any_of(TEXTURES), x, y, contrast=CONTRAST)[side]

    def distractor(self, radius: float) -> tuple[tuple[slice, slice], Mask]:
        """A plain outline anywhere; radius in multiples of the size. Returns its window and mask."""
        window, x, y = self.place(radius, margin=0.0)
        inside = outline_mask(self.any_of(OUTLINES), x, y, direction(self.rng), radius * self.size)
        self.canvas[window][inside] = self.colour()
        return window, inside

    def subject(self, outline: str, texture: str) -> Mask:
        """The textured outline that gives the image its class; returns its mask (size, size)."""
        radius = self.between(*RADIUS)
        window, x, y = self.place(radius, margin=0.8 * radius)
        inside = outline_mask(outline, x, y, self.upright(), radius * self.size)
        self.canvas[window][inside] = self.textured(texture, x, y, contrast=1.0)[inside]
        mask = np.zeros((self.size, self.size), np.bool_)
        mask[window] = inside
        return mask

    def developed(self) -> NDArray[np.uint8]:
        """The canvas under uneven light, with noise, as bytes (size, size, 3)."""
        cos, sin = direction(self.rng)
        slope = self.between(0, 0.6) / self.size
        light = self.between(0.7, 1.1) + slope * ((self.x - self.size / 2) * cos + (self.y - self.size / 2) * sin)
        grain = self.rng.integers(0, 256, (2, self.size, self.size, 3), np.uint8).astype(np.float32)
        lit = self.canvas * light[..., None] + self.between(*NOISE) * (grain[0] - grain[1])
        return np.clip(lit, 0, 255).astype(np.uint8)

    def place(self, radius: float, margin: float) -> tuple[tuple[slice, slice], Plane, Plane]:
        """A random centre: the window around it, and coordinates x (1, w), y (h, 1) from the centre, in pixels."""
        cx, cy = (self.between(margin, 1 - margin) * self.size for _ in range(2))
        reach = REACH * radius * self.size
        columns = slice(max(math.floor(cx - reach), 0), math.ceil(cx + reach))
        rows = slice(max(math.floor(cy - reach), 0), math.ceil(cy + reach))
        return (rows, columns), self.x[:, columns] - cx, self.y[rows] - cy

    def textured(self, texture: str, x: Plane, y: Plane, contrast: float) -> NDArray[np.float32]:
        """A texture in two random colours (h, w, 3); contrast 1 keeps them apart by 0.3 to 0.5 in every channel."""
        period = self.between(5, 9) * self.size / 64
        dark, step = self.rng.random((2, 3), np.float32)
        light = 0.5 * dark + contrast * (0.3 + 0.2 * step)
        return np.where(texture_mask(texture, x, y, self.upright(), period)[..., None], light, 0.5 * dark) * 255

    def upright(self) -> tuple[float, float]:
        """A unit vector that leans a little to either side."""
        y = self.between(-LEAN, LEAN)
        length = math.sqrt(1 + y * y)
        return 1 / length, y / length

    def colour(self) -> Colour:
        return self.rng.random(3, np.float32) * 255

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self.rng.random())

    def any_of(self, names: Iterable[str]) -> str:
        choices = list(names)
        return choices[int(self.rng.integers(len(choices)))]
