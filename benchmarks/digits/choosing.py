"""Digits to choose settings with: a part of the training digits stands in for the test's, which stay unseen."""

import struct
from pathlib import Path

import numpy as np

from infsa.data.mnist import SIDE, read_digits

HELD_OUT = 6  # the last sixth of the training digits: 10,000 of MNIST's


def write_choice(mnist: str, to: Path) -> None:
    """Write MNIST's training digits as a folder of MNIST whose test set is the last of them."""
    to.mkdir(parents=True, exist_ok=True)
    pixels, labels = read_digits(mnist, "train")
    held = np.arange(len(labels)) >= len(labels) - len(labels) // HELD_OUT
    for start, own in (("train", ~held), ("t10k", held)):
        count = int(own.sum())
        head = struct.pack(">4B3i", 0, 0, 8, 3, count, SIDE, SIDE)
        (to / f"{start}-images-idx3-ubyte").write_bytes(head + pixels[own].tobytes())
        (to / f"{start}-labels-idx1-ubyte").write_bytes(struct.pack(">4Bi", 0, 0, 8, 1, count) + labels[own].tobytes())
