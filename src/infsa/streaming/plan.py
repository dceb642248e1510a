"""What a stream may hold in memory, and where its tokens therefore stay between passes."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..models.block import Block
from ..models.patches import ConvStem
from .feed import Feed
from .memory import available, parse_bytes, resident, show_bytes
from .network import Network, attention
from .spill import FileSpill, Spill

STRATEGIES = ("auto", "recompute", "spill")
SLACK = 192 << 20  # for what libraries load, allocators keep, and the interpreter touches when it ends


@dataclass(frozen=True)
class Plan:
    """The memory budget and where tokens stay: a folder, memory with room for so many bytes, or nowhere."""

    budget: int | None
    room: int
    folder: Path | None = None

    def spill(self, network: Network) -> Spill | None:
        """A store for the tokens of one layer, or None."""
        if self.folder is not None:
            return FileSpill(self.folder, network.tiling, network.model.embed_dim, network.dtype)
        return Spill(self.room) if self.room else None


def plan(
    network: Network,
    feed: Feed,
    strategy: str,
    memory: str | int | None,
    scratch: str | Path | None,
    working: int,
    stored: int,
) -> Plan:
    """Lay out a stream within the memory, or say in one line how much it needs.

    Args:
        network: the model.
        feed: the image.
        strategy: ``"auto"``, ``"recompute"`` or ``"spill"``.
        memory: all that the process may hold.
        scratch: folder for tokens that do not fit.
        working: bytes that the computation on one tile takes.
        stored: bytes of all tokens that a spill would keep.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {list(STRATEGIES)}, got {strategy!r}")
    if strategy == "recompute" and scratch is not None:
        raise ValueError("strategy='recompute' keeps nothing: it takes no scratch folder")
    base = resident()
    least = base + feed.source.overhead + feed.held() + working + SLACK
    budget = base + available() // 2 if memory is None else parse_bytes(memory)
    if memory is not None and budget < least:
        rows, columns = (step * patch for step, patch in zip(network.tiling.step, network.tiling.patch, strict=True))
        raise ValueError(
            f"memory={memory!r} is too small: tiles of {rows} × {columns} px need {show_bytes(least + (1 << 20))}, "
            f"of which the process holds {show_bytes(base)} already; smaller tiles need less"
        )
    known = None if memory is None else budget
    if strategy == "recompute":
        return Plan(known, 0)
    room = max(0, budget - least)
    if stored <= room:
        return Plan(known, stored)
    if scratch is not None:
        return Plan(known, 0, checked_folder(Path(scratch), stored))
    if strategy == "spill":
        raise ValueError(
            f"strategy='spill' keeps {show_bytes(stored)} of tokens and has room for {show_bytes(room)}: "
            f"raise memory to {show_bytes(least + stored + (1 << 20))} or name a scratch folder"
        )
    return Plan(known, room)


def checked_folder(folder: Path, stored: int) -> Path:
    """A folder for so many bytes; one without room for them is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if stored > free:
        raise ValueError(f"scratch={str(folder)!r} has {show_bytes(free)} free, the tokens need {show_bytes(stored)}")
    return folder


def stored_bytes(network: Network) -> int:
    """The tokens of all patches at one layer."""
    return network.grid[0] * network.grid[1] * network.model.embed_dim * network.dtype.itemsize


def hidden_width(network: Network) -> int:
    """The widest hidden layer of the blocks."""
    blocks = [block for block in network.model.blocks if isinstance(block, Block)]
    return max((int(block.mlp.fc1.out_features) for block in blocks if block.mlp is not None), default=0)  # type: ignore[arg-type]


def working_bytes(network: Network) -> int:
    """What one tile takes on its way through a block: pixels, a few copies of its tokens, scores, its hidden layer.

    With a convolutional stem it may take more on the way through that.
    """
    (rows, columns), (high, wide) = network.tiling.step, network.tiling.patch
    tokens, width, size = rows * columns, network.model.embed_dim, network.dtype.itemsize
    chunk = min(tokens, getattr(network.model.blocks[0], "mlp_chunk", None) or tokens)
    pixels = 2 * network.model.in_chans * high * wide
    queries = max(attention(block).queries for block in network.model.blocks)
    scores = 3 * network.model.num_heads * queries if queries > 1 else 0
    block = tokens * (5 * width + pixels + scores) * max(size, 4) + chunk * 2 * hidden_width(network) * size
    return max(block, max(_stem_bytes(network), default=0))


def graph_bytes(network: Network, blocks: int) -> int:
    """What autograd keeps of one tile on its way through so many blocks, and the gradients of all parameters."""
    rows, columns = network.tiling.step
    per_block = (12 * network.model.embed_dim + 3 * hidden_width(network)) * max(network.dtype.itemsize, 4)
    parameters = sum(p.numel() for p in network.model.parameters()) * 4 * max(network.dtype.itemsize, 4)
    return working_bytes(network) + sum(_stem_bytes(network)) + rows * columns * per_block * (blocks + 1) + parameters


def _stem_bytes(network: Network) -> list[int]:
    """What each convolution of the stem holds: what it reads and gives, twice each, and what it lays out in between."""
    layer = network.model.patch_embed
    if not isinstance(layer, ConvStem):
        return []
    area, found = math.prod(network.tiling.most_read), []
    for conv in [module for module in layer.modules() if isinstance(module, nn.Conv2d)]:  # in their order
        read = area * conv.in_channels
        area //= math.prod(conv.stride)
        between = area * conv.in_channels * math.prod(conv.kernel_size) if network.dtype == torch.float64 else 0
        found.append((2 * read + 3 * area * conv.out_channels + between) * max(network.dtype.itemsize, 4))
    return found
