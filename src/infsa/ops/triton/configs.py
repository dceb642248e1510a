"""Tile sizes per kernel, GPU generation and head width: fixed, so that a first call compiles once.

``benchmarks/kernel_tuning.py`` measures the alternatives listed here; what wins is written into the tables.
"""

import functools
from dataclasses import dataclass, replace

import torch
import triton

SMALLEST_WIDTH = 16


@dataclass(frozen=True)
class Config:
    """One way to run a kernel."""

    block_q: int  # queries per tile
    block_k: int  # keys per tile
    warps: int = 4
    stages: int = 2
    tma: bool = False  # read tiles through tensor descriptors, where layout and GPU allow it
    specialize: bool = False  # loads and products in different warps
    lanes: bool = False  # forward: keep the squares' partial sums per thread instead of per row
    narrow: int = 4  # backward: tiles on the causal diagonal are so many times narrower
    registers: int | None = None  # at most so many per thread, so that more programs share a multiprocessor

    @property
    def launch(self) -> dict[str, int | bool]:
        """The options that belong to the launch, not to the kernel."""
        options: dict[str, int | bool] = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return options if self.registers is None else options | {"maxnreg": self.registers}


def padded_width(width: int) -> int:
    """The head width as tiles hold it: a power of two, at least 16."""
    return max(SMALLEST_WIDTH, triton.next_power_of_2(width))


def split_width(width: int) -> tuple[int, int]:
    """The head width as one or two powers of two: 80 is 64 + 16, 96 is 64 + 32, another is padded."""
    if 64 < width <= 96:
        return 64, 16 if width <= 80 else 32
    return padded_width(width), 0


@functools.cache
def generation(index: int | None) -> int:
    """The class of GPU, as a compute capability: 80, 89, 90 or 100; 0 for the interpreter.

    8.6, 8.9 and 12.x have 99 KiB of shared memory and are one class.
    """
    if index is None:
        return 0
    major, minor = torch.cuda.get_device_capability(index)
    if major == 12 or (major, minor) in ((8, 6), (8, 9)):
        return 89
    return {8: 80, 9: 90}.get(major, 100)


SMALL = Config(32, 32)  # the interpreter: many tiles for few tokens

# (kernel, generation) -> {padded width: config}; half precision. The generations with less shared memory
# take smaller tiles.
HALF: dict[tuple[str, int], dict[int, Config]] = {
    ("forward", 80): {
        16: Config(128, 64, 4, 3, lanes=True),
        32: Config(128, 64, 4, 3, lanes=True),
        64: Config(128, 64, 4, 3, lanes=True),
        128: Config(128, 64, 8, 2, lanes=True),
    },
    ("forward", 89): {
        16: Config(128, 64, 4, 3, lanes=True),
        32: Config(128, 64, 4, 3, lanes=True),
        64: Config(128, 64, 4, 2, lanes=True),
        128: Config(128, 32, 8, 2, lanes=True),
    },
    ("forward", 90): {
        16: Config(128, 64, 4, 4, lanes=True),
        32: Config(128, 64, 4, 3, lanes=True),
        64: Config(128, 64, 4, 3, lanes=True),
        80: Config(128, 64, 4, 3, lanes=True),
        96: Config(128, 64, 4, 3, tma=True, lanes=True),
        128: Config(128, 128, 8, 3, tma=True, lanes=True),
    },
    ("keys", 80): {
        16: Config(64, 128, 8, 2),
        32: Config(64, 128, 8, 2),
        64: Config(64, 128, 8, 2),
        128: Config(32, 64, 4, 2),
    },
    ("keys", 89): {
        16: Config(64, 64, 4, 2),
        32: Config(64, 64, 4, 2),
        64: Config(64, 64, 4, 2),
        128: Config(32, 64, 4, 1),
    },
    ("keys", 90): {
        16: Config(64, 128, 4, 4),
        32: Config(64, 64, 4, 3),
        64: Config(64, 64, 4, 3, registers=168),
        80: Config(64, 64, 4, 3),
        96: Config(64, 64, 4, 3),
        128: Config(64, 128, 8, 4, tma=True),
    },
    ("queries", 80): {
        16: Config(128, 64, 8, 2),
        32: Config(128, 64, 8, 2),
        64: Config(128, 64, 8, 2),
        128: Config(64, 32, 4, 2),
    },
    ("queries", 89): {
        16: Config(64, 64, 4, 2),
        32: Config(64, 64, 4, 2),
        64: Config(64, 64, 4, 2),
        128: Config(64, 32, 4, 1),
    },
    ("queries", 90): {
        16: Config(128, 64, 4, 4),
        32: Config(128, 64, 8, 3),
        64: Config(128, 64, 8, 3, tma=True),
        80: Config(128, 64, 8, 3, tma=True, registers=128),
        96: Config(64, 64, 4, 3, tma=True),
        128: Config(128, 64, 8, 4, tma=True),
    },
}
# Blackwell keeps a tile of scores in shared memory too: 128 x 128 would not fit
HALF |= {(kernel, 100): dict(HALF[kernel, 90]) for kernel in ("forward", "keys", "queries")}
HALF["forward", 100][128] = Config(128, 64, 4, 2, tma=True, lanes=True)
HALF["keys", 100][128] = Config(64, 128, 8, 4)
HALF["queries", 100][128] = Config(128, 64, 8, 3, tma=True)
CAUSAL: dict[tuple[str, int], dict[int, Config]] = {  # where the diagonal asks for other tiles
    ("forward", 90): {64: Config(128, 64, 4, 3, tma=True, lanes=True)},
    ("keys", 90): {64: Config(128, 64, 4, 2), 128: Config(64, 64, 4, 2, tma=True, narrow=1)},
    ("queries", 90): {128: Config(128, 64, 8, 4, tma=True, narrow=1)},
}
FULL = {16: Config(64, 32), 32: Config(64, 32), 64: Config(32, 32), 128: Config(32, 32, 8, 1)}  # float32


def default_config(kernel: str, width: int, dtype: torch.dtype, index: int | None, is_causal: bool = False) -> Config:
    """The config of a kernel (``"forward"``, ``"keys"``, ``"queries"``) for a padded width, type and GPU."""
    kind = generation(index)
    if kind == 0:
        return SMALL
    if dtype == torch.float32:
        return FULL[padded_width(width)]
    tables = ([CAUSAL.get((kernel, kind), {})] if is_causal else []) + [HALF[kernel, kind]]
    return next(table[w] for w in (width, padded_width(width)) for table in tables if w in table)


def candidates(kernel: str, width: int, kind: int) -> list[Config]:
    """The configs worth measuring for half precision on a generation of GPUs."""
    tiles = {
        "forward": [(128, 64, 8), (128, 128, 8), (64, 64, 4), (128, 32, 4), (128, 64, 4), (64, 128, 4)],
        "keys": [(64, 128, 8), (64, 64, 4), (32, 128, 8), (128, 128, 8), (32, 64, 4), (64, 128, 4), (128, 64, 4)],
        "queries": [(128, 64, 8), (64, 64, 4), (128, 32, 8), (128, 128, 8), (64, 32, 4), (128, 64, 4)],
    }[kernel]
    if width == 16 and kernel == "forward":
        tiles += [(256, 64, 8), (256, 32, 8), (128, 256, 8)]
    found = [Config(q, k, w, stages, lanes=kernel == "forward") for q, k, w in tiles for stages in (2, 3, 4)]
    if kind >= 90:
        found += [replace(c, tma=True) for c in found if c.stages < 4]
    if kind >= 100:  # Triton 3.6 and 3.9 compile a specialised loop for Hopper to the same instructions
        found += [replace(c, specialize=True) for c in found if c.tma and c.stages == 2]
    if kernel == "forward":
        return found + [replace(c, lanes=False) for c in found[:3]]
    return found + [replace(c, registers=168 if c.warps == 4 else 128) for c in found if c.stages == 3]
