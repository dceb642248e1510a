"""Patches removed in the order of a map, and what becomes of the class: the curves, and the picture at every level."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data import keyed_generator
from ..evaluate import area_under, class_names, level_counts, removal_curves, removal_ranks
from ..evaluate.fills import pixels
from .look import Settings, explained, model_input
from .model_cache import borrow

LEVELS = 20
ORDERS = ("most relevant first (MoRF)", "least relevant first (LeRF)", "random order")
GREY = (124, 116, 104)  # the mean colour, which is what removed patches become for the model


@dataclass(frozen=True)
class Removal:
    """The probability of the top prediction as patches are removed, in three orders."""

    label: str
    curves: Tensor  # (3, LEVELS + 1), by ORDERS
    ranks: Tensor  # (N,): the place of every patch, most relevant first
    grid: tuple[int, int]
    seen: Image.Image  # at the size that the model sees

    @property
    def counts(self) -> Tensor:
        """How many patches are gone at each level, (LEVELS + 1,)."""
        return level_counts(self.ranks.numel(), LEVELS)

    @property
    def areas(self) -> list[float]:
        """The area under each curve: small is good for MoRF, large for LeRF."""
        return area_under(self.curves, self.ranks.numel()).tolist()

    def masked(self, level: int) -> Image.Image:
        """The picture without the patches that are gone at a level, most relevant first."""
        rows, columns = self.grid
        patch = (self.seen.height // rows, self.seen.width // columns)
        gone = (self.ranks < self.counts[level]).reshape(1, rows, columns)
        mask = Image.fromarray((pixels(gone, patch)[0, 0].numpy() * 255).astype(np.uint8))
        return Image.composite(Image.new("RGB", self.seen.size, GREY), self.seen, mask)


def remove(image: Image.Image, settings: Settings) -> Removal:
    """Remove the patches of a picture in the order of the map that the settings give.

    Example:
        >>> picture = infsa.app.read_picture(infsa.app.examples()["Portrait"])
        >>> remove(picture, Settings()).curves.shape
        torch.Size([3, 21])
    """
    found = explained(image, settings)
    label = found.predictions[0][0]
    grid = (found.map.shape[0], found.map.shape[1])
    patches = grid[0] * grid[1]
    chance = torch.from_numpy(keyed_generator("app", "removal").random((2, 1, patches)))
    ranks = removal_ranks(torch.from_numpy(found.map).reshape(1, -1), chance[0])
    shuffled = removal_ranks(chance[1], chance[0])
    with borrow(settings.mechanism) as model:
        place = torch.tensor([class_names(model).index(label)])
        batch = model_input(model, image, found.size)
        orders, owner = torch.cat([ranks, patches - 1 - ranks, shuffled]), torch.zeros(3, dtype=torch.long)
        curves = removal_curves(model, batch, orders, owner, place, grid=grid, levels=LEVELS)
    return Removal(label, curves, ranks[0], grid, image.resize(found.size, Image.Resampling.BICUBIC))
