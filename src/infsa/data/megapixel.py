"""Megapixel digits: a large black image with five small digits among fifty patches of noise, and four questions.

After Katharopoulos & Fleuret (2019) and Bergner et al. (2023).
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .canvas import CLASSES, DIGITS, DigitCanvas, apart, below, paint, squares
from .mnist import SIDE
from .tasks import Task, Tasks

SAME = 3  # of one class


class MegapixelDigits(DigitCanvas):
    """Five digits, three of one class, in a black image of any side, over patches of crossing strokes.

    The answers: *majority*, the class that occurs three times; *max*, the largest digit; *top*, the uppermost one;
    *multi*, which digits occur. Labels are rows of 40 zeros and ones.

    Args:
        root: the folder of MNIST's files, packed or not; None: scikit-learn's 8 × 8 digits, scaled up.
        split: ``"train"`` or ``"val"``, whose digits come from MNIST's test set.
        side: of the image in pixels, 168 or more; 1500 if not given, 3000 and 6000 are usual too.
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

    name = "megapixel-digits"
    tasks = Tasks([Task(name, CLASSES, name == "multi") for name in ("majority", "max", "top", "multi")])
    usual: ClassVar = {"side": 1500, "train": 5_000, "val": 1_000}
    smallest = 6 * SIDE  # four digits block at most three fifths of the places for the fifth
    attempts = (48, 2)
    chosen = 3

    def _draw_classes(self, draws: Tensor) -> Tensor:
        major = below(draws[:, :1], 10)
        other = (major + 1 + below(draws[:, 1:], 9)) % 10
        return torch.cat([major.expand(-1, SAME), other], 1)

    def _moved(self, corners: Tensor, draws: Tensor) -> Tensor:
        return moved(corners, draws, self.side)

    def _answers(self, classes: Tensor, boxes: Tensor) -> Tensor:
        return answers(classes, boxes[..., :2])

    def _paint(self, patches: Tensor, corners: Tensor, boxes: Tensor) -> Tensor:
        return paint(patches, corners, self.side, DIGITS)


def moved(corners: Tensor, draws: Tensor, side: int) -> Tensor:
    """Corners (B, n, 2) moved together: up or down where there is room, and anywhere across, with wrap-around.

    Images stay where they are across if the wrap-around would make digits overlap.
    """
    room = side - SIDE + 1
    x, y = corners.unbind(-1)
    low, high = -y.amin(1, keepdim=True), room - 1 - y.amax(1, keepdim=True)
    across = (x + below(draws[:, :1], room)) % room
    digits = torch.stack([across, y], -1)[:, :DIGITS]
    boxes = squares(digits, torch.full_like(digits[..., 0], SIDE))
    pairs = apart(boxes[:, :, None], boxes[:, None]).flatten(1).sum(1, keepdim=True)
    x = torch.where(pairs == DIGITS * (DIGITS - 1), across, x)
    return torch.stack([x, y + low + below(draws[:, 1:], high - low + 1)], -1)


def answers(classes: Tensor, corners: Tensor) -> Tensor:
    """Classes (B, 5) and corners (B, 5, 2) of the digits as rows of zeros and ones, (B, 40) uint8."""
    shown = F.one_hot(classes, 10)  # (B, 5, 10)
    counts = shown.sum(1)
    height = corners[..., 1] * corners.amax().add(1) + corners[..., 0]  # the leftmost of equals
    top = classes.gather(1, height.argmin(1, keepdim=True))[:, 0]
    single = [F.one_hot(best, 10) for best in (counts.argmax(1), classes.amax(1), top)]
    return torch.cat([*single, counts.clamp(max=1)], 1).to(torch.uint8)
