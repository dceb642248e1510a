"""What every dataset of this package returns, and what it promises."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

BoxArray = NDArray[np.float32]  # (n, 4): x0, y0, x1, y1 in pixels, x1 and y1 exclusive


class Sample(NamedTuple):
    """An image, its class, the boxes of its objects, and its name."""

    image: Image.Image  # RGB
    label: int | NDArray[np.uint8]  # its class, or the answers of all tasks, (C,)
    boxes: BoxArray  # (n, 4), possibly n = 0
    name: str


class ImageDataset(Protocol):
    """A map-style dataset: ``len(dataset)`` samples, each read by its index, and the names of the classes."""

    classes: list[str]  # of a dataset with several tasks, the names of all outputs; it has ``tasks`` as well

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """The sample at ``index``."""
        ...
