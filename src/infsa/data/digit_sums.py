"""Digit sums: a large black image with three to five digits of very different size, and their sum.

After UltraMNIST (Gupta et al., 2022): the same sums, all equally likely, from 3 to 5 digits, every set of digits with
that sum equally likely. Its digits are 14 to 2,100 pixels large in images of 4,000, the extremes more often.
"""

from itertools import combinations_with_replacement
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .canvas import DIGITS, DigitCanvas, below, paint
from .mnist import SIDE
from .tasks import Task, Tasks

FEWEST = 3  # digits
SUMS = 28  # from 0
TINY = 14  # pixels, the smallest digit
STEPS = 256  # of the sizes


class DigitSums(DigitCanvas):
    """Three to five digits in a black image of any side, over patches of crossing strokes; the class is their sum.

    Sums go from 0 to 27 and are equally likely. The side of a digit is drawn from 14 pixels to a third of the image's,
    evenly on a logarithmic scale, and drawn again with its place until no two digits overlap. Boxes are the squares of
    the digits, with MNIST's margins.

    Args:
        root: the folder of MNIST's files, packed or not; None: scikit-learn's 8 × 8 digits, scaled up.
        split: ``"train"`` or ``"val"``, whose digits come from MNIST's test set.
        side: of the image in pixels, 224 or more; 4000 if not given.
        length: number of images; 28,000 for training and 2,800 for validation if not given.
        noise: patches of crossing strokes, 28 pixels large.
        endless: other training images in every epoch instead of the same ones.
        scatter: the same digits and strokes in every epoch of training, at other places, the digits in other sizes.
        augment: strength, 0 to 1, of distortions: every patch of a training image is rotated, scaled and sheared.
        seed: whole number, 0 or more.

    Example:
        >>> sums = DigitSums(side=300, noise=3)
        >>> image, label, boxes, name = sums[7]
        >>> image.size, 0 <= label <= 27, 3 <= len(boxes) <= 5
        ((300, 300), True, True)
    """

    name = "digit-sums"
    tasks = Tasks([Task("sum", tuple(map(str, range(SUMS))))])
    usual: ClassVar = {"side": 4000, "train": 28_000, "val": 2_800}
    smallest = 8 * SIDE  # four of the largest digits block at most three quarters of the places for the smallest
    attempts = (128, 3)
    chosen = 2 + DIGITS

    def _more_tables(self) -> dict[str, NDArray[Any]]:
        """Sets of digits by their sum (m, 5), -1 for none; how many each sum has (28,); the sizes."""
        every = [own for n in range(FEWEST, DIGITS + 1) for own in combinations_with_replacement(range(10), n)]
        sets = sorted((own for own in every if sum(own) < SUMS), key=sum)
        sizes = TINY * (self.side // 3 / TINY) ** np.linspace(0, 1, STEPS)
        return {
            "sets": np.array([own + (-1,) * (DIGITS - len(own)) for own in sets]),
            "ways": np.bincount([sum(own) for own in sets], minlength=SUMS),
            "sizes": sizes.round().astype(np.int64),
        }

    def _draw_classes(self, draws: Tensor) -> Tensor:
        tables = self._on(draws.device)
        wanted = below(draws[:, 0], SUMS)
        ways = tables["ways"][wanted]
        sets = tables["sets"][tables["ways"].cumsum(0)[wanted] - ways + below(draws[:, 1], ways)]
        return sets.gather(1, draws[:, 2:].argsort(dim=1, stable=True))  # the first placed are larger on average

    def _sizes(self, draws: Tensor) -> Tensor:
        return self._on(draws.device)["sizes"][below(draws[..., 2], STEPS)]

    def _answers(self, classes: Tensor, boxes: Tensor) -> Tensor:
        return (classes * (boxes[..., 2] > 0)).sum(1)

    def _paint(self, patches: Tensor, corners: Tensor, boxes: Tensor) -> Tensor:
        images = paint(patches[:, DIGITS:], corners[:, DIGITS:], self.side, 0)
        return enlarged_over(images, patches[:, :DIGITS], boxes)


def enlarged_over(images: Tensor, patches: Tensor, boxes: Tensor) -> Tensor:
    """Images (B, 1, s, s) with patches (B, n, h, w) over them, nearest pixels, as large as their boxes (B, n, 4)."""
    place = torch.arange(images.shape[-1], device=images.device)
    row = torch.arange(len(images), device=images.device)[:, None, None]

    def along(low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Which pixels (B, s) lie in a box, and which of the patch they show."""
        shift, size = place - low[:, None], (high - low)[:, None]
        source = shift.mul(count).div(size.clamp(min=1), rounding_mode="floor")
        return (shift >= 0) & (shift < size), source.clamp(0, count - 1)

    for patch, (x0, y0, x1, y1) in zip(patches.unbind(1), (box.unbind(1) for box in boxes.unbind(1)), strict=True):
        (across, columns), (down, rows) = along(x0, x1, patch.shape[2]), along(y0, y1, patch.shape[1])
        shown = patch[row, rows[:, :, None], columns[:, None]]  # (B, s, s)
        images = torch.where((down[:, :, None] & across[:, None])[:, None], shown[:, None], images)
    return images
