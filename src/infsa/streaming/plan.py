"""What a stream may hold in memory, and where its tokens therefore stay between passes."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..models import InfViT
from ..models.blocks import Block
from ..models.stem import ConvStem
from .feed import Feed, cores
from .memory import available, on_gpu, parse_bytes, resident, show_bytes
from .network import Network, attention
from .spill import FileSpill, Spill, Tiers
from .upload import RING, pinned_bytes

STRATEGIES = ("auto", "recompute", "spill")
NUMBERS = 1 << 26  # in the tokens of a tile on a GPU: enough to fill it
MOST_TOKENS = 1 << 18  # of such a tile, however narrow they are
STEP = 1024  # pixels by which its side grows, as the tiles of files do
DEVICE_SLACK = 96 << 20  # for the work space of matrix products
SLACK = 192 << 20  # for what libraries load, allocators keep, and the interpreter touches when it ends


@dataclass(frozen=True)
class Limits:
    """What a stream may use, as it was asked for; see :func:`infsa.stream`."""

    strategy: str = "auto"
    memory: str | int | None = None
    device_memory: str | int | None = None
    scratch: str | Path | None = None


@dataclass(frozen=True)
class Plan:
    """What a stream will do: the side of its tiles, and in which memory tokens stay between passes.

    ``str`` says it in one line.
    """

    budget: int | None  # bytes that the process may hold, if a limit was given
    room: int  # bytes of tokens in host memory
    folder: Path | None = None  # for those that fit in no memory
    on_device: int = 0  # bytes of tokens in the memory of a GPU; on the CPU that is host memory
    stored: int = 0  # bytes of all tokens that are kept
    tile: tuple[int, int] = (0, 0)  # height and width in pixels
    tokens: int = 0  # of a whole tile
    why: str = ""  # the tile has this side
    depth: int = 1  # threads that decode ahead

    def stores(self, network: Network, count: int = 1) -> list[Spill]:
        """Stores for the tokens of so many layers, the first ones in the fastest memory; none if nothing is kept."""
        found: list[Spill] = []
        each, device, host = self.stored // count, self.on_device, self.room
        for _ in range(count):
            here, there = min(each, device), min(each, host)
            tiers = [Spill(here, network.device)] if here else []
            tiers += [Spill(there)] if there else []
            if self.folder is not None and here + there < each:
                width, pinned = network.model.embed_dim, network.device.type == "cuda"
                tiers.append(FileSpill(self.folder, network.tiling, width, network.dtype, pinned))
            device, host = device - here, host - min(there, each - here)
            if tiers:
                found.append(Tiers(tiers))
        return found

    @property
    def tiers(self) -> dict[str, int]:
        """Bytes of tokens by where they stay: ``device``, ``host``, ``file``, and ``nowhere`` if computed again."""
        device = min(self.on_device, self.stored)
        host = min(self.room, self.stored - device)
        rest = self.stored - device - host
        return {"device": device, "host": host, "file": rest * bool(self.folder), "nowhere": rest * (not self.folder)}

    def __str__(self) -> str:
        places = {"device": "in GPU memory", "host": "in host memory", "file": f"in a file under {self.folder}",
                  "nowhere": "computed again in every pass"}  # fmt: skip
        kept = ", ".join(f"{show_bytes(size)} {places[name]}" for name, size in self.tiers.items() if size)
        height, width = self.tile
        threads = f"decoded ahead by {self.depth} thread{'s' * (self.depth > 1)}"
        size = f"tiles of {height} × {width} px ({self.why}), {self.tokens} tokens each"
        return f"{size}; {threads}; tokens: {kept}"


def plan(network: Network, feed: Feed, limits: Limits, working: int, stored: int, why: str = "as asked") -> Plan:
    """Lay out a stream within the memory, or say in one line how much it needs.

    Args:
        network: the model.
        feed: the image; how many tiles it reads ahead is set here.
        limits: the strategy, memory and folder.
        working: bytes that the computation on one tile takes.
        stored: bytes of all tokens that a spill would keep.
        why: the tiles have their side.
    """
    strategy, memory, scratch = limits.strategy, limits.memory, limits.scratch
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {list(STRATEGIES)}, got {strategy!r}")
    if strategy == "recompute" and scratch is not None:
        raise ValueError("strategy='recompute' keeps nothing: it takes no scratch folder")
    tiling, gpu = network.tiling, network.device.type == "cuda"
    rows, columns = (step * patch for step, patch in zip(tiling.step, tiling.patch, strict=True))
    count = tiling.step[0] * tiling.step[1]
    on_device = device_room(network, feed, working, limits.device_memory)
    base = resident()
    fetched = 0 if scratch is None else 2 * count * network.model.embed_dim * network.dtype.itemsize
    fixed = base + feed.source.overhead + (0 if gpu else working) + fetched + SLACK
    least = fixed + feed.held(1)
    budget = base + available() // 2 if memory is None else parse_bytes(memory)
    if memory is not None and budget < least:
        raise ValueError(
            f"memory={memory!r} is too small: tiles of {rows} × {columns} px need {show_bytes(least + (1 << 20))}, "
            f"of which the process holds {show_bytes(base)} already; smaller tiles need less"
        )
    queue = (budget - least) // 4
    feed.depth = next((n for n in range(cores(), 1, -1) if feed.held(n) - feed.held(1) <= queue), 1)
    facts = {"tile": (rows, columns), "tokens": count, "why": why, "depth": feed.depth, "stored": stored}
    known = None if memory is None else budget
    if strategy == "recompute":
        return Plan(known, 0, **facts)  # type: ignore[arg-type]
    room = int(max(0, budget - fixed - feed.held()) / spacing(network))
    on_device = min(on_device, stored)
    left = stored - on_device
    if left > room and scratch is not None:
        folder = checked_folder(Path(scratch), left - room)
        return Plan(known, room, folder, on_device, **facts)  # type: ignore[arg-type]
    if left > room and strategy == "spill":
        raise ValueError(
            f"strategy='spill' keeps {show_bytes(stored)} of tokens and has room for {show_bytes(on_device + room)}: "
            f"raise memory to {show_bytes(int(least + left * spacing(network)) + (1 << 20))} or name a scratch folder"
        )
    return Plan(known, min(room, left), None, on_device, **facts)  # type: ignore[arg-type]


def device_room(network: Network, feed: Feed, working: int, device_memory: str | int | None) -> int:
    """Bytes for tokens in the memory of a GPU: the budget without what is held and what computing takes."""
    if network.device.type != "cuda":
        if device_memory is not None:
            kind = network.device.type
            raise ValueError(f"device_memory={device_memory!r} needs a model on a GPU, got one on {kind}: use memory")
        return 0
    held, free, _ = on_gpu(network.device)
    rows, columns = network.tiling.most_read
    pixels = math.prod(network.tiling.most_read) * feed.source.channels * feed.source.itemsize
    tokens = math.prod(network.tiling.step) * network.model.embed_dim * network.dtype.itemsize
    least = held + working + (RING + 1) * max(pixels, tokens) + RING * tokens + DEVICE_SLACK
    budget = held + free * 4 // 5 if device_memory is None else parse_bytes(device_memory, "device_memory")
    if budget < least:
        raise ValueError(
            f"device_memory={show_bytes(budget)} is too small: tiles of {rows} × {columns} px need "
            f"{show_bytes(least)}, of which {show_bytes(held)} are held already; smaller tiles need less"
        )
    return budget - least


def tile_side(
    model: InfViT,
    tile: int | None,
    usual: int,
    device_memory: str | int | None,
    needed: Callable[[int], int],
) -> tuple[int, str]:
    """The side of the tiles, and why: as asked, the usual one, or on a GPU one whose tokens fill it.

    Args:
        model: whose patches and device count.
        tile: the side asked for, or None.
        usual: the side on a CPU.
        device_memory: as in :func:`plan`.
        needed: bytes that the computation on a tile of some side takes; at most half of the GPU is given to it.
    """
    device = model.patch_embed.proj.weight.device
    if tile is not None:
        return tile, "as asked"
    if device.type != "cuda":
        return usual, "the default on a CPU"
    whole = on_gpu(device)[2] if device_memory is None else parse_bytes(device_memory, "device_memory")
    side = gpu_side(model.patch_embed.patch_size, model.embed_dim, whole // 2, needed)
    tokens = min(MOST_TOKENS, NUMBERS // model.embed_dim)
    return side, f"for at most {tokens:,} tokens and half of the GPU's memory"


def gpu_side(patch: Sequence[int], width: int, limit: int, needed: Callable[[int], int]) -> int:
    """The side of tiles that fill a GPU with tokens of a width, halved until the computation fits into a limit.

    Example:
        >>> gpu_side((16, 16), 1024, 1 << 30, lambda side: 12 * side * side)
        4096
        >>> gpu_side((8, 8), 192, 1 << 30, lambda side: 12 * side * side)
        4096
    """
    side = math.isqrt(min(MOST_TOKENS, NUMBERS // width) * patch[0] * patch[1])
    side -= side % STEP if side > STEP else 0
    while side > max(patch) and needed(side) > limit:
        side //= 2
    return side


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


def spacing(network: Network) -> float:
    """How many times their size the tokens of tiles take in host memory: more than once where it is pinned."""
    if network.device.type != "cuda":
        return 1.0
    each = network.model.embed_dim * network.dtype.itemsize
    tiles = (network.tiling[number].tokens * each for number in range(len(network.tiling)))
    return sum(pinned_bytes(size) for size in tiles) / stored_bytes(network)


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
    pixels = 4 * network.model.in_chans * high * wide  # planes in floating point, and copies of them
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
