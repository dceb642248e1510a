"""``infsa.stream``: exact inference on an image of any size."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..models import InfViT
from .engine import Engine, Report
from .feed import BadTile, Feed
from .maps import Map, MapPass, check_map
from .network import Network, check_model
from .placement import Placement
from .places import check_outputs
from .plan import Limits, Plan, plan, stored_bytes, tile_side, working_bytes
from .regions import COUNT, SHARE, Region, check_rule, find_regions, write_regions
from .scene import SceneCode
from .source import Colours, Source, open_source
from .state import StateFile
from .tiles import Tiling
from .timing import Profile

if TYPE_CHECKING:
    from ..parallel import Ranks
    from ..parallel.ranks import Group


@dataclass
class StreamResult:
    """What a stream found."""

    logits: Tensor  # (1, classes)
    features: Tensor  # (1, D): what the classifier reads
    code: SceneCode  # one row per layer: any region's dense features follow from it
    skipped: list[BadTile]  # tiles that could not be read and were masked out
    strategy: str  # "spill", "recompute", or "mixed": some tiles kept, the others computed again
    passes: int  # over all tiles
    peak_memory: int  # most bytes of resident memory seen after a tile
    map_file: Path | None  # where the map was written
    plan: Plan  # the tiles, and where tokens stayed
    profile: Profile  # megapixels per second, and what was waited for
    _engine: Engine = field(repr=False)
    _map_of: tuple[int, int | None] = field(default=(-1, None), repr=False)
    _map: Map | None = field(default=None, repr=False)

    @property
    def map(self) -> Map:
        """The attention map (h, w), of sum 1, in float32 or the model's float64; one more pass if not asked for."""
        if self._map is None:
            self._map = MapPass(self._engine, *self._map_of).array()
        return self._map

    def regions(self, share: float = SHARE, count: int = COUNT) -> list[Region]:
        """The hottest regions of the map, by the rule of :func:`infsa.streaming.find_regions`."""
        network = self._engine.network
        return find_regions(self.map, Placement.of(self._engine.feed.source, network.tiling.patch), share, count)

    def region(self, top: int, left: int, bottom: int, right: int) -> Tensor:
        """Dense features of the patches that a box of pixels touches: (rows, columns, D)."""
        network = self._engine.network
        return self.code.features(network.model, self._engine.feed.source, (top, left, bottom, right))


def stream(
    model: InfViT,
    source: Any,
    *,
    tile: int | None = None,
    strategy: str = "auto",
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    scratch: str | Path | None = None,
    order: Sequence[int] | None = None,
    level: int = 0,
    series: int | None = None,
    page: int | None = None,
    bands: Sequence[int] | None = None,
    on_error: str = "raise",
    map: bool | str | Path = False,
    layer: int = -1,
    head: int | None = None,
    regions: str | Path | None = None,
    region_share: float = SHARE,
    region_count: int = COUNT,
    code: str | Path | None = None,
    overwrite: bool = False,
    state: str | Path | None = None,
    save_every: float = 30.0,
    progress: Report | None = None,
    group: "Group" = None,
) -> StreamResult:
    """Run a Linear InfViT on an image of any size, tile by tile; equal to the model on the whole image.

    Args:
        model: an :class:`InfViT` with ``attention="infsa_linear"``.
        source: floating (C, H, W) tensors and arrays are model input; uint8 and uint16 arrays (H, W[, C]) and files
            (``.npy``, JPEG, PNG, WebP, GIF, TIFF, whole slides, Zarr) are normalised with the model's mean and std.
        tile: side of the tiles in pixels, rounded down to whole patches. The result does not depend on it. Without it
            1024 on a CPU, and on a GPU a side of up to 65,536 tokens of width 1024, or 262,144 narrow ones.
        strategy: ``"recompute"`` keeps no tokens and starts from the pixels in every pass; ``"spill"`` keeps them
            between passes, in the GPU's memory, then in that of the host, then in a file under ``scratch``;
            ``"auto"`` keeps what fits.
        memory: limit of the process, as ``"2GiB"`` or bytes; one that is too small is refused, with the amount needed.
            By default what is in use now, plus half of what is free.
        device_memory: the same for the GPU; by default four fifths of what is free.
        scratch: folder for spilled tokens that do not fit in memory.
        order: the numbers of all tiles in the order to visit them; row by row if not given. Tiles are numbered row by
            row.
        level: pyramid level; 0 is the largest.
        series: image of a TIFF with several, as in :func:`infsa.streaming.open_source`, like the next two.
        page: page of a series, or frame of a GIF or WebP.
        bands: the channels to take, counted from 0; all if not given.
        on_error: ``"raise"``, or ``"skip"`` to mask tiles out that cannot be read, as ``patch_mask`` would.
        map: True for an attention map in memory, a path for a file with an overview beside it: ``.ome.tif`` for
            viewers, ``.tif`` or ``.zarr``.
        layer: layer of the map; negative counts from the end.
        head: head of the map; None for the mean over heads.
        regions: a ``.geojson`` file for the map's regions of highest attention; the map is then held in memory.
        region_share: share of the map's sum inside the regions, as in :func:`infsa.streaming.find_regions`.
        region_count: maximum number of regions.
        code: a ``.safetensors`` file for the scene code.
        overwrite: let the map, the regions and the code replace files of other kinds.
        state: a checkpoint file from which an interrupted stream continues, bit-equal; removed when all results are
            written. If it cannot be written, a warning says so and the stream continues.
        save_every: minimum seconds between saves of ``state``.
        progress: called after every tile with a :class:`infsa.streaming.Progress`.
        group: processes that share the image: a process group, or one dimension of a device mesh. Each reads its own
            tiles, strip by strip, and adds its sums to those of the others after every pass; all receive the same
            result, and rank 0 writes the files. All must make the same calls, also of ``result.map``.

    Example:
        >>> infsa.stream(model, "photo.jpg", tile=64).logits.shape
        torch.Size([1, 10])
    """
    check_model(model)
    opened = open_source(source, level, series=series, page=page, bands=bands)
    limits = Limits(strategy, memory, device_memory, scratch)
    side, why = _side(model, opened, tile, limits)
    network, feed = prepare(model, opened, side)
    chosen = check_order(order, network, opened)
    check_errors(on_error, network)
    ranks = None if group is None else check_ranks(group, network, on_error, state)
    whole = len(chosen)
    chosen = chosen if ranks is None else share_of(chosen, ranks)
    check_map(network, layer, head) if map or regions else None
    check_rule(region_share, region_count)
    written = (None if isinstance(map, bool) else map, code, state, regions)
    places = [None if place is None else Path(place) for place in written]
    check_outputs(opened.name, *places, overwrite=overwrite)
    stored = -(-stored_bytes(network) * len(chosen) // whole)
    laid = plan(network, feed, limits, working_bytes(network), stored, why)
    spill = next(iter(laid.stores(network)), None)
    engine = Engine(network, feed, chosen, spill, on_error, budget=laid.budget, report=progress, ranks=ranks)
    engine.extra_passes = int(bool(map or regions))
    file = None if state is None else StateFile(state, model, save_every)
    try:
        rule = None if places[3] is None else (places[3], region_share, region_count)
        return _run(engine, file, map, (layer, head), places[1], rule, laid)
    finally:
        if spill is not None:
            spill.close()
        engine.spill, engine.report = None, None


def plan_stream(
    model: InfViT,
    source: Any,
    *,
    tile: int | None = None,
    strategy: str = "auto",
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    scratch: str | Path | None = None,
) -> Plan:
    """What :func:`infsa.stream` would do with the same arguments: tiles, and where tokens would stay.

    Example:
        >>> plan = infsa.streaming.plan_stream(model, "photo.jpg", tile=64)
        >>> plan.tile, plan.tiers["file"]
        ((64, 64), 0)
    """
    check_model(model)
    opened, limits = open_source(source), Limits(strategy, memory, device_memory, scratch)
    side, why = _side(model, opened, tile, limits)
    network, feed = prepare(model, opened, side)
    return plan(network, feed, limits, working_bytes(network), stored_bytes(network), why)


def _side(model: InfViT, source: Source, tile: int | None, limits: Limits) -> tuple[int, str]:
    device_memory = limits.device_memory
    return tile_side(model, tile, 1024, device_memory, lambda side: working_bytes(prepare(model, source, side)[0]))


def _run(
    engine: Engine,
    file: StateFile | None,
    map: bool | str | Path,
    map_of: tuple[int, int | None],
    code: Path | None,
    regions: tuple[Path, float, int] | None,
    laid: Plan,
) -> StreamResult:
    start = None
    if file is not None:
        start, engine.save = file.resume(engine), file.save
    logits, features = engine.run(start)
    map_file, values = None, None
    writes = engine.ranks is None or engine.ranks.rank == 0
    try:
        if code is not None and writes:
            engine.code.save(code, overwrite=True)  # the place was checked before the first pass
        if map or regions:
            found = MapPass(engine, *map_of)
            values = found.array() if map is True or regions or engine.ranks is not None else None
            map_file = found.write(Path(map)) if writes and not isinstance(map, bool) else None
            if regions is not None and values is not None and writes:
                write_regions(regions[0], find_regions(values, found.placement(), *regions[1:]))
    except OSError as error:
        if file is None or not file.path.exists():
            raise
        left = f"{file.path} is kept, the same call goes on from it"
        if error.errno is None:
            raise OSError(f"{error}; {left}") from error
        raise OSError(error.errno, f"{error.strerror}; {left}", error.filename) from error
    if file is not None:
        file.remove()  # only when everything else is on the disk
    kept = 0 if engine.spill is None else len(engine.spill.layers)
    strategy = "recompute" if not kept else "spill" if kept == len(engine.visited()) else "mixed"
    passes = len(engine.network.steps) + engine.extra_passes
    profile = engine.feed.profile
    profile.stop()
    engine.feed.profile = Profile()  # of a map that is asked for later
    facts = (engine.skipped, strategy, passes, engine.peak, map_file, laid, profile)
    return StreamResult(logits, features, engine.code, *facts, engine, map_of, values)


def prepare(model: InfViT, source: Source, tile: int) -> tuple[Network, Feed]:
    """The model and the image, checked against each other as the model itself would."""
    colours = Colours(model, source)
    model.grid_of(torch.empty(1, model.in_chans, source.height, source.width, device="meta"))
    tiling = Tiling.of(model, (source.height, source.width), tile)
    return Network(model, tiling, None if source.model_input else colours), Feed(source, tiling, colours)


def check_order(order: Sequence[int] | None, network: Network, source: Source) -> Sequence[int]:
    """All tiles in the order asked for, or row by row."""
    count = len(network.tiling)
    if order is None:
        return range(count)
    order = [operator.index(number) for number in order]
    if sorted(order) != list(range(count)):
        raise ValueError(f"order must name each of the {count} tiles once, got {len(order)} numbers")
    per_band = network.tiling.shape[1]
    bands = [number // per_band for number in order]
    if source.sequential and bands != sorted(bands):
        raise ValueError(f"{source.name} decodes from the top down: order must go from band to band")
    return order


def check_ranks(group: "Group", network: Network, on_error: str, state: str | Path | None) -> "Ranks":
    """The processes that share an image, if they cut it alike."""
    from ..parallel import Ranks

    ranks = Ranks.of(group)
    if state is not None or on_error != "raise":
        given = f"on_error={on_error!r}" if state is None else f"state={str(state)!r}"
        raise ValueError(f"group cannot be combined with {given}: one process knows only its own tiles")
    everyone = ranks.exchange([*network.tiling.size, *network.tiling.step])
    if any(facts != everyone[0] for facts in everyone):
        raise ValueError(f"all ranks must use the same image size and tiles, got (in patches) {everyone}")
    if len(network.tiling) < ranks.size:
        raise ValueError(f"{ranks.size} ranks need a tile each, got {len(network.tiling)}: make tiles smaller")
    return ranks


def share_of(order: Sequence[int], ranks: "Ranks") -> Sequence[int]:
    """The tiles of this rank: neighbours in the order."""
    first, last = (len(order) * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    return order[first:last]


def check_errors(on_error: str, network: Network) -> None:
    """Refuse to skip where skipped tiles could not be masked."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    model = network.model
    if on_error == "skip" and model.global_pool not in ("token", "avg"):
        raise ValueError(f"on_error='skip' needs global_pool 'token' or 'avg', got {model.global_pool!r}")
    if on_error == "skip" and any(block.attn.queries > 1 for block in model.blocks):  # type: ignore[union-attr,operator]
        raise ValueError("on_error='skip' needs queries=1: the blocks of tokens would change with every tile left out")
