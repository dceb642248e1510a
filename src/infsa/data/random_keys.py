"""Random numbers that depend on a key and on nothing else."""

import hashlib
import operator
from typing import SupportsIndex

import numpy as np


def keyed_generator(*key: str | SupportsIndex) -> np.random.Generator:
    """A generator whose stream is a function of the key: words and whole numbers.

    No global state is read or changed, so workers, ranks, restarts and the order of the calls leave it as it is.

    Example:
        >>> keyed_generator("crop", 0, 3, 17).random() == keyed_generator("crop", 0, 3, 17).random()
        True
    """
    parts = [part if isinstance(part, str) else operator.index(part) for part in key]
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
